"""DL106."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Guard
from distlint.api.tokens import COLLECTIVE_TOKENS, may_reduce
from distlint.model import Condition, Example, Report, Rule
from distlint.modules import is_test
from distlint.nodes import names_in, within
from distlint.partings import Made, all_made
from distlint.syntax import TRY_STAR, FunctionNode, dotted

# What a program raises on every rank or on none: it is a matter of what is installed, or of the person at the keys.
_SAME_EVERYWHERE = frozenset(
    {
        "AttributeError",
        "ImportError",
        "KeyboardInterrupt",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "PackageNotFoundError",
        "StopIteration",
        "SyntaxError",
        "TypeError",
    }
)
_LEAVES = frozenset({"_exit", "destroy_process_group", "exit"})
_STARTERS = frozenset({"Process", "launch", "notebook_launcher", "spawn", "start_processes"})


class CollectiveInExcept(Rule):
    """A collective inside ``except`` or ``finally``: the rank that failed makes it, the others do not.

    An exception is most often one rank's own: out of memory, a broken file, a NaN. That rank then waits in the
    handler's collective, while the others are in another one or go on:

        rank 0   all_reduce(loss)   … waits for rank 1
        rank 1   out of memory      barrier()  … waits for rank 0

    The traceback is never seen; what is seen is the time-out of the process group.

    How to fix: let the exception end the job (the launcher stops the other ranks and restarts them), or agree
    after the ``try``: every rank reduces a flag "I failed", and all take the same way.

    In ``finally``, the collective is also made by the rank that failed. That is right where it is the only one
    (each rank makes it once, whatever happens), and reported where the ``try`` has collectives of its own.

    Silent: handlers of what all ranks raise or none (``ImportError``, ``AttributeError``, ``TypeError``,
    ``KeyboardInterrupt``); a handler that makes the collectives that the ``try`` would have made, or one
    collective in the place of a single one that was tried; generators, whose ``finally`` ends a ``with``; the end of
    a test or of a job, after which nothing is left to wait for.

    For review: handlers of errors that all ranks may meet at once.

    When to ignore: the exception is sure to come on every rank.
    """

    code, name, group = "DL106", "collective-in-except", "divergence"
    tokens = ((*COLLECTIVE_TOKENS, b"sync_dist"), (b"except", b"finally"))
    evidence = staticmethod(may_reduce)
    bad = (
        Example(
            """\
import torch.distributed as dist

def train(model, batches, trainer):
    for batch in batches:
        try:
            loss = model(batch)
        except RuntimeError:
            dist.barrier()
            continue
        dist.all_reduce(loss)

def fit(trainer, model):
    try:
        trainer.fit(model)
    except Exception:
        rescue(trainer)
        raise

def rescue(trainer):
    trainer.save_checkpoint("last.ckpt")
""",
            {8: "this barrier in except", 16: "this save_checkpoint (inside rescue) in except"},
        ),
        Example(
            """\
import torch.distributed as dist

def evaluate(model, batches):
    try:
        for batch in batches:
            dist.all_reduce(model(batch))
    finally:
        dist.barrier()
""",
            {8: "this barrier in finally"},
        ),
    )
    good = (
        """\
import torch.distributed as dist

def load(path, everywhere=False):
    if everywhere:
        dist.barrier()
    return path.read()

def main(paths):
    for path in set(paths):
        try:
            load(path)
        except OSError:
            load(path.parent)
""",
        """\
import torch.distributed as dist
from contextlib import contextmanager

def gather(x, parts, rank, world_size):
    try:
        dist.all_gather_into_tensor(parts, x)
    except AttributeError:
        dist.all_gather(list(parts), x)
    try:
        dist.broadcast(x, 0)
    except RuntimeError:
        dist.broadcast(x.cpu(), 0)
    try:
        dist.barrier()
    except RuntimeError:
        dist.all_reduce(x.new_zeros(()))
    for turn in range(world_size):
        try:
            if turn == rank:
                load(x)
        finally:
            dist.barrier()
    try:
        load(x)
    except RuntimeError:
        return gather(x, parts, rank, 1)
    except OSError:
        print("failed")
    else:
        print("loaded")
    dist.barrier()

@contextmanager
def first(rank):
    if rank:
        dist.barrier()
    try:
        yield
    finally:
        if not rank:
            dist.barrier()
""",
        """\
import torch.distributed as dist

def train(trainer, model):
    try:
        trainer.fit(model)
    except KeyboardInterrupt:
        trainer.save_checkpoint("last.ckpt")
    except (ImportError, TypeError):
        dist.barrier()
    finally:
        dist.destroy_process_group()
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look above every collective for a handler; one finding for each."""
        made = list(all_made(analysis))
        told: set[tuple[int, str]] = set()
        for each in made:
            arm = next((guard for guard in reversed(each.event.guards) if guard.kind in ("except", "finally")), None)
            if arm is None or (id(arm.node), arm.kind) in told:
                continue
            told.add((id(arm.node), arm.kind))
            if not _is_harmless(analysis, made, each, arm) and not _ends_the_job(made, arm, each.event.function):
                yield _report(analysis, each, arm)


def _is_harmless(analysis: Analysis, made: list[Made], found: Made, arm: Guard) -> bool:
    whole = next(each for each in _tries(found.event.function) if arm.node in (each, *each.handlers))
    below = {id(node) for statement in whole.body for node in ast.walk(statement)}
    tried = {each.step.label for each in made if id(each.event.node) in below}
    if not isinstance(arm.node, ast.ExceptHandler):
        is_context = any(any(within(statement, ast.Yield)) for statement in whole.body)
        return is_context or not tried
    kinds = {dotted(node).rpartition(".")[2] for node in _kinds(arm.node.type)}
    if kinds and kinds <= _SAME_EVERYWHERE:
        return True
    handled = {each.step.label for each in made if any(guard.node is arm.node for guard in each.event.guards)}
    return handled <= tried or (len(handled) == 1 and _is_one_collective(analysis, whole))


def _tries(function: FunctionNode) -> Iterator[ast.Try]:
    return within(function.node, (ast.Try, TRY_STAR))


def _kinds(node: ast.expr | None) -> list[ast.expr]:
    """The exceptions that a handler takes."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node] if node is not None else []


def _is_one_collective(analysis: Analysis, whole: ast.Try) -> bool:
    """Whether nothing else is tried than a collective of torch: what the backend cannot do, it can do on no rank."""
    value = whole.body[0].value if len(whole.body) == 1 and isinstance(whole.body[0], ast.Expr | ast.Assign) else None
    return isinstance(value, ast.Call) and analysis.index.qualify(value.func).startswith("torch.distributed.")


def _ends_the_job(made: list[Made], arm: Guard, function: FunctionNode) -> bool:
    """Whether a test or a job ends with the arm: it leaves the group, or what runs as a whole makes no more calls."""
    node = arm.node.finalbody[-1] if isinstance(arm.node, ast.Try | TRY_STAR) else arm.node
    last = node.end_lineno or node.lineno
    loops = within(function.node, (ast.For, ast.AsyncFor, ast.While))
    if any(loop.lineno <= last <= (loop.end_lineno or 0) for loop in loops):
        return False
    calls = (each for each in within(function.node, ast.Call) if each.lineno >= arm.node.lineno)
    if any(dotted(each.func).rpartition(".")[2] in _LEAVES for each in calls):
        return True
    is_last = not any(each.event.function is function and each.event.node.lineno > last for each in made)
    return is_last and _is_whole(function)


def _is_whole(function: FunctionNode) -> bool:
    """Whether a function is a test, or what a module or a process runs."""
    name = function.name
    if name == "<module>" or is_test(function.module.path) or name.startswith("test"):
        return True
    for each in within(function.module.tree, ast.Call):
        if dotted(each.func).rpartition(".")[2] in _STARTERS and name in names_in(each):
            return True
    outside = (part for part in function.module.tree.body if not isinstance(part, ast.FunctionDef | ast.ClassDef))
    calls = (each for part in outside for each in within(part, ast.Call))
    return any(dotted(each.func) == name for each in calls)


def _report(analysis: Analysis, made: Made, arm: Guard) -> Report:
    shown, condition = arm.kind, None
    why = "a rank that fails in the try comes here while the others are in a collective there"
    if isinstance(arm.node, ast.ExceptHandler):
        why = "only a rank that fails comes here: it waits for ever, and its error is never seen"
        shown += f" {analysis.index.text_of(arm.node.type)}" if arm.node.type is not None else ""
        condition = Condition("data", "if not all ranks fail at once")
    trace = (analysis.index.path, arm.node.lineno, "handler", shown)
    return Report(made.event.node, f"this {made.what} in {arm.kind}: {why}", (trace, *made.trace), condition)

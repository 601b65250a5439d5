"""DL106."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import known
from distlint.facts.divergence import describe
from distlint.facts.tree import is_name, statements, tail, walk_scope
from distlint.model import Example, Hit, Rule
from distlint.modules import is_test

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.projection import Projector

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

    When to ignore: the exception is sure to come on every rank.
    """

    code, name, group = "DL106", "collective-in-except", "divergence"
    tokens = ((*known.TOKENS, b"sync_dist"), (b"except", b"finally"))
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

    def can_matter(self, source: bytes) -> bool:
        """Most files are distributed by their licence alone."""
        return b"sync_dist" in source or known.may_have_collective(source)

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look above every collective for a handler; one finding for each."""
        if not facts.synced_operations:
            return
        projector = facts.synced_projector
        reported: set[cst.CSTNode] = set()
        for call in sorted(facts.synced_operations, key=lambda call: facts.order[call]):
            arm = _arm(facts, call)
            if arm is None or arm in reported or projector.operations[call] is facts.function_of(call):
                continue  # a function that calls itself tries again
            if not projector.label(call):
                continue
            reported.add(arm)
            if not _is_harmless(facts, projector, arm) and not _is_teardown(facts, projector, arm):
                yield _hit(facts, projector, call, arm)


Arm = cst.ExceptHandler | cst.ExceptStarHandler | cst.Finally


def _arm(facts: ModuleFacts, call: cst.Call) -> Arm | None:
    """The nearest handler or ``finally`` of the same function that a call is in."""
    for above in facts.ancestors(call):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(above, cst.ExceptHandler | cst.ExceptStarHandler | cst.Finally):
            return above
    return None


def _is_harmless(facts: ModuleFacts, projector: Projector, arm: Arm) -> bool:
    whole = facts.parents[arm]
    if not isinstance(whole, cst.Try | cst.TryStar):
        return True
    tried = _labels(projector, whole.body)
    if isinstance(arm, cst.Finally):
        is_context = any(isinstance(node, cst.Yield) for node in walk_scope(whole.body))
        return is_context or not tried
    kinds = _kinds(arm.type)
    if kinds and kinds <= _SAME_EVERYWHERE:
        return True
    made = _labels(projector, arm.body)
    if len(made) == 1 and _is_one_collective(facts, whole.body):
        return True
    return set(made) <= set(tried)  # another try at the same


def _is_teardown(facts: ModuleFacts, projector: Projector, arm: Arm) -> bool:
    """Whether a test or a job ends with the arm: it leaves the group, or no collective follows in what runs whole."""
    function = facts.function_of(arm)
    above = facts.ancestors(arm)
    if any(isinstance(each, cst.For | cst.While) and facts.function_of(each) is function for each in above):
        return False
    inside = set(walk_scope(arm))
    after = [call for call in _calls_of(facts, function) if facts.order[call] > facts.order[arm]]
    if any(tail(call.func) in _LEAVES for call in after):
        return True
    return _is_whole(facts, function) and not any(call in projector.operations for call in after if call not in inside)


def _calls_of(facts: ModuleFacts, function: cst.FunctionDef | None) -> list[cst.Call]:
    return [call for call in facts.nodes(cst.Call) if facts.function_of(call) is function]


def _is_whole(facts: ModuleFacts, function: cst.FunctionDef | None) -> bool:
    """Whether a function is a test, or what a module or a process runs."""
    if function is None or is_test(facts.path) or function.name.value.startswith("test"):
        return True
    name = function.name.value
    if any(is_name(call.func, name) for call in _calls_of(facts, None)):
        return True
    starts = [call for call in facts.nodes(cst.Call) if tail(call.func) in _STARTERS]
    return any(is_name(arg.value, name) for call in starts for arg in call.args)


def _is_one_collective(facts: ModuleFacts, tried: cst.BaseSuite) -> bool:
    """Whether nothing else is tried than a collective of torch: what the backend cannot do, it can do on no rank."""
    lines = statements(tried)
    parts = lines[0].body if len(lines) == 1 and isinstance(lines[0], cst.SimpleStatementLine) else ()
    value = parts[0].value if len(parts) == 1 and isinstance(parts[0], cst.Expr | cst.Assign) else None
    return isinstance(value, cst.Call) and (facts.resolve(value.func) or "").startswith("torch.distributed.")


def _kinds(node: cst.BaseExpression | None) -> set[str]:
    """The exceptions that a handler takes, by last name."""
    if isinstance(node, cst.Tuple):
        return {name for element in node.elements for name in _kinds(element.value)}
    name = None if node is None else tail(node)
    return {name} if name is not None else set()


def _labels(projector: Projector, body: cst.CSTNode) -> list[str]:
    calls = (node for node in walk_scope(body) if isinstance(node, cst.Call) and node in projector.operations)
    return [label for label in map(projector.label, calls) if label]


def _hit(facts: ModuleFacts, projector: Projector, call: cst.Call, arm: Arm) -> Hit:
    what, inner = describe(facts, projector, call, projector.label(call))
    if isinstance(arm, cst.Finally):
        shown, why = "finally", "a rank that fails in the try comes here while the others are in a collective there"
    else:
        kind = getattr(arm, "type", None)
        shown = "except" + (f" {facts.code(kind)}" if kind is not None else "")
        why = "only a rank that fails comes here: it waits for ever, and its error is never seen"
    word = shown.partition(" ")[0]
    return Hit(call, f"this {what} in {word}: {why}", ((arm, "handler", shown), *inner))

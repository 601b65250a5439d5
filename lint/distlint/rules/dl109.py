"""DL109."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Step
from distlint.analysis.handling import Attempt, attempts, reached, ways_out
from distlint.analysis.sequences import steps
from distlint.api import function_effect
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import SEVERAL_DEVICES, Condition, Example, Report, Rule
from distlint.syntax import dotted
from distlint.tracing import is_by_rank

# What fails on all ranks alike: the code or the installation, or somebody who stops the job.
_EVERYWHERE = frozenset(
    {"AttributeError", "ImportError", "KeyboardInterrupt", "ModuleNotFoundError", "NameError", "NotImplementedError"}
    | {"StopIteration", "SystemExit", "TypeError"}
)
# What is caught where anything may fail; other names are of something that is expected.
_BROAD = frozenset({"", "BaseException", "Exception", "IOError", "OSError", "RuntimeError"})
_LATER = Condition("data", "if the job goes on after that")
_MAY_FAIL = frozenset({"call", "forward", "make", "opaque"})


class SwallowedCollective(Rule):
    """An exception before a collective is caught and dropped, and the rank goes on without it.

    What fails on one rank alone, such as a broken sample or a batch that is too large for the memory, takes that rank
    out of the collective that the others are waiting in. The handler hides that:

        for batch in loader:
            try:
                loss = step(batch)       # fails on rank 2
                dist.all_reduce(loss)    # the others wait here
            except Exception as error:
                print(error)             # rank 2: next batch, next all_reduce

    Rank 2's next collective meets the one before it on the others: values of different steps are joined, or the job
    hangs at the end.

    How to fix: let the exception end the process; the launcher then stops the others. Or catch it around the local
    work alone, and let all ranks decide together: ``failed = torch.tensor(...)``, ``all_reduce(failed)``.

    The finding is sure where what fails is seen to work on this rank's own data and further collectives follow. The
    backward pass of a wrapped model counts as a collective.

    Silent: handlers that raise again, end the process or take down the process group; exceptions that are the same on
    all ranks, such as ImportError; nothing but the collective is tried; a collective that names its own process group.

    When to ignore: what is tried can't fail on one rank alone.
    """

    code, name, group = "DL109", "swallowed-collective", "divergence"
    tokens = (COLLECTIVE_TOKENS, (b"except",))
    bad = (
        Example(
            """\
import torch.distributed as dist

def run(loader, model):
    for batch in loader:
        try:
            loss = model(batch)
            dist.all_reduce(loss)
        except Exception as error:
            print(error)
""",
            {8: "all_reduce"},
        ),
        Example(
            """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, optimizer):
    model = DDP(net)
    for images, targets in loader:
        try:
            loss = model(images, targets)
            loss.backward()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            torch.cuda.empty_cache()
            continue
        optimizer.step()
""",
            {10: "backward"},
        ),
        Example(
            """\
from accelerate import Accelerator

accelerator = Accelerator()

def score(sets, judge):
    for samples in sets:
        try:
            scores = judge(samples)
            accelerator.gather(scores)
        except Exception:
            print("left out")
""",
            {10: "if `judge(samples)` fails on one rank alone"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist

def run(loader, model):
    for batch in loader:
        failed = torch.zeros(1)
        try:
            loss = model(batch)
        except RuntimeError:
            failed += 1
        dist.all_reduce(failed)
        if failed > 0:
            continue
        dist.all_reduce(loss)
""",
        """\
from accelerate import Accelerator

accelerator = Accelerator()

def score(loader, judge, strict):
    for samples in loader:
        try:
            accelerator.gather(judge(samples))
        except Exception:
            print("cannot judge")
            raise
        try:
            accelerator.wait_for_everyone()
        except RuntimeError:
            print("a rank is gone")
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every handler whether it drops what kept its rank from a collective."""
        found: dict[ast.ExceptHandler, Report] = {}
        for function in analysis.reports.values():
            for attempt in attempts(function.body):
                for handler, goes_on in _dropping(analysis, attempt):
                    for report in _reports(analysis, attempt, handler, goes_on):
                        known_before = found.setdefault(handler, report)
                        if known_before.condition is not None and report.condition is None:
                            found[handler] = report
        yield from found.values()


def _reports(analysis: Analysis, attempt: Attempt, handler: ast.ExceptHandler, goes_on: bool) -> Iterator[Report]:
    tried = list(reached(attempt.handled.body))
    is_wrapped = any(step.effect.wrapped for step, _ in tried)
    for step, leading in tried:
        risks = list(_risks(analysis, attempt, step, leading))
        if not _counts(analysis, step, is_wrapped) or is_by_rank(leading) or not risks:
            continue
        is_own = any(value.is_local for risk in risks for value in (*risk.args, *risk.options.values()))
        if is_own or step.effect.kind == "backward":
            condition = SEVERAL_DEVICES if step.effect.wrapped == "prepared" else None
            yield _report(handler, step, condition if goes_on else _LATER)
        elif goes_on and _types(handler) & _BROAD:
            text = f"if `{analysis.index.text_of(risks[-1].node)}` fails on one rank alone"
            yield _report(handler, step, Condition("data", text))


def _counts(analysis: Analysis, step: Step, is_wrapped: bool) -> bool:
    if step.effect.kind == "backward":
        return is_wrapped
    is_trainer = step.event is not None and step.event.receiver.family.endswith("trainer")
    return step.effect.wrapped == "fsdp" or (analysis.needs_all(step) and not is_trainer)


def _dropping(analysis: Analysis, attempt: Attempt) -> Iterator[tuple[ast.ExceptHandler, bool]]:
    """The handlers after which a rank goes on, and whether it then comes to further collectives."""
    for handler, body in zip(attempt.node.handlers, attempt.handled.handlers, strict=True):
        ends = ways_out(body, handler.name) - {"raise"}
        if _types(handler) <= _EVERYWHERE:
            continue
        meets = any(step.effect.kind == "collective" for step in steps(body))
        may_end = any(_ends_job(analysis, each) for each in ast.walk(handler)) or _is_unseen(analysis, handler.body[-1])
        if ends and not meets and not may_end:
            yield handler, bool(ends & attempt.onward)


def _is_unseen(analysis: Analysis, last: ast.stmt) -> bool:
    """True if a handler's last statement is a call that may end the process, for all that is seen."""
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return False
    root = analysis.index.qualify(last.value.func).partition(".")[0]
    is_bare = isinstance(last.value.func, ast.Name)
    return is_bare and root not in ("", analysis.index.name) and root not in sys.stdlib_module_names


def _types(handler: ast.ExceptHandler) -> set[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {dotted(each).rpartition(".")[2] if each is not None else "" for each in types}


def _ends_job(analysis: Analysis, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    effect = function_effect(analysis.index.qualify(node.func))
    return dotted(node.func) in ("exit", "quit") or (effect is not None and effect.kind in ("exit", "teardown"))


def _risks(analysis: Analysis, attempt: Attempt, step: Step, leading: Event | None) -> Iterator[Event]:
    """What runs before a step inside of the ``try``, and may fail: calls of code that is not seen, and of models."""
    for event in (leading, step.event if step.event is not leading else None):
        for each in analysis.reports[event.function].events if event is not None else ():
            if event is not None and each.node is event.node:
                break
            is_tried = event is not leading or any(guard.node is attempt.node for guard in each.guards)
            if is_tried and each.kind in _MAY_FAIL and not (each.is_dropped and each.kind == "opaque"):
                yield each


def _report(handler: ast.ExceptHandler, step: Step, condition: Condition | None) -> Report:
    message = (
        f"this handler drops an exception of one rank, which then goes on without the {step.label} in line "
        f"{step.place.line}, in which the others wait"
    )
    trace = ((step.place.path, step.place.line, "collective", step.place.text),)
    return Report(handler, message, trace, condition)

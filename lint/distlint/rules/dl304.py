"""DL304."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Guard
from distlint.analysis.arguments import operation_of
from distlint.analysis.events import FunctionReport, Loop, Node, Step, bodies
from distlint.analysis.formula import TRUE
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule, Severity
from distlint.tracing import of_guard

_PASSED = frozenset({"for", "try", "with", "exit break", "exit return"})  # those who are still there make every step
_INSTEAD = "distmetrics.Log adds up on each rank, and combines all values in one exchange a window"
_IS_SHORT = Condition("data", "if steps are so short that the device waits for Python")


class StallForLogging(Rule):
    """Every training step waits for all ranks only to log a number, or waits once for each name that is logged.

    A reduction makes every rank wait for the slowest one, and ``item()`` makes Python wait for the device. In a loop
    over names they come one after the other:

        for name, value in losses.items():      # 12 losses: 12 reductions and 12 waits for the device
            dist.all_reduce(value)              # one reduction of 12 numbers takes as long as one of them
            logs[name] = value.item()

    How to fix: log with ``distmetrics.Log`` (see docs/log.md), in plain torch as with Accelerate. It adds up on the
    device, and combines the values of all ranks, all names and all steps of a window in one exchange:

        log = distmetrics.Log()
        for step, (x, y) in enumerate(loader):
            ...
            log.mean("loss", loss.detach(), weight=len(y))        # in place of accelerator.gather(loss).mean().item()
            if (step + 1) % 50 == 0:
                row = log.flush()                                 # on every rank: a dict of floats, the same on all
                if rank == 0:
                    wandb.log(row)

    Without it: put the values into one tensor and reduce that each n-th step; where one rank's value is good enough
    for a log, don't reduce.

    The rule reports a reduction or gather in each training step whose result is only logged or printed, an ``item()``
    there that is only shown (for review), and a reduction for each name of a dict where the results are numbers. What
    it does not see to be in a training step is reported with a condition. ``self.log(..., sync_dist=True)`` of
    Lightning is DL302.

    Silent: reductions under a test such as ``step % every == 0``; results that anything else reads; loops over
    parameters, buffers and states.

    When to ignore: steps are so long that the wait does not show.
    """

    code, name, group = "DL304", "stall-for-logging", "cost"
    severity = Severity.WARNING
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather", b".item("))
    bad = (
        Example(
            """\
import torch.distributed as dist
import wandb

def train(model, loader, optimizer):
    for x, y in loader:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        shown = loss.detach()
        dist.all_reduce(shown)
        wandb.log({"loss": shown.item() / dist.get_world_size()})
""",
            {10: "only logged", 11: "waits for the device"},
        ),
        Example(
            """\
import torch
import torch.distributed as dist

def reduce_losses(losses, world_size):
    reduced = {}
    for name, value in sorted(losses.items()):
        dist.all_reduce(value)
        reduced[name] = value.item() / world_size
    return reduced
""",
            {7: "for each name"},
        ),
        Example(
            """\
import torch
from torch.distributed import init_process_group
from tqdm import tqdm

def train(model, loader, optimizer, autocast, limit):
    init_process_group()
    bar = tqdm(loader)
    for step, (x, y) in enumerate(bar):
        if step == limit:
            break
        with autocast:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            bar.set_description(f"loss {loss.item():.3f}")
        loss.backward()
        optimizer.step()
""",
            {13: "waits for the device to show `loss.item()`"},
        ),
        Example(
            """\
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader, optimizer, bar):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            accelerator.log({"loss": accelerator.gather(loss.detach()).mean().item()})
            bar.set_postfix(loss=accelerator.reduce(loss.detach(), reduction="mean"))
""",
            {9: "distmetrics.Log", 10: "this reduce"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
import wandb

def train(model, loader, optimizer, every, best):
    for step, (x, y) in enumerate(loader):
        losses = model(x, y)
        sum(losses.values()).backward()
        optimizer.step()
        if step % every == 0:
            names = sorted(losses)
            shown = torch.stack([losses[name].detach() for name in names])
            dist.all_reduce(shown)
            wandb.log(dict(zip(names, (shown / dist.get_world_size()).tolist())))
            print(losses["ce"].item())
        total = sum(losses.values()).detach()
        dist.all_reduce(total)
        if total < best:
            best = total
    for name, value in model.state_dict().items():
        dist.all_reduce(value)
""",
        """\
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader, optimizer, log):
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        log.mean("loss", loss.detach(), weight=len(batch["labels"]))
        if (step + 1) % 50 == 0:
            accelerator.log(log.flush())

def validate(accelerator: Accelerator, model, loader):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.print(accelerator.gather(loss).mean().item())
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every reduction whether a step makes it only for a log, or for each name."""
        for report in analysis.reports.values():
            steps = set(_steps(report.body))
            found = list(_reductions(analysis, report, steps))
            yield from found
            yield from _items(analysis, report, steps, {id(each.node) for each in found})


def _reductions(analysis: Analysis, report: FunctionReport, steps: set[int]) -> Iterator[Report]:
    for event in report.events:
        if event.kind != "collective" or not operation_of(event):
            continue
        in_step = _is_in_each_step(event, steps)
        names = next(filter(_is_over_names, event.guards), None)
        if in_step and event.number in report.shown - report.read:
            message = f"every training step waits for all ranks in this {event.label}, whose result is only logged"
            yield Report(event.node, f"{message}: {_INSTEAD}")
        elif names is not None and not event.has_own_group and _is_number(report, event):
            message = f"one {event.label} for each name, though one of all values together takes as long: {_INSTEAD}"
            condition = None if in_step else Condition("data", "if this runs every step")
            yield Report(event.node, message, (of_guard(analysis, names),), condition)


def _items(analysis: Analysis, report: FunctionReport, steps: set[int], told: set[int]) -> Iterator[Report]:
    """The first wait for the device in each training step that is there to show a number, of none that is told of."""
    shows = (event.node for event in report.events if event.kind == "show" and _is_in_each_step(event, steps))
    shown = {id(each) for node in shows for each in ast.walk(node)}
    for event in report.events:
        if event.kind == "item" and id(event.node) in shown:
            if told.isdisjoint(map(id, ast.walk(event.node))):
                text = analysis.index.text_of(event.node)
                message = f"every training step waits for the device to show `{text}`: {_INSTEAD}"
                yield Report(event.node, message, (), _IS_SHORT)
            return


def _steps(body: tuple[Node, ...]) -> Iterator[int]:
    """The loops around a backward pass: ids of what they go over."""
    for node in body:
        if isinstance(node, Loop) and _has_backward(node):
            yield id(getattr(node.node, "iter", getattr(node.node, "test", None)))
        for inner in bodies(node):
            yield from _steps(inner)


def _has_backward(node: Node) -> bool:
    if isinstance(node, Step):
        return node.label == "backward"
    return any(_has_backward(each) for inner in bodies(node) for each in inner)


def _is_in_each_step(event: Event, steps: set[int]) -> bool:
    """True if no test stands between an event and the loop of the steps."""
    for guard in reversed(event.guards):
        if id(guard.node) in steps:
            return True
        if guard.kind not in _PASSED and guard.test.formula != TRUE:
            return False
    return event.function.is_method and event.function.name == "training_step"


def _is_over_names(guard: Guard) -> bool:
    """True if a loop goes over the names of a dict that has a name itself."""
    node = guard.node
    if guard.kind != "for" or not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id in ("sorted", "list") and node.args:
        node = node.args[0]
    method = node.func if isinstance(node, ast.Call) else None
    if not isinstance(method, ast.Attribute) or method.attr not in ("items", "keys"):
        return False
    return isinstance(method.value, ast.Name | ast.Attribute)


def _is_number(report: FunctionReport, event: Event) -> bool:
    """True if ``item()`` is called on a result."""
    return any(each.kind == "item" and event.number in each.receiver.sources for each in report.events)

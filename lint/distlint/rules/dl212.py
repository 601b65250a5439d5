"""DL212."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.arguments import operation_of, subject_of
from distlint.analysis.events import FunctionReport
from distlint.analysis.formula import SAME
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.syntax import dotted
from distlint.tracing import is_to_fail

# What waits for all that was begun.
_WAITS = frozenset({"barrier", "coalescing_manager", "_coalescing_manager", "synchronize", "wait_stream"})


_DIFFERENT = Condition("data", "if ranks hold different values there")


class ReductionLost(Rule):
    """The result of a reduction is never read: what is logged or returned is this rank's own value.

    A reduction either changes its argument in place (``torch.distributed.all_reduce``, ``fabric.all_reduce``) or
    returns something new (``accelerator.reduce``, ``accelerator.gather``, ``self.all_gather``). If one is taken for
    the other, every rank pays for the call and goes on with its own number:

        total = torch.tensor(correct / seen, device=device)
        dist.all_reduce(total)
        total /= dist.get_world_size()      # 0.71, the accuracy of all ranks
        return correct / seen               # 0.68 on rank 0, 0.74 on rank 1

    How to fix: use the result: return or log the tensor that was reduced in place, or give the result of a call that
    returns something new a name and use that one. A tensor that is made in the call itself
    (``dist.all_reduce(loss.mean())``) needs a name first.

    The rule reports a collective on a temporary tensor, a result that is thrown away, a result or a new tensor that
    only its own updates read, and ``async_op=True`` where nothing keeps the handle that could be waited for.

    For review: a value that is not known to be this rank's own.

    Silent: results that anything may read: a parameter changed in place, an element of a list, an attribute, a name
    that an inner function knows; tensors of constants or random numbers, which warm up or test the connection.

    When to ignore: the collective is only there to make ranks wait for each other; ``barrier`` says so.
    """

    code, name, group = "DL212", "reduction-lost", "wrong-value"
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather", b"async_op"))
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist

def evaluate(model, loader, device):
    correct, seen = 0, 0
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum().item()
        seen += len(labels)
    accuracy = torch.tensor(correct / seen, device=device)
    dist.all_reduce(accuracy)
    accuracy /= dist.get_world_size()
    return correct / seen
""",
            {10: "nothing reads"},
        ),
        Example(
            """\
from accelerate import Accelerator

def validate(accelerator: Accelerator, model, loader):
    losses = []
    for batch in loader:
        losses.append(model(**batch).loss)
    total = sum(losses)
    accelerator.reduce(total, reduction="sum")
    accelerator.log({"validation loss": total})
""",
            {8: "returns"},
        ),
        Example(
            """\
import torch.distributed as dist
import torch.nn.functional as F

def step(model, batch, target):
    losses = F.mse_loss(model(batch), target, reduction="none")
    dist.all_reduce(losses.mean())
    return losses.mean()
""",
            {6: "temporary"},
        ),
        Example(
            """\
import torch.distributed as dist

def average(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient, async_op=True)
        gradient.div_(dist.get_world_size())
""",
            {5: "only begun"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
from accelerate import Accelerator

def mean_of_ranks(value):
    dist.all_reduce(value)
    value /= dist.get_world_size()

def evaluate(accelerator: Accelerator, model, loader, device):
    dist.all_reduce(torch.zeros(1, device=device))
    total = torch.zeros((), device=device)
    for batch in loader:
        total += model(**batch).loss.detach()
    mean_of_ranks(total)
    seen = torch.tensor(len(loader), device=device)
    dist.all_reduce(seen)
    everything = accelerator.gather(total)
    print(everything.mean())
    return total / seen
""",
        """\
import lightning as L
import torch

class Module(L.LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.net(batch).mean()
        losses = self.all_gather(loss)
        self.log("loss", losses.mean(), rank_zero_only=True)
        return {"losses": self.all_gather(loss.detach())}
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every reduction or gather whether anything can read its result."""
        for report in analysis.reports.values():
            for event in report.events:
                if event.kind != "collective" or is_to_fail(event):
                    continue
                is_joined = operation_of(event) and _tells_something(event)
                never_waited_for = _never_waited_for(event)
                message = never_waited_for or (_lost(report, event) if is_joined else "")
                if message:
                    is_certain = never_waited_for or subject_of(event).is_local
                    yield Report(event.node, message, condition=None if is_certain else _DIFFERENT)


def _never_waited_for(event: Event) -> str:
    """What to say of a collective that is only begun, if nothing can wait for its end, or ""."""
    begun = event.options.get("async_op")
    if begun is None or begun.constant is not True or not event.is_dropped:
        return ""
    called = (each.func for each in ast.walk(event.function.node) if isinstance(each, ast.Call))
    if any(dotted(each).rpartition(".")[2] in _WAITS for each in called):
        return ""
    return (
        f"this {event.label} is only begun (async_op=True), and what it returns to wait for its end is thrown away: "
        "what follows may read the tensor before the other ranks' values are in it"
    )


def _tells_something(event: Event) -> bool:
    subject = subject_of(event)
    if subject.varies == SAME and subject.reduced:
        return False
    return subject.family not in ("made", "none") and subject.constant is None and not subject.is_rank


def _lost(report: FunctionReport, event: Event) -> str:
    """What to say of a reduction whose result is lost, or ""."""
    wrong = "each rank goes on with its own value"
    if event.is_lost:
        return f"this {event.label} changes a temporary tensor in place, which nothing can read afterwards: {wrong}"
    if event.is_owned and report.is_unread(event):
        return f"nothing reads the tensor that this {event.label} changes in place: {wrong}"
    is_new = not event.effect.changes and event.effect.returns in ("same", "gathered") and "dst" not in event.options
    if is_new and (event.is_dropped or report.is_unread(event)):
        return f"this {event.label} returns its result, and nothing reads that: {wrong}"
    return ""

"""DL213."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Value
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.syntax import Located

_IF_MEAN = Condition("data", "if it is a mean on each rank")
_IF_UNEQUAL = Condition("data", "if counts differ between ranks")
_MEANS = ("mean", "mean?", "local mean")


class WrongNormalisation(Rule):
    """A sum over ranks of what is a mean on each rank, or a mean over ranks that hold different numbers of tokens.

    ``all_reduce`` and ``accelerator.reduce`` sum if nothing else is said. The sum of the ranks' means is the mean
    times the number of ranks:

        loss = F.cross_entropy(model(x), y)     # a mean over this rank's batch: about 2.3 on each rank
        dist.all_reduce(loss)
        print(loss.item())                      # 18.4 on 8 ranks

    And the mean of the ranks' means is not the mean of all tokens where each rank divides by a count of its own: with
    10 tokens on one rank and 1000 on the other, a token of the first weighs a hundred times as much. DDP and FSDP
    take that mean of gradients, too.

    How to fix: reduce with ``op=ReduceOp.AVG`` or ``reduction="mean"``, or divide by the number of ranks. Where counts
    differ, reduce the sum and the count, and divide after that; for gradients, divide this rank's sum by the count of
    all ranks, and multiply by the number of ranks.

    The rule follows the reduced value to where it is logged or printed, and the loss to ``backward``. It says "if"
    where the code does not show what the loss is, or whether counts differ.

    Silent: a value that is divided by anything on its way, before or after the reduction, and one that is passed to
    functions that cannot be seen.

    When to ignore: a sum over ranks is what the log is meant to show; all batches have the same number of tokens.
    """

    code, name, group = "DL213", "wrong-normalisation", "wrong-value"
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather", b"backward", b"training_step", b"compute_loss"))
    bad = (
        Example(
            """\
import torch.distributed as dist
import torch.nn.functional as F
import wandb

def train(model, loader, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        wandb.log({"loss": shown.item()})
""",
            {11: "times the number of ranks"},
        ),
        Example(
            """\
from accelerate import Accelerator

def validate(accelerator: Accelerator, model, criterion, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        accelerator.print(f"loss {accelerator.reduce(loss):.3f}")
""",
            {6: "if it is a mean"},
        ),
        Example(
            """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader):
    for batch in loader:
        losses = F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")
        loss = (losses * batch["mask"]).sum() / batch["mask"].sum()
        accelerator.backward(loss)
""",
            {8: "its own count"},
        ),
    )
    good = (
        """\
import torch.distributed as dist
import torch.nn.functional as F
import wandb

def mean_of(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()

def train(model, loader, optimizer, world_size):
    for x, y in loader:
        losses = F.cross_entropy(model(x), y, reduction="none")
        count = (y != -100).sum()
        dist.all_reduce(count)
        loss = losses.sum() * world_size / count
        loss.backward()
        optimizer.step()
        total = losses.detach().sum()
        dist.all_reduce(total)
        largest = losses.mean().detach()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        averaged = losses.mean().detach()
        dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
        wandb.log({"loss": mean_of(losses.mean().detach()), "total": total, "largest": largest, "averaged": averaged})
""",
        """\
from accelerate import Accelerator

def validate(accelerator: Accelerator, model, loader):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.log({"loss": accelerator.reduce(loss, "mean"), "gathered": accelerator.gather(loss).mean()})
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of what is logged and of losses how they were joined over ranks."""
        reported: set[int] = set()
        shown = (_joined(each, event, analysis) for event in analysis.events("show", "log") for each in _shown(event))
        losses = (_unequal(loss, node, "the gradients") for _, node, loss in analysis.losses())
        for found in (*shown, *losses):
            if found is not None and id(found.node) not in reported:
                reported.add(id(found.node))
                yield found


def _shown(event: Event) -> Iterator[Value]:
    pending = [*event.args, *event.options.values()]
    while pending:
        value = pending.pop()
        yield value
        pending += value.elements


def _joined(value: Value, event: Event, analysis: Analysis) -> Report | None:
    """What to say of a value that is shown."""
    node = _collective(value, event, analysis)
    if value.reduced == "sum" and value.scale in _MEANS and not value.divided:
        message = (
            "this is a sum over ranks of a mean on each rank, and is not divided: the mean times the number of ranks"
        )
        trace = ((analysis.index.path, event.node.lineno, "shown", analysis.index.text_of(event.node)),)
        return Report(node, message, trace, _IF_MEAN)
    return _unequal(value, node, "the results") if value.reduced == "mean" else None


def _unequal(value: Value, node: Located, what: str) -> Report | None:
    if value.scale != "local mean":
        return None
    message = (
        f"each rank divides by its own count, and {what} are averaged over ranks: a token of a rank with few counts "
        "more than one of a rank with many"
    )
    return Report(node, message, (), _IF_UNEQUAL)


def _collective(value: Value, event: Event, analysis: Analysis) -> Located:
    events = analysis.reports[event.function].events
    return next((each.node for each in reversed(events) if each.number in value.sources), event.node)

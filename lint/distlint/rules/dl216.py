"""DL216."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.arguments import operation_of, subject_of
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.nodes import within
from distlint.syntax import dotted

_NOT_RESET = Condition("data", "if it is not set back before the next turn")


class TotalReducedAgain(Rule):
    """A running total is summed over ranks each turn, and goes on from that sum: earlier turns count again and again.

    After the first turn every rank holds the sum of all. It adds its next part to that and sums over ranks once more,
    so that the first part now counts once for each rank:

        for batch in loader:
            correct += hits(batch)
            dist.all_reduce(correct)    # 2 ranks, 1 hit each turn: 2, 6, 14, … instead of 2, 4, 6, …

    How to fix: add up on each rank, and reduce once, after the loop; or reduce a copy (``total = correct.clone()``),
    or this turn's part before it is added.

    For review: a total that the loop sets back under some test.

    Silent: a total that is set back in the loop, divided, or reduced by mean, maximum or minimum, which may be done
    again; a reduced copy; names that are no totals, that is, nothing is added to them.

    When to ignore: the loop makes one turn.
    """

    code, name, group = "DL216", "total-reduced-again", "wrong-value"
    tokens = (COLLECTIVE_TOKENS, (b"reduce",), (b"for", b"while"))
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist

def evaluate(model, loader, device):
    correct = torch.zeros(1, device=device)
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum()
        dist.all_reduce(correct)
    return correct / len(loader.dataset)
""",
            {8: "this all_reduce"},
        ),
        Example(
            """\
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader, every):
    tokens = 0
    for step, batch in enumerate(loader):
        accelerator.backward(model(**batch).loss)
        tokens = tokens + batch["attention_mask"].sum()
        if step % every == 0:
            tokens = accelerator.reduce(tokens, reduction="sum")
            accelerator.log({"tokens": tokens.item()}, step=step)
""",
            {9: "this reduce"},
        ),
        Example(
            """\
import torch.distributed as dist

def train(model, loader, every, at_once):
    tokens = 0
    for step, batch in enumerate(loader):
        tokens += (batch["labels"] >= 0).sum()
        if at_once:
            dist.all_reduce(tokens)
        model(batch).backward()
        if step % every == 0:
            print(tokens)
            tokens = 0
""",
            {8: "if it is not set back before the next turn"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist

def evaluate(model, loader, device, every):
    correct = torch.zeros(1, device=device)
    recent = torch.zeros(1, device=device)
    mean = torch.zeros(1, device=device)
    for step, (images, labels) in enumerate(loader):
        hits = (model(images).argmax(1) == labels).sum()
        correct += hits
        recent += hits
        mean += hits
        total = correct.clone()
        dist.all_reduce(total)
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if step % every == 0:
            dist.all_reduce(recent)
            print(total, mean, recent)
            recent.zero_()
    dist.all_reduce(correct)
    return correct
""",
        """\
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader):
    total = 0
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        total += accelerator.reduce(loss.detach())
    return total / len(loader)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every sum over ranks whether what it sums comes from what it gave in an earlier turn."""
        for event in analysis.events("collective"):
            subject = subject_of(event)
            if operation_of(event) != "sum" or event.number not in subject.sources or subject.divided:
                continue
            node = event.argument_node(0, "tensor")
            name = node.id if isinstance(node, ast.Name) else ""
            if name and _is_total(event, name):
                message = (
                    f"this {event.label} sums `{name}` over ranks, which goes on from the sum of the turn before: "
                    "earlier turns count several times"
                )
                yield Report(event.node, message, condition=_NOT_RESET if _is_reset(event, name) else None)


def _is_reset(event: Event, name: str) -> bool:
    """True if a loop of the function sets a name to a number, though not on this way."""
    loops = within(event.function.node, (ast.For, ast.While))
    assigned = (node for loop in loops for node in within(loop, ast.Assign))
    numbers = (node.targets for node in assigned if isinstance(node.value, ast.Constant))
    return any(dotted(each) == name for targets in numbers for each in targets)


def _is_total(event: Event, name: str) -> bool:
    """True if the function adds something to a name."""
    for node in ast.walk(event.function.node):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            parts: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            parts = [node.targets[0], node.value.left]
        else:
            continue
        if all(dotted(part) == name for part in parts):
            return True
    return False

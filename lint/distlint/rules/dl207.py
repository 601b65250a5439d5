"""DL207."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from distlint.analysis import Analysis, Event
from distlint.analysis.arguments import operation_of
from distlint.analysis.formula import SAME
from distlint.analysis.value import dtype_of
from distlint.concrete import ConcreteTree, argument
from distlint.model import Change, Example, Repair, Report, Rule

_MESSAGE = "{} holds integers, so its mean over ranks loses the fraction or raises: make it a float tensor first"


class IntegerMean(Rule):
    """A mean over ranks of an integer tensor: the fraction is lost, or the call raises.

    The tensor that is reduced keeps its type. With integers the mean is cut to a whole number, or refused:

        rank 0   torch.tensor(3)
        rank 1   torch.tensor(4)
        mean     3, not 3.5   (or RuntimeError: result type Float can't be cast to Long; NCCL divides integers)

    How to fix: reduce ``tensor.float()``. ``--fix`` does so where the value alone is passed; where the collective
    writes into the tensor (``torch.distributed.all_reduce``), make it a float when it is made.

    Silent: sums of counts, tensors whose type is not seen, ``self.log`` (it converts), a constant (its mean is itself).

    When to ignore: never; a whole number is wanted at most after the mean.
    """

    code, name, group = "DL207", "integer-mean", "wrong value"
    tokens = (
        (b"reduce",),
        (b"AVG", b"fabric", b"Fabric", b"Lite", b"strategy", b"ccelerat", b"training_type_plugin", b"world_size"),
    )
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.fabric import Fabric

def mean_of_counts(hits, accelerator: Accelerator, fabric: Fabric):
    count = torch.tensor(len(hits), device="cpu")
    dist.all_reduce(count, op=dist.ReduceOp.AVG)
    right = (hits == 1).sum()
    right = accelerator.reduce(right, reduction="mean")
    steps = fabric.all_reduce(torch.tensor([len(hits), 4]), reduce_op="mean")
    return count, right, steps

def by_hand(hits, world_size):
    count = torch.zeros(1, dtype=torch.long)
    dist.all_reduce(count)
    count //= world_size
    return count
""",
            {8: "integers", 10: "integers", 11: "integers", 17: "integers"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist

def mean_of_counts(hits, accelerator, fabric, world_size):
    count = torch.tensor(float(len(hits)))
    dist.all_reduce(count, op=dist.ReduceOp.AVG)
    total = torch.tensor(len(hits))
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    right = accelerator.reduce((hits == 1).float().mean(), reduction="mean")
    number = accelerator.reduce((hits == 1).sum(), reduction="sum")
    steps = fabric.all_reduce(torch.tensor([3.0, 4]), reduce_op="mean")
    loss = torch.zeros(1)
    dist.all_reduce(loss)
    loss /= world_size
    total_mean = total / world_size
    same = fabric.all_reduce(torch.tensor(1), reduce_op="mean")
    mask = torch.ones(3, dtype=torch.float32)
    dist.all_reduce(mask, op=dist.ReduceOp.AVG)
    return count, total_mean, right, number, steps, same
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every reduction to a mean, and every sum that is divided by the number of ranks."""
        for event in analysis.events("collective", "divide"):
            if event.kind == "divide":
                if dtype_of(event.args[0]) == "int":
                    yield Report(event.node, _MESSAGE.format(analysis.index.text_of(event.node)))
            elif operation_of(event) == "mean" and _is_integer(event):
                node = event.argument_node(0, "tensor")
                shown = analysis.index.text_of(node) if node is not None else "this"
                needs_place = event.is_dropped or (event.effect.changes and event.receiver.family != "fabric")
                yield Report(event.node, _MESSAGE.format(shown), repair=None if needs_place else _as_float)


def _is_integer(event: Event) -> bool:
    """Whether what is reduced holds integers, and not a constant: its mean is itself."""
    value, node = event.argument(0, "tensor"), event.argument_node(0, "tensor")
    if value is None or dtype_of(value) != "int":
        return False
    return not (isinstance(node, ast.Call) and value.varies == SAME)


def _as_float(tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    value = argument(call, 0, "tensor") if isinstance(call, cst.Call) else None
    if value is None:
        return None
    code = tree.source_at(value)
    is_whole = isinstance(value, cst.Name | cst.Attribute | cst.Call)
    return Repair(True, (Change(value, f"{code}.float()" if is_whole else f"({code}).float()"),))

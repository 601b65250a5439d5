"""DL207."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.collectives import receiver_kind
from distlint.facts.flow import reaching
from distlint.facts.metric_objects import receiver
from distlint.facts.rewrite import source_at
from distlint.facts.tensor_names import RESHAPES, SAME
from distlint.facts.tree import argument, keyword, positional, tail, text_of
from distlint.model import Change, Example, Hit, Repair, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_INTEGERS = frozenset({"int", "int8", "int16", "int32", "int64", "uint8", "long", "short"})
_FLOATS = frozenset({"float", "float16", "float32", "float64", "double", "half", "bfloat16"})
_COUNTS = frozenset(
    {"argmax", "argmin", "argsort", "bincount", "count_nonzero", "long", "int", "short", "LongTensor", "IntTensor"}
)
_KEEPS_TYPE = SAME | RESHAPES | {"sum"}
_MAKERS = frozenset({"torch.tensor", "torch.as_tensor"})
_FILLED = frozenset({"torch.zeros", "torch.ones", "torch.full", "torch.empty"})


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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge every reduction to a mean."""
        for call in facts.nodes(cst.Call):
            name = tail(call.func)
            if name not in ("all_reduce", "reduce") or not call.args:
                continue
            value = argument(call, 0, "tensor")
            if value is None or _is_constant(facts, value) or not _is_integer(facts, value):
                continue
            in_place = (facts.resolve(call.func) or "").startswith("torch.distributed.")
            if _is_mean(facts, call, in_place):
                repair = None if in_place else Repair(True, (Change(value, _as_float(facts, value)),))
                yield Hit(call, _MESSAGE.format(facts.code(value)), (), repair)
            elif in_place and isinstance(value, cst.Name):
                divided = _divided(facts, call, value)
                if divided is not None:
                    yield Hit(divided, _MESSAGE.format(value.value))


_MESSAGE = "{} holds integers, so its mean over ranks loses the fraction or raises: make it a float tensor first"


def _as_float(facts: ModuleFacts, value: cst.BaseExpression) -> str:
    code = source_at(facts, value)
    return f"{code}.float()" if isinstance(value, cst.Name | cst.Attribute | cst.Call) else f"({code}).float()"


def _is_mean(facts: ModuleFacts, call: cst.Call, in_place: bool) -> bool:
    if in_place:
        operation = argument(call, 1 if tail(call.func) == "all_reduce" else 2, "op")
        return tail(operation) == "AVG"
    kind = receiver_kind(facts, call.func.value) if isinstance(call.func, cst.Attribute) else None
    if kind == "accelerator":
        return text_of(argument(call, 1, "reduction")) == "mean"
    if kind not in ("fabric", "strategy"):
        return False
    given = keyword(call, "reduce_op")
    return text_of(given) in ("mean", "avg") or (given is None and len(positional(call)) == 1)


def _divided(facts: ModuleFacts, call: cst.Call, name: cst.Name) -> cst.CSTNode | None:
    """``x //= world_size`` or ``x /= world_size`` right after the sum, in the same block."""
    block = facts.parents.get(facts.statement(call))
    body = block.body if isinstance(block, cst.IndentedBlock | cst.Module) else ()
    for statement in body:
        for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if not isinstance(part, cst.AugAssign) or facts.order[part] < facts.order[call]:
                continue
            is_division = isinstance(part.operator, cst.DivideAssign | cst.FloorDivideAssign)
            is_ours = isinstance(part.target, cst.Name) and part.target.value == name.value
            if is_division and is_ours and "world_size" in facts.code(part.value):
                return part
    return None


def _is_constant(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """``torch.tensor(1)`` right where it is reduced: the same on every rank."""
    if not isinstance(value, cst.Call) or facts.resolve(value.func) not in _MAKERS or not value.args:
        return False
    return all(isinstance(part, cst.Integer) for part in _parts(value.args[0].value))


def _parts(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """A value's elements, and theirs; the value itself where it has none."""
    if not isinstance(value, cst.List | cst.Tuple):
        yield value
        return
    for element in value.elements:
        yield from _parts(element.value)


def _is_integer(facts: ModuleFacts, value: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a tensor is known to hold integers."""
    if depth > 5:
        return False
    if isinstance(value, cst.Name):
        found = reaching(facts, value)
        values = [each.value for each in found if not each.steps]
        return (
            bool(found)
            and len(values) == len(found)
            and all(each is not None and _is_integer(facts, each, depth + 1) for each in values)
        )
    if not isinstance(value, cst.Call):
        return False
    name, full, given = tail(value.func) or "", facts.resolve(value.func) or "", positional(value)
    dtype = keyword(value, "dtype")
    if dtype is not None or (name == "to" and given and tail(given[0]) in _INTEGERS | _FLOATS):
        return tail(dtype if dtype is not None else given[0]) in _INTEGERS
    if full in _MAKERS:
        return bool(given) and _is_whole(facts, given[0])
    if full in _FILLED:
        return full == "torch.full" and len(given) > 1 and _is_whole(facts, given[1])
    if name in _COUNTS:
        return True
    below = receiver(value)
    if name == "sum" and isinstance(below, cst.Comparison):
        return True
    return name in _KEEPS_TYPE and below is not None and not full and _is_integer(facts, below, depth + 1)


def _is_whole(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """Whether a Python value is made of integers."""
    if isinstance(value, cst.List | cst.Tuple):
        return bool(value.elements) and all(_is_whole(facts, element.value) for element in value.elements)
    if isinstance(value, cst.Call):
        return (facts.resolve(value.func) or "") in ("builtins.len", "builtins.int") or tail(value.func) == "numel"
    return isinstance(value, cst.Integer)

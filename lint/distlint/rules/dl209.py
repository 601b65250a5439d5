"""DL209."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.collectives import receiver_kind
from distlint.facts.flow import reaching
from distlint.facts.tree import positional, tail
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_REDUCTIONS = frozenset({"mean", "sum", "max", "min", "std", "var", "median", "nanmean"})
_GATHERERS = frozenset({"lightning", "fabric", "strategy"})


class MeanOfGatheredList(Rule):
    """A reduction of what ``all_gather`` made of a list: it fails, since a gathered list is a list.

    ``self.all_gather`` gathers every tensor of a collection and returns a collection of the same kind. A list of
    step outputs becomes a list of tensors of shape ``[world_size, ...]``, which ``torch.mean`` does not take:

        torch.mean(self.all_gather(self.outputs))
        TypeError: mean(): argument 'input' (position 1) must be Tensor, not list

    Averaging the entries one after the other is not the way out: batches of different sizes make that a mean
    of means.

    How to fix: make one tensor of this rank's outputs, then gather: ``self.all_gather(torch.cat(self.outputs))`` for
    equal lengths; gather sums and counts, or use a metric object, where ranks hold different numbers of examples.

    Silent: gathered tensors, lists that are put together first (``torch.stack``, ``torch.cat``), functions that are
    not torch's own.

    When to ignore: never, the call raises.
    """

    code, name, group = "DL209", "mean-of-gathered-list", "wrong value"
    tokens = ((b"all_gather",),)
    bad = (
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def test_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_test_epoch_end(self):
        mean = torch.mean(self.all_gather(self.outputs))
        gathered = self.all_gather(self.outputs)
        total = gathered.sum()
        return mean, total, torch.max(gathered)

    def validation_epoch_end(self, outputs):
        return torch.mean(self.all_gather(outputs))
""",
            {13: "list", 15: "list", 16: "list", 19: "list"},
        ),
        Example(
            """\
import torch
import torch.distributed as dist

def mean_of_all(value):
    parts = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return torch.mean(parts)

def mean_of_objects(value):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value)
    return parts.mean()
""",
            {7: "list", 12: "list"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []
        self.total = torch.zeros(())

    def on_test_epoch_end(self):
        mean = torch.mean(self.all_gather(torch.stack(self.outputs)))
        total = self.all_gather(self.total).sum()
        gathered = torch.cat(self.all_gather(self.outputs)).mean()
        each = sum(self.all_gather(self.outputs))
        best = max(self.all_gather(self.outputs))
        return mean, total, gathered, each, my_metric(self.all_gather(self.outputs))

def mean_of_all(value):
    parts = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    parts = torch.stack(parts)
    return torch.mean(parts)
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge every reduction of torch."""
        for call in facts.nodes(cst.Call):
            if tail(call.func) not in _REDUCTIONS:
                continue
            value = _reduced(facts, call)
            made = _gathered_list(facts, value) if value is not None else None
            if made is not None:
                message = (
                    f"what {tail(made.func)} makes of a list is a list, which {facts.code(call.func)} does not take: "
                    "make one tensor of it first (torch.cat), before it is gathered"
                )
                yield Hit(call, message, ((made, "gather", facts.code(made)),))


def _reduced(facts: ModuleFacts, call: cst.Call) -> cst.BaseExpression | None:
    """The tensor that a reduction is over."""
    full = facts.resolve(call.func) or ""
    if full.startswith("torch.") and full.count(".") == 1:
        return next(iter(positional(call)), None)
    is_method = isinstance(call.func, cst.Attribute) and not full
    return call.func.value if is_method and isinstance(call.func, cst.Attribute) else None


def _gathered_list(facts: ModuleFacts, value: cst.BaseExpression) -> cst.Call | None:
    """The call that gathered a list, when the value is its result."""
    if isinstance(value, cst.Name):
        found = reaching(facts, value)
        if len(found) != 1 or found[0].steps or found[0].value is None:
            return None
        return _filled(facts, value, found[0].value) or _gathered_list(facts, found[0].value)
    if not isinstance(value, cst.Call) or tail(value.func) != "all_gather" or not isinstance(value.func, cst.Attribute):
        return None
    if receiver_kind(facts, value.func.value) not in _GATHERERS:
        return None
    given = positional(value)
    return value if given and _is_list(facts, given[0]) else None


def _filled(facts: ModuleFacts, name: cst.Name, made: cst.BaseExpression) -> cst.Call | None:
    """``dist.all_gather(parts, x)`` before a use of the list ``parts``."""
    if not _is_list(facts, made):
        return None
    for call in facts.gathering:
        given = positional(call)
        if not given or facts.order[call] > facts.order[name] or facts.function_of(call) != facts.function_of(name):
            continue
        is_ours = isinstance(given[0], cst.Name) and given[0].value == name.value
        if is_ours and (facts.resolve(call.func) or "").startswith("torch.distributed."):
            return call
    return None


def _is_list(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.List | cst.ListComp | cst.Tuple):
        return True
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply):
        return isinstance(value.left, cst.List) or isinstance(value.right, cst.List)
    if isinstance(value, cst.Name):
        found = reaching(facts, value)
        if len(found) != 1 or found[0].steps:
            return False
        if isinstance(found[0].node, cst.Param):
            return _is_outputs(facts, found[0].node)
        return found[0].value is not None and _is_list(facts, found[0].value)
    name, owner = facts.self_attribute(value), facts.owner(value)
    if name is None:
        return False
    values = owner.values(name) if owner is not None else _snippet_values(facts, name)
    return bool(values) and all(isinstance(each, cst.List | cst.ListComp) for each in values)


def _snippet_values(facts: ModuleFacts, name: str) -> list[cst.BaseExpression]:
    """Everything assigned to ``self.<name>`` in a snippet that shows methods without their class."""
    return [
        node.value
        for node in facts.nodes(cst.Assign)
        if any(facts.self_attribute(target.target) == name for target in node.targets)
    ]


def _is_outputs(facts: ModuleFacts, param: cst.Param) -> bool:
    """The list of step outputs that the epoch ends of Lightning 1 are given."""
    function = facts.function_of(param)
    if function is None or not function.name.value.endswith("_epoch_end") or facts.class_of(function) is None:
        return False
    params = function.params.params
    return len(params) == 2 and params[1] is param

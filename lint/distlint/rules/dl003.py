"""DL003."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts
from distlint.facts.factories import Place, may_be_fresh
from distlint.facts.hosts import works_on_host
from distlint.facts.meeting import Meeting, meeting
from distlint.facts.placement import place
from distlint.facts.rewrite import source_at
from distlint.facts.submodules import registered_buffers
from distlint.facts.tensor_names import FACTORIES
from distlint.facts.tree import tail, walk, walk_scope
from distlint.model import Change, Example, Hit, Repair, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.sketch import Sketch

_OWN_MOVES = frozenset({"_apply", "cuda", "to"})


class TensorAttributeNotBuffer(Rule):
    """A tensor stored on a module in ``__init__`` that is no buffer: it stays behind when the module moves.

    ``module.to(device)`` moves parameters, buffers and submodules, and no other attribute. The tensor stays
    on the CPU of every process, and the first operation with it fails on a GPU:

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0
        and cpu!

    How to fix: ``self.register_buffer("mean", mean)``; with ``persistent=False`` checkpoints stay as they are.

    Silent: tensors of rank 0; tensors that are moved where they are used (``self.mean.to(x)``), that are
    assigned anew elsewhere, that are made of a tensor on the device that the module is given, that serve as an
    index alone, or whose partner is not known; modules that move
    them in ``to`` or ``_apply``; transforms, which work on the CPU in the loader.

    When to ignore: the module never leaves the CPU.
    """

    code, name, group = "DL003", "tensor-attribute-not-buffer", "portability"
    severity = Severity.WARNING
    tokens = ((b"torch",), (b"__init__",), tuple(sorted(name.encode() for name in FACTORIES)))
    bad = (
        Example(
            """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mean = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)
        self.steps = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.table = torch.eye(3)

    def forward(self, x):
        x = x - self.mean
        return self.attend(x, x.new_zeros(3))

    def attend(self, x: torch.Tensor, y: torch.Tensor):
        angles = x[:, None] * self.steps
        return torch.matmul(y, self.table) + angles
""",
            {7: "x - self.mean", 8: "x[:, None] * self.steps", 9: "torch.matmul"},
        ),
    )
    good = (
        """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = torch.tensor(0.5)
        self.order = torch.randperm(dim)
        self.later = torch.zeros(3)
        self.state = torch.zeros(3)
        self.widths = torch.linspace(0, 1, 3).tolist()
        self.hook = torch.zeros(3)
        self.cpu_table = torch.eye(3)

    def forward(self, x):
        self.state = torch.zeros_like(x)
        x = (x - self.mean) * self.weight * self.scale + self.state
        x = x[:, self.order] + self.later.to(x.device)
        names = self.cpu_table + torch.ones(3)
        return x, self.hook, [width * x for width in self.widths], names
""",
        """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(3)

    def _apply(self, fn):
        self.mean = fn(self.mean)
        return super()._apply(fn)

    def forward(self, x):
        return x - self.mean

class RandomShift(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = torch.arange(3)

    def forward(self, x):
        return x + self.offsets

class Plain:
    def __init__(self):
        self.offsets = torch.arange(3)

    def forward(self, x):
        return x + self.offsets
""",
    )

    def can_report(self, sketch: Sketch) -> bool:
        """Only where a tensor made without a device may be stored: at once, or from a name that it was given."""
        fresh = [call for call in sketch.calls if may_be_fresh(call)]
        if fresh and sketch.local:  # a class made in a function sees the names of that function
            return True
        return any(call.is_stored or "__init__" in call.functions or not call.functions for call in fresh)

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at what every module's ``__init__`` stores."""
        for owner in facts.classes.values():
            init = owner.methods.get("__init__")
            if init is None or "module" not in owner.kinds or works_on_host(facts, owner.name):
                continue
            if any(owner.method(name) is not None for name in _OWN_MOVES):
                continue
            for assign, attribute in _left_behind(facts, owner, init):
                met = _first_meeting(facts, owner, attribute)
                if met is not None:
                    yield _hit(facts, assign, attribute, met)


def _left_behind(facts: ModuleFacts, owner: ClassFacts, init: cst.FunctionDef) -> Iterator[tuple[cst.Assign, str]]:
    """Assignments of a fresh tensor to an attribute that nothing else assigns."""
    for node in walk_scope(init.body):
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            continue
        name = facts.self_attribute(node.targets[0].target)
        if name is None or len(owner.values(name)) != 1 or not _may_be_fresh(node.value):
            continue
        if place(facts, node.value) is Place.FRESH and name not in registered_buffers(facts, owner):
            yield node, name


def _may_be_fresh(value: cst.BaseExpression) -> bool:
    """A quick answer for most assignments."""
    return not isinstance(value, cst.BaseNumber | cst.BaseString) and not (
        isinstance(value, cst.Call) and tail(value.func) == "Parameter"
    )


def _first_meeting(facts: ModuleFacts, owner: ClassFacts, attribute: str) -> Meeting | None:
    for name, method in owner.methods.items():
        for node in walk(method.body) if name != "__init__" else ():
            if isinstance(node, cst.Attribute) and facts.self_attribute(node) == attribute:
                met = meeting(facts, node)
                if met is not None:
                    return met
    return None


def _hit(facts: ModuleFacts, assign: cst.Assign, attribute: str, met: Meeting) -> Hit:
    message = (
        f"self.{attribute} is no buffer and stays on the CPU when the module moves;"
        f" it meets the device in {met.text(facts)}: use register_buffer"
    )
    trace = ((met.node, "meets", facts.code(met.node)),)
    return Hit(assign, message, trace=trace, repair=_repair(facts, assign, attribute))


def _repair(facts: ModuleFacts, assign: cst.Assign, attribute: str) -> Repair | None:
    """A buffer that checkpoints do not hold, once the module itself is made."""
    init = facts.function_of(assign)
    calls = [node for node in walk_scope(init.body) if isinstance(node, cst.Call)] if init is not None else []
    ready = [call for call in calls if tail(call.func) == "__init__" and facts.order[call] < facts.order[assign]]
    if not ready:
        return None
    value = source_at(facts, assign.value)
    return Repair(True, (Change(assign, f'self.register_buffer("{attribute}", {value}, persistent=False)'),))

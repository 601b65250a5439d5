"""DL002."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import STEP_HOOKS
from distlint.facts.exports import is_export_file, is_under_export
from distlint.facts.factories import Place, may_be_fresh
from distlint.facts.hosts import has_no_accelerator, sets_device, works_on_host
from distlint.facts.meeting import Meeting, meeting
from distlint.facts.placement import makes_fresh, place
from distlint.facts.rewrite import source_at
from distlint.facts.tensor_names import FACTORIES
from distlint.facts.tree import tail
from distlint.model import Change, Example, Hit, Repair, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.sketch import Sketch

_FORWARD = STEP_HOOKS | {"forward"}


class TensorWithoutDevice(Rule):
    """A tensor made without a device in ``forward`` or a step that meets tensors of the module's device.

    ``torch.zeros(3)`` is on the CPU. On one CPU all tests pass; on a GPU the first batch fails:

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0
        and cpu!

    How to fix: make it where its partner is (``torch.zeros(3, device=x.device)``, ``x.new_zeros(3)``,
    ``torch.zeros_like(x)``), or once, as a buffer.

    Silent: tensors of rank 0, which mix with every device; indexes (``x[torch.randperm(n)]``); what is moved
    before it is used (``.to(x)``, ``.type_as(x)``, ``.to(self.device)``); tensors whose partner is not known; what is
    given to a loss or a library's object that is not known to have weights, and to a module that moves it itself or
    hands it to one; what a test leaves for the CPU (``x.cuda() if self.is_cuda() else x``); transforms and modules in
    folders of data sets, which work on the CPU in the loader, and in tests; files that set a default device; code for
    export, under ``if torch.jit.is_tracing()`` and its like, in files named after ONNX and in scripts that call its
    exporter.

    When to ignore: the module never leaves the CPU.
    """

    code, name, group = "DL002", "tensor-without-device", "portability"
    severity = Severity.WARNING
    tokens = ((b"torch",), (b"forward", b"_step"), tuple(sorted(name.encode() for name in FACTORIES)))
    bad = (
        Example(
            """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, x, lengths):
        padding = torch.zeros(x.size(0), 3)
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        x = torch.cat([x, padding], dim=1) + self.embed(positions)
        return x * torch.ones((1, x.shape[1]))
""",
            {10: "torch.cat", 11: "self.embed", 13: "x"},
        ),
        Example(
            """\
import torch
import lightning.pytorch as pl
import torch.nn.functional as F

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        weight = torch.tensor([1.0, 2.0])
        target = torch.full((x.shape[0],), 1.0).float()
        loss = F.mse_loss(self(x), target)
        return loss + (weight * y).sum()
""",
            {8: "weight * y", 9: "mse_loss"},
        ),
    )
    good = (
        """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, mask=None):
        steps = torch.arange(x.shape[1], device=x.device)
        keep = torch.ones(x.shape[1]).to(x)
        order = torch.randperm(x.shape[0])
        scale = torch.tensor(0.5)
        kind = torch.eye(3).type(x.type())
        half = torch.zeros(3, dtype=torch.half)
        half = half.to(x.device)
        if mask is None:
            mask = torch.ones(x.shape[1])
            if x.is_cuda:
                mask = mask.cuda()
        return (x[order] + steps) * keep * scale * mask + kind * half

    def configure(self, x):
        return x + torch.ones(3)
""",
        """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        table = torch.zeros(3, 3)
        for first, second in zip(y.tolist(), self(x).cpu().tolist()):
            table[first, second] += 1
        correct = torch.zeros(3) + torch.ones(3)
        x[:, 0] = torch.zeros(x.shape[0])
        widths = torch.linspace(0, 1, 4).tolist()
        return {"table": table, "correct": correct, "widths": widths}
""",
        """\
import torch
from torch import nn

class RandomCutmix(nn.Module):
    def forward(self, image):
        return image * torch.rand(image.shape)

def forward(x):
    return x + torch.zeros(3)
""",
        """\
import torch
from torch import nn

torch.set_default_device("cuda")

class Net(nn.Module):
    def forward(self, x):
        with torch.device(x.device):
            return x + torch.zeros(3)
""",
    )

    def can_report(self, sketch: Sketch) -> bool:
        """Only where ``forward`` or a step makes a tensor without a device."""
        return any(call.functions and call.functions[-1] in _FORWARD and may_be_fresh(call) for call in sketch.calls)

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Follow every tensor that ``forward`` or a step makes on the CPU."""
        for call in () if is_export_file(facts) else facts.nodes(cst.Call):
            if tail(call.func) not in FACTORIES or not _is_forward(facts, call) or not makes_fresh(facts, call):
                continue
            met = meeting(facts, call)
            if met is None or any(_is_elsewhere(facts, node) for node in (call, met.node)):
                continue
            if not sets_device(facts, call):
                trace = ((met.node, "meets", facts.code(met.node)),)
                yield Hit(call, _message(facts, met), trace=trace, repair=_repair(facts, call, met))


def _is_elsewhere(facts: ModuleFacts, node: cst.CSTNode) -> bool:
    """Whether a node is reached only by an export, or only without an accelerator."""
    return is_under_export(facts, node) or has_no_accelerator(facts, node)


def _message(facts: ModuleFacts, met: Meeting) -> str:
    if isinstance(met.node, cst.Call) and met.partner is met.node.func:
        return f"made on the CPU, meets the module's parameters in {met.text(facts)}: make it on the module's device"
    partner = facts.code(met.partner)
    return (
        f"made on the CPU, meets a tensor of the module's device in {met.text(facts)}: give it the device of {partner}"
    )


def _is_forward(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether the call stands in ``forward`` or a step of a module that a trainer or a user moves to a device."""
    function = facts.function_of(call)
    if function is None or function.name.value not in _FORWARD:
        return False
    owner = facts.class_of(function)
    return owner is not None and "module" in owner.kinds and not works_on_host(facts, owner.name)


def _repair(facts: ModuleFacts, call: cst.Call, met: Meeting) -> Repair | None:
    """``device=x.device``, where the partner is a parameter of the function and stays on the device."""
    partner = met.partner
    function = facts.function_of(call)
    if not isinstance(partner, cst.Name) or function is None or not call.args:
        return None
    bindings = facts.own_scope(function).bindings.get(partner.value, ())
    if not any(binding.kind == "param" for binding in bindings):
        return None
    others = [binding.value for binding in bindings if binding.kind != "param"]
    if any(place(facts, value) is not Place.DEVICE for value in others):
        return None
    last = call.args[-1]
    text = source_at(facts, last.with_changes(comma=cst.MaybeSentinel.DEFAULT), last).rstrip()
    return Repair(True, (Change(last, f"{text}, device={partner.value}.device"),))

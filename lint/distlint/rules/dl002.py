"""DL002."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst

from distlint.analysis import Analysis
from distlint.analysis.places import FACTORIES, Follower, Meeting
from distlint.analysis.registered import registered, tensors_given
from distlint.concrete import ConcreteTree
from distlint.model import Change, Condition, Example, Repair, Report, Rule, Severity
from distlint.nodes import names_set
from distlint.syntax import FunctionNode

_FAMILIES = ("module", "lightning_module")
_NOT_SEEN = Condition("devices", "if this module runs on an accelerator")


class TensorWithoutDevice(Rule):
    """A tensor made without a device in ``forward`` or a step that meets tensors of the module's device.

    ``torch.zeros(3)`` is on the CPU. On one CPU all tests pass; on a GPU the first batch fails:

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0
        and cpu!

    How to fix: make it where its partner is (``torch.zeros(3, device=x.device)``, ``x.new_zeros(3)``,
    ``torch.zeros_like(x)``), or once, as a buffer.

    Silent: tensors of rank 0, which mix with every device; indexes (``x[torch.randperm(n)]``); what is moved     before
    it is used (``.to(x)``, ``.type_as(x)``, ``.to(self.device)``), on one way through a test at least; the arms     of
    tests of the device (``if x.is_cuda:``); tensors whose partner is not known; what is given to functions and modules
    that are not torch's; blocks and files that set     a default device. A module that no trainer is seen to place is
    for review.

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
        Example(
            """\
import torch
from torch import nn

class Cutmix(nn.Module):
    def forward(self, image: torch.Tensor):
        return image * torch.rand(4, 3)
""",
            {6: "if this module runs on an accelerator"},
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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Follow every tensor that ``forward`` or a step makes on the CPU."""
        if "set_default_device" in analysis.index.source:
            return
        for function in analysis.index.all_functions:
            owner = function.owner
            if owner is None or not is_forward(analysis, function):
                continue
            tensors, modules = registered(analysis.index, owner)
            places = {**tensors, **tensors_given(analysis.index, function)}
            follower = Follower(analysis.index, function, places, modules)
            follower.run(function.node.body)
            is_placed = analysis.family(owner) == "lightning_module" or analysis.is_placed(owner)
            seen: set[ast.AST] = set()
            for met in follower.meetings:
                if isinstance(met.origin, ast.Call) and met.origin not in seen:
                    seen.add(met.origin)
                    yield _report(analysis, function, met, None if is_placed else _NOT_SEEN)


def is_forward(analysis: Analysis, function: FunctionNode) -> bool:
    """True for ``forward`` and the steps of modules."""
    is_named = function.name == "forward" or function.name.endswith("_step")
    return is_named and function.owner is not None and analysis.family(function.owner) in _FAMILIES


def _report(analysis: Analysis, function: FunctionNode, met: Meeting, condition: Condition | None) -> Report:
    text = " ".join(analysis.index.text_of(met.node).split())[:80]
    trace = ((analysis.index.path, met.node.lineno, "meets", text),)
    assert isinstance(met.origin, ast.Call)
    if met.partner is None:
        message = f"made on the CPU, meets the module's parameters in {text}: make it on the module's device"
        return Report(met.origin, message, trace, condition)
    partner = analysis.index.text_of(met.partner)
    message = f"made on the CPU, meets a tensor of the module's device in {text}: give it the device of {partner}"
    is_name = isinstance(met.partner, ast.Name) and partner in {each.arg for each in function.parameters}
    is_kept = is_name and partner not in names_set(function.node)
    return Report(met.origin, message, trace, condition, partial(_repair, partner) if is_kept else None)


def _repair(partner: str, tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """``device=x.device``, where the partner is a parameter of the function."""
    if not isinstance(call, cst.Call) or not call.args:
        return None
    last = call.args[-1]
    text = tree.source_at(last.with_changes(comma=cst.MaybeSentinel.DEFAULT), last).rstrip()
    return Repair(True, (Change(last, f"{text}, device={partner}.device"),))

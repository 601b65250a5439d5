"""DL001."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst

from distlint.analysis import Analysis, Event
from distlint.analysis.placing import (
    assigned_in,
    device_node,
    family_of,
    hard_coded,
    has_own_device,
    is_chosen,
    is_moved,
    is_seen_moved,
    method_around,
)
from distlint.concrete import ConcreteTree, keyword, positional, tail
from distlint.model import Change, Condition, Example, Repair, Report, Rule, Severity
from distlint.syntax import FunctionNode, dotted

_ELSEWHERE = Condition("devices", "if this code is placed on other devices")
_LEFT_BEHIND = (
    "self.device is still the CPU in __init__: the tensor stays there when the module moves; register it as a buffer"
)


class HardCodedDevice(Rule):
    """A device written into code that a trainer places: it breaks on every other device.

    The trainer moves modules and batches to the device of each process. ``.cuda()`` inside of them sends a
    tensor to the *current* CUDA device instead, fails where there is none, and puts every process of a node
    on device 0 where the index is written down:

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0
        and cuda:1!

    How to fix: leave the call out; what must follow a tensor goes ``.to(x.device)`` or ``.to(self.device)``;
    a tensor kept on a module is a buffer (``self.register_buffer("sigma", sigma)``). In ``__init__`` not even
    ``self.device`` helps: it is still the CPU, and the tensor stays behind when the module moves.

    For review, unless a trainer, Fabric or Accelerate is seen in the project to be given an object of the class, or of
    one that makes or extends it, and not for one device alone: elsewhere nobody may ever place it.

    Silent: plain classes and functions; a device that comes from a variable; a class's own ``cuda`` or ``to``; code
    that is reached where CUDA is asked for (``if x.is_cuda``, ``if use_cuda``), and in ``with
    torch.cuda.device_of(x)``; modules of a project that is launched from outside (``init_process_group``, Accelerate)
    and has no trainer that places them.

    When to ignore: code that cannot run anywhere but on one CUDA device.
    """

    code, name, group = "DL001", "hard-coded-device", "portability"
    severity = Severity.WARNING
    tokens = ((b"cuda", b".device"), (b"class", b"forward", b"_step"))
    bad = (
        Example(
            """\
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        x = x.cuda(0)
        y = x.to(0)
        return self.layer(y).to("cuda:1")
""",
            {5: "cuda", 6: "to(0)", 7: "cuda:1"},
        ),
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.bank = torch.rand(10, 2).to(self.device)
        self.scale = torch.ones(3, device=self.device)

    def training_step(self, batch, batch_idx):
        weight = torch.ones(3, device="cuda")
        device = torch.device("cuda")
        return (self(batch.to(device)) * weight).sum()
""",
            {7: "__init__", 8: "__init__", 11: "cuda", 13: "cuda"},
        ),
        Example(
            """\
def forward(self, x):
    x = x.cuda(0)
    return x
""",
            {2: "cuda"},
        ),
        Example(
            """\
import lightning as L
import torch
from torch import nn

class Loss(nn.Module):
    def forward(self, x, y):
        weight = torch.full_like(y, 0.5).cuda()
        return (weight * (x - y) ** 2).mean()

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.loss = Loss()

def main(loader):
    L.Trainer(devices=4).fit(Model(), loader)
""",
            {7: "cuda"},
        ),
    )
    good = (
        """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.rand(10, 2))
        self.encoder = build().to(self.device)
        self.rewards = [torch.tensor(0.0, device=self.device)]

    def training_step(self, batch, batch_idx):
        weight = torch.ones(3, device=batch.device)
        return (self(batch.to(self.device)) * weight).sum()

    def on_fit_start(self):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.reference = self.reference.cuda(self.bank.get_device())

    def cuda(self, device=None):
        self.helper.cuda()
        return super().cuda(device)
""",
        """\
class Evaluator:
    def __init__(self, model, device):
        self.model = model.cuda()
        self.device = device
        self.reference = load().to(self.device)

def main(model):
    model.to("cuda")
""",
        """\
from torch import nn

class Net(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device
        self.mean = load().to(self.device)

    def forward(self, x):
        mask = self.mask
        if x.is_cuda:
            mask = mask.cuda()
        return x * mask
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every call that is given a device whether it is written down in what a trainer moves."""
        for event in analysis.events("place"):
            if not is_moved(analysis, event.function):
                continue
            method, found = method_around(event.function), hard_coded(event)
            condition = None if is_seen_moved(analysis, method.owner) and analysis.devices != "one" else _ELSEWHERE
            if found and not is_chosen(analysis.index, event):
                message = f"{found} ties this code to one device: follow a tensor or self.device instead"
                device = _own_device(analysis, method)
                repair = partial(_repair, device) if device else None
                yield Report(event.node, message, condition=condition, repair=repair)
            elif _is_left_behind(analysis, method, event):
                yield Report(event.node, _LEFT_BEHIND, condition=condition)


def _is_left_behind(analysis: Analysis, method: FunctionNode, event: Event) -> bool:
    """Whether ``__init__`` of a LightningModule keeps a new tensor on ``self.device``."""
    owner, device, call = method.owner, device_node(event), event.node
    if owner is None or device is None or not isinstance(call, ast.Call) or method.name != "__init__":
        return False
    if dotted(device) != "self.device" or family_of(analysis, owner) != "lightning_module":
        return False
    mover = call.func if isinstance(call.func, ast.Attribute) and call.func.attr == "to" else None
    made = call if mover is None else mover.value
    full = analysis.index.qualify(made.func, event.function) if isinstance(made, ast.Call) else ""
    is_tensor = full.startswith("torch.") and full.rpartition(".")[2].islower()
    kept = assigned_in(method, to_self=mover is None)
    return is_tensor and not has_own_device(analysis, owner) and call in kept


def _own_device(analysis: Analysis, method: FunctionNode) -> str:
    """What the device of the module is called in a method that runs after it was placed, or ""."""
    owner, names = method.owner, [each.arg for each in method.parameters]
    if owner is None or not names or method.name in ("__init__", "setup", "configure_model"):
        return ""
    family = family_of(analysis, owner)
    if family == "callback":
        return "pl_module.device" if "pl_module" in names else ""
    return f"{names[0]}.device" if family == "lightning_module" and not has_own_device(analysis, owner) else ""


def _repair(device: str, tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """The device of the module instead of the one that is written down."""
    if not isinstance(call, cst.Call):
        return None
    name = tail(call.func)
    given = keyword(call, "device") or (next(iter(positional(call)), None) if name in ("cuda", "to") else None)
    if name != "cuda":
        return Repair(False, (Change(given, device),)) if given is not None else None
    if not isinstance(call.func, cst.Attribute):
        return None
    rest = [tree.code(arg).rstrip(", ") for arg in call.args if arg.value is not given]
    return Repair(False, (Change(call, f"{tree.source_at(call.func.value)}.to({', '.join([device, *rest])})"),))

"""DL001."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import STEP_HOOKS, ClassFacts
from distlint.facts.devices import hard_coded, is_chosen
from distlint.facts.hosts import runs_on_cuda_alone
from distlint.facts.rewrite import source_at
from distlint.facts.trainers import ONE
from distlint.facts.tree import keyword, positional, tail, walk
from distlint.model import Change, Condition, Example, Hit, Repair, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.sketch import Sketch

_PLACED = frozenset({"module", "datamodule", "callback", "lite"})
_DEVICE_METHODS = frozenset({"cuda", "to", "transfer_batch_to_device", "_apply"})
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
    that runs only where CUDA is used (``if x.is_cuda``, ``if use_cuda``, files built on Megatron, Transformer
    Engine, spconv, pointops, MinkowskiEngine or gsplat), after the way out of machines without it (``if not
    torch.cuda.is_available(): raise``) and in ``with torch.cuda.device_of(x)``; modules without parameters
    (``nn.Softmax(1).cuda()``); a plain module that calls ``backward()`` itself, which no trainer places, or one of
    a project with trainers or wrappers, where no file that imports it names any.

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
        """\
from torch import nn

class Student(nn.Module):
    def forward_backward(self, batch):
        loss = self.loss(batch["image"].cuda(non_blocking=True))
        loss.backward()
        return loss
""",
        """\
import torch
from megatron.core import parallel_state
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        if parallel_state.is_pipeline_last_stage():
            return self.loss(batch)
        return torch.tensor(0.0).cuda()
""",
    )

    def can_report(self, sketch: Sketch) -> bool:
        """Only where something is called ``cuda``, moved to a number, or a text names a device."""
        if sketch.reads_device_in_init or any(text.startswith("cuda") for text in sketch.strings):
            return True
        return any(call.name == "cuda" or (call.name == "to" and _takes_number(call.node)) for call in sketch.calls)

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at every call that names a device."""
        is_for_cuda = runs_on_cuda_alone(facts)
        for call in () if is_for_cuda else facts.nodes(cst.Call):
            found = hard_coded(facts, call)
            if found is None or not _is_placed(facts, call) or is_chosen(facts, call):
                continue
            message = f"{found} ties this code to one device: follow a tensor or self.device instead"
            yield Hit(call, message, repair=_repair(facts, call), condition=_condition(facts, call))
        for call in facts.nodes(cst.Call):
            if _own_device_in_init(facts, call):
                yield Hit(call, _LEFT_BEHIND, condition=_condition(facts, call))


def _condition(facts: ModuleFacts, call: cst.Call) -> Condition | None:
    """None where a trainer for several devices, or Fabric, is seen to be given an object of this class."""
    owner = facts.owner(call)
    is_seen = owner is not None and ("lite" in owner.kinds or facts.full_name(owner) in facts.project.placed)
    return None if is_seen and facts.project.devices != {ONE} else _ELSEWHERE


def _takes_number(call: ast.Call) -> bool:
    return any(isinstance(value, ast.Constant) and isinstance(value.value, int) for value in call.args)


def _is_placed(facts: ModuleFacts, call: cst.Call) -> bool:
    method = facts.method_of(call)
    if method is None:
        return _is_loose_hook(facts.function_of(call))
    owner = facts.class_of(method)
    if owner is None or method.name.value in _DEVICE_METHODS or _trains_itself(owner):
        return False
    return bool(owner.kinds & _PLACED) and (facts.project.is_placed or "lightning" in owner.kinds)


def _trains_itself(owner: ClassFacts) -> bool:
    """A plain module that makes its own backward pass: it places its batches as well."""
    if "lightning" in owner.kinds or "module" not in owner.kinds:
        return False
    return any(isinstance(node, cst.Call) and tail(node.func) == "backward" for node in walk(owner.node))


def _is_loose_hook(function: cst.FunctionDef | None) -> bool:
    """``def forward(self, x)`` shown without its class, as documentation does."""
    if function is None or function.name.value not in STEP_HOOKS | {"forward"}:
        return False
    params = function.params.params
    return bool(params) and params[0].name.value == "self"


def _own_device_in_init(facts: ModuleFacts, call: cst.Call) -> bool:
    """A new tensor put on ``self.device`` in ``__init__`` of a LightningModule without an own attribute."""
    method = facts.function_of(call)
    owner = facts.class_of(method) if method is not None else None
    if method is None or owner is None or method.name.value != "__init__" or "lightning" not in owner.kinds:
        return False
    if owner.values("device") or owner.method("device") is not None:
        return False
    if tail(call.func) != "to" or not isinstance(call.func, cst.Attribute):
        return facts.self_attribute(keyword(call, "device")) == "device" and _is_kept(facts, call)
    given = [keyword(call, "device"), *positional(call)[:1]]
    return any(facts.self_attribute(value) == "device" for value in given) and _makes_tensor(facts, call.func.value)


def _makes_tensor(facts: ModuleFacts, node: cst.BaseExpression) -> bool:
    """A call of torch's functions, as opposed to a module, which moves with its parent."""
    full = facts.resolve(node.func) if isinstance(node, cst.Call) else None
    return full is not None and full.startswith("torch.") and full.rpartition(".")[2].islower()


def _is_kept(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a new tensor is stored on ``self`` as it is."""
    assign = facts.parents.get(call)
    if not isinstance(assign, cst.Assign) or not _makes_tensor(facts, call):
        return False
    return any(facts.self_attribute(target.target) is not None for target in assign.targets)


def _repair(facts: ModuleFacts, call: cst.Call) -> Repair | None:
    """The device of the module instead of the one that is written down, where the module has one."""
    device = _own_device(facts, call)
    if device is None:
        return None
    given = keyword(call, "device") or next(iter(positional(call)), None)
    if tail(call.func) not in ("cuda", "to"):
        given = keyword(call, "device")
        return None if given is None else Repair(False, (Change(given, device),))
    if not isinstance(call.func, cst.Attribute):
        return None
    if given is not None and tail(call.func) == "to":
        return Repair(False, (Change(given, device),))
    rest = (_argument(facts, arg) for arg in call.args if arg.value is not given)
    code = source_at(facts, call.func.value)
    return Repair(False, (Change(call, f"{code}.to({', '.join([device, *rest])})"),))


def _argument(facts: ModuleFacts, arg: cst.Arg) -> str:
    name = f"{arg.keyword.value}=" if arg.keyword is not None else arg.star
    return name + source_at(facts, arg.value)


def _own_device(facts: ModuleFacts, call: cst.Call) -> str | None:
    """``self.device`` in a LightningModule once it is placed; ``pl_module.device`` where a callback is given one."""
    method, owner = facts.method_of(call), facts.owner(call)
    if method is None or owner is None or method.name.value in ("__init__", "setup", "configure_model"):
        return None
    names = [param.name.value for param in method.params.params]
    if "callback" in owner.kinds:
        return "pl_module.device" if "pl_module" in names else None
    is_own = bool(owner.values("device")) or owner.method("device") is not None
    return f"{names[0]}.device" if "lightning" in owner.kinds and names and not is_own else None

"""A device written into code that a trainer places."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property

import libcst as cst

from distlint.collectives import is_about_world, receiver
from distlint.edits import Change
from distlint.facts import Facts
from distlint.guards import deciding, guards
from distlint.rules.base import Rule, has_lightning
from distlint.source import argument, dotted, keyword, last, object_of, parameters, self_attribute
from distlint.tensors import FACTORIES, hard_coded, has_dimensions, made_in

_ASKS = re.compile(r"cuda|gpu|device|accelerator|\bcpu", re.IGNORECASE)
_MOVERS = frozenset({"cuda", "to", "_apply", "cpu"})
_PLACING = frozenset({"setup", "setup_module", "setup_dataloaders", "backward"})
_STARTS = frozenset(
    {
        "torch.distributed.init_process_group",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp.FullyShardedDataParallel",
    }
)
_MOST_LINES = 8
_PLACED = frozenset({"lightning_module", "module", "metric"})
_STARTING = (b"process_group", b"Parallel", b"abric")
_STEP = "hard-coded CUDA fails on CPU and other devices: use self.device, which the trainer sets"
_INIT = (
    "in __init__ every rank puts this on the same GPU: leave the device out, the trainer moves it"
)
_FORWARD = "hard-coded CUDA fails on CPU and other devices: use an input's device, .to(x.device)"
_FABRIC = "hard-coded CUDA fails on CPU and other devices: use fabric.device, which Fabric sets"
_FIRST = "every rank of a node puts this on GPU 0: use the device of its local rank"
_EARLY = "self.device is the CPU in __init__, so this tensor stays there: use self.register_buffer"


class DL001(Rule):
    """A CUDA device is hard-coded, although each rank has a device of its own.

    The rule looks at LightningModules, at modules and metrics in projects with a Lightning trainer,
    at functions that use Fabric, and, for ``cuda:0`` alone, at functions that start DDP, FSDP or a
    process group. It is silent where another framework places devices, such as Accelerate, the
    Hugging Face Trainer, DeepSpeed, Ray Train and LightningLite.

    What goes wrong:

        on a CPU or an Apple GPU   AssertionError: Torch not compiled with CUDA enabled
        in __init__, on 4 GPUs     every rank puts a copy on cuda:0, which may run out of memory
        self.device in __init__    the tensor stays on the CPU when the module moves

    Why: the device of a process is known only when the trainer starts, after ``__init__`` has run.

    How to fix: leave the call out for batches, parameters and buffers, which the trainer moves.
    Make a new tensor on ``self.device`` or on the device of an input, ``x.device``. Keep a tensor
    as a buffer: ``self.register_buffer("sigma", sigma)``. With Fabric, use ``fabric.device``. In a
    program that starts its own processes, use ``torch.device("cuda", local_rank)``.

    When it is silent:

    - on other devices (``"mps"``, ``"cpu"``), and on devices in local variables or attributes;
      module-level constants are reported
    - under a condition on the device, such as ``if x.is_cuda`` or ``if use_gpu``
    - on CUDA without an index, outside of ``__init__``, in a file with more than eight lines that
      name CUDA: such a file is written for CUDA alone
    - in methods named ``to``, ``cuda``, ``cpu`` or ``_apply``
    - in ``__init__`` of a module that is not a LightningModule
    - in functions with ``move_to_device=False``
    - on ``cuda:0`` under a condition on the rank or the world size
    """

    name = "hard-coded-device"
    shown = (
        "bad_noise_in_training_step",
        "good_follows_self_device",
        "bad_submodule_in_init",
        "bad_all_ranks_on_the_first_gpu",
        "good_gpu_of_the_local_rank",
    )
    severity = "warning"
    tokens = ((b"cuda", b"self.device", b".to(0", b"device=0"),)

    @classmethod
    def can_matter(cls, source: bytes, facts: Facts) -> bool:
        """Only where a trainer places modules, or a program starts processes."""
        is_placed = facts.has_trainer or has_lightning(source, facts)
        starts = any(token in source for token in _STARTING)
        return (is_placed or starts) and super().can_matter(source, facts)

    def check(self) -> None:
        """Report each statement that names a device, and tensors made by an early self.device."""
        found: dict[tuple[cst.CSTNode, str], list[cst.Call]] = {}
        for call in self.source.nodes(cst.Call):
            device = hard_coded(self.source, call)
            said = self._said(call, device) if device is not None else ""
            if said:
                found.setdefault((self.source.statement(call), said), []).append(call)
        for (_, said), calls in found.items():
            self.report(calls[0], said, *self._changes(calls, said), safe=False)
        for method in self.methods_of("lightning_module"):
            if method.name.value == "__init__":
                self._look_early(method)

    def _said(self, call: cst.Call, device: str) -> str:
        """Return what is wrong with a device that a call names, or ``""``."""
        method, owner = self.source.method(call), self.source.class_of(call)
        function = self.source.function(call)
        if function is None or function.name.value in _MOVERS:
            return ""
        tests = list(deciding(self.source, call))
        if device == "cuda:0" and self._calls(function, _STARTS):
            is_told = any(is_about_world(self.source, test) for test in tests)
            return "" if is_told or any(guards(self.source, call)) else _FIRST
        if any(_ASKS.search(self.source.code(test)) for test in tests):
            return ""
        is_early = function.name.value == "__init__"
        if self._is_for_cuda and device == "cuda" and not is_early:
            return ""
        if owner is None or method is None or not owner.kinds & _PLACED:
            return _FABRIC if self._uses_fabric(function) else ""
        if parameters(method)[:1] != ["self"]:
            return ""
        is_init = method.name.value == "__init__"
        if "lightning_module" in owner.kinds:
            return _INIT if is_init else _STEP
        is_run = method.name.value in ("forward", "update", "compute") or any(
            self.source.calls(owner.node, f"self.{method.name.value}")
        )
        return _FORWARD if self.facts.has_trainer and is_run and not is_init else ""

    @cached_property
    def _is_for_cuda(self) -> bool:
        """Whether a file is written for CUDA alone: the current device is that of the rank then."""
        return sum("cuda" in line for line in self.source.text.lines) > _MOST_LINES

    def _calls(self, function: cst.FunctionDef, names: Collection[str]) -> bool:
        calls = self.source.below(function, cst.Call)
        return any(self.source.name(each.func) in names for each in calls)

    def _uses_fabric(self, function: cst.FunctionDef) -> bool:
        """Return whether Fabric places what a function makes."""
        if "move_to_device=False" in self.source.code(function).replace(" ", ""):
            return False
        return any(
            last(call.func) in _PLACING and receiver(self.source, owner) == "fabric"
            for call in self.source.below(function, cst.Call)
            if (owner := object_of(call)) is not None
        )

    def _changes(self, calls: list[cst.Call], said: str) -> list[Change]:
        """Return the changes by which a statement follows the module, where they are plain."""
        changes = [self._change(call, said) for call in calls]
        is_nested = any(self.source.is_within(b, a) for a in calls for b in calls if a is not b)
        return [] if is_nested else [each for each in changes if each is not None]

    def _change(self, call: cst.Call, said: str) -> Change | None:
        code, owner, method = self.source.module.code_for_node, object_of(call), last(call.func)
        is_method = owner is not None and method in ("cuda", "to")
        given = argument(call, 0, "device") if is_method else keyword(call, "device")
        if owner is not None and method == "cuda":
            if said == _INIT and made_in(self.source, owner) is None:
                return Change(call, code(owner))
            rest = [code(each).strip(", ") for each in call.args if each.value is not given]
            text = f"{code(owner)}.to({', '.join(['self.device', *rest])})"
            return Change(call, text) if said == _STEP else None
        return Change(given or call, "self.device") if said == _STEP else None

    def _look_early(self, init: cst.FunctionDef) -> None:
        """Report the tensors that ``__init__`` keeps on what self.device is too early."""
        owner = self.source.class_of(init)
        if owner is None or owner.defines("device") or "device" in owner.attributes:
            return
        for assign in self.source.own(init, cst.Assign):
            name = self_attribute(assign.targets[0].target)
            if len(assign.targets) > 1 or len(owner.attributes.get(name, [])) != 1:
                continue
            moved = re.search(rf"\bself\.{name}\.(to|cuda|type_as)\(", self.source.code(owner.node))
            if moved is None and self._is_early(assign.value):
                value = self.source.module.code_for_node(assign.value)
                buffer = f'self.register_buffer("{name}", {value}, persistent=False)'
                self.report(assign, _EARLY, Change(assign, buffer), safe=False)

    def _is_early(self, value: cst.BaseExpression) -> bool:
        """Return whether a tensor is made by self.device, or moved there."""
        if not isinstance(value, cst.Call):
            return False
        owner = object_of(value)
        if owner is not None and last(value.func) == "to":
            is_own = dotted(argument(value, 0, "device")) == "self.device"
            return is_own and made_in(self.source, owner) is not None
        kind = self.source.name(value.func).removeprefix("torch.")
        is_own = dotted(keyword(value, "device")) == "self.device"
        return is_own and kind in FACTORIES and has_dimensions(value, kind)

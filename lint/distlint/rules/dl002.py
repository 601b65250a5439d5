"""A tensor that is made on the CPU and meets one of the module's device."""

from __future__ import annotations

import libcst as cst

from distlint.apis import STEPS
from distlint.definitions import reaching
from distlint.edits import Change
from distlint.rules.base import Rule
from distlint.source import dotted
from distlint.tensors import FACTORIES, Meeting, Places

_DEFAULTS = ("set_default_device", "set_default_tensor_type")
_TELLING = (".device", ".cpu()", ".is_cuda", ".cuda(")


class DL002(Rule):
    """A tensor made on the CPU in ``forward`` or a step meets a tensor of the module's device.

    What goes wrong: without a GPU everything works. With one, the first batch fails:

        x         cuda:0
        offsets   cpu       <- torch.arange(10)
        RuntimeError: Expected all tensors to be on the same device, but found at least two devices

    Why: functions such as ``torch.zeros(3)`` make tensors on the CPU unless they are given a
    device. Modules and batches are moved to the GPU, tensors made in a step are not.

    How to fix: make the tensor on the device of the tensor that it meets:
    ``torch.zeros(3, device=x.device)``, ``x.new_zeros(3)`` or ``torch.zeros_like(x)``. Register a
    constant tensor in ``__init__`` as a buffer. ``--fix`` adds the device where the other tensor
    has a name.

    When it is silent:

    - on tensors of zero dimensions, which mix with every device
    - on indices, as in ``x[torch.randperm(n)]``
    - on tensors that at least one path moves before they are used
    - where the other tensor is on the CPU, or its device is not known
    - in files and ``with`` blocks that set a default device
    - in modules without parameters and submodules that never name a device, as transforms of data
      sets
    """

    name = "tensor-without-device"
    shown = (
        "bad_offsets_added_in_predict",
        "good_device_of_the_partner",
        "bad_contrastive_labels",
        "good_moved_a_line_later",
    )
    tokens = (
        (b"torch.",),
        (b"def forward", b"_step("),
        tuple(f".{name}(".encode() for name in sorted(FACTORIES)),
    )

    def check(self) -> None:
        """Report each tensor that meets another device."""
        if any(name in self.source.text.text for name in _DEFAULTS):
            return
        for method in self.methods_of("module"):
            if method.name.value not in ("forward", *STEPS) or not self._is_placed(method):
                continue
            told: set[cst.CSTNode] = set()
            for met in Places(self.source, method).meetings():
                if met.origin not in told:
                    told.add(met.origin)
                    self._tell(met)

    def _is_placed(self, method: cst.FunctionDef) -> bool:
        """Return whether something moves the module: it has parts, or looks at devices itself."""
        owner = self.source.class_of(method)
        assert owner is not None
        if "lightning_module" in owner.kinds:
            return True
        parts = [value for values in owner.attributes.values() for value in values]
        if any(isinstance(part, cst.Call) for part in parts):
            return True
        text = self.source.code(owner.node)
        return any(word in text for word in _TELLING)

    def _tell(self, met: Meeting) -> None:
        source = self.source
        where, remedy = "meets one on the GPU", "make it on the same device"
        if met.partner is None:
            where, remedy = "goes into a layer on the GPU", "make it on the device of an input"
        partner = self._partner(met)
        changes = []
        if partner and source.name(met.origin.func) == "torch.from_numpy":
            changes = [Change(met.origin, f"{source.code(met.origin)}.to({partner}.device)")]
        elif partner and met.origin.args:
            given = met.origin.args[-1]
            text = source.module.code_for_node(given.with_changes(comma=cst.MaybeSentinel.DEFAULT))
            changes = [Change(given, f"{text.rstrip()}, device={partner}.device")]
        self.report(
            met.origin,
            f"this tensor is made on the CPU and {where}: {remedy}",
            *changes,
            about=[(met.node, "meets", "both must be on one device here")],
        )

    def _partner(self, met: Meeting) -> str:
        """Return the name of the partner, where the tensor can be made by its device."""
        partner = met.partner
        if not isinstance(partner, cst.Name):
            return dotted(partner) if dotted(partner).startswith("self.") else ""
        there, here = (reaching(self.source, partner, at) for at in (partner, met.origin))
        return partner.value if there == here else ""

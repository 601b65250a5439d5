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
    """A tensor is made on the CPU in a step or ``forward`` and meets tensors of the device there.

    What goes wrong: on a machine without a GPU everything works. With one, the first batch fails:

        x         cuda:0
        offsets   cpu       <- torch.arange(10)
        RuntimeError: Expected all tensors to be on the same device, but found at least two devices

    Why: functions that make tensors, such as ``torch.zeros(3)``, put them on the CPU unless they
    are told otherwise. The trainer moves modules and batches, not what is made in between.

    How to fix: make the tensor where its partner is: ``torch.zeros(3, device=x.device)``,
    ``x.new_zeros(3)`` or ``torch.zeros_like(x)``. A tensor that is always the same is better made
    once, in ``__init__``, as a buffer. ``--fix`` adds the device where the partner has a name.

    When it is silent: tensors of no dimension, which mix with every device; indices, as in
    ``x[torch.randperm(n)]``; tensors that are moved before they are used, on one way at least;
    partners that are on the CPU or not known; files and blocks that set a default device; modules
    without parameters that never look at a device, as transforms of data sets are.
    """

    name = "tensor-without-device"
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
        where, remedy = "meets one on the GPU", "make it with device=x.device, x being that one"
        if met.partner is None:
            where, remedy = "goes into a layer on the GPU", "make it with the device of an input"
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
            about=[(met.node, "meets", "here both must be on one device")],
        )

    def _partner(self, met: Meeting) -> str:
        """Return the name of the partner, where the tensor can be made by its device."""
        partner = met.partner
        if not isinstance(partner, cst.Name):
            return dotted(partner) if dotted(partner).startswith("self.") else ""
        there, here = (reaching(self.source, partner, at) for at in (partner, met.origin))
        return partner.value if there == here else ""

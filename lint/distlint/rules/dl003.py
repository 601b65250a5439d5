"""A tensor that a module keeps as a plain attribute."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.apis import STEPS
from distlint.edits import Change
from distlint.facts import Facts
from distlint.rules.base import Rule, has_lightning
from distlint.source import Class, last, object_of, self_attribute
from distlint.tensors import FACTORIES, Places, made_in

_MOVERS = frozenset({"to", "_apply", "cuda"})


class DL003(Rule):
    """A module keeps a tensor as a plain attribute, which stays on the CPU when the module moves.

    What goes wrong: the module is on the GPU, and the attribute is not:

        self.layer.weight   cuda:0
        self.offsets        cpu       <- self.offsets = torch.arange(10) in __init__
        RuntimeError: Expected all tensors to be on the same device, but found at least two devices

    Why: ``module.to(device)`` moves parameters, buffers and submodules, and no other attribute.

    How to fix: ``self.register_buffer("offsets", torch.arange(10), persistent=False)``, which
    ``--fix`` writes. Without ``persistent=False`` the buffer is part of checkpoints.

    When it is silent:

    - on tensors of zero dimensions
    - on tensors that are given a device, are moved where they are used
      (``self.offsets.to(x.device)``), or are assigned a second time
    - on tensors that serve as an index alone
    - in modules that define ``to``, ``cuda`` or ``_apply``
    - in projects without a Lightning trainer, except in LightningModules
    """

    name = "tensor-attribute-not-buffer"
    shown = (
        "bad_class_weights",
        "good_buffer",
        "bad_frequencies_of_a_layer",
        "good_moved_where_used",
    )
    tokens = (
        (b"torch.",),
        (b"__init__",),
        (b"def forward", b"_step("),
        tuple(f".{name}(".encode() for name in sorted(FACTORIES)),
    )

    @classmethod
    def can_matter(cls, source: bytes, facts: Facts) -> bool:
        """Only where a trainer places modules."""
        is_placed = facts.has_trainer or has_lightning(source, facts)
        return is_placed and super().can_matter(source, facts)

    def check(self) -> None:
        """Report each attribute that a step or ``forward`` combines with a tensor of the device."""
        for node, owner in self.source.classes.items():
            is_placed = "lightning_module" in owner.kinds or self.facts.has_trainer
            if "module" not in owner.kinds or not is_placed or any(map(owner.defines, _MOVERS)):
                continue
            kept = dict(self._kept(node, owner))
            if kept:
                self._look(owner, kept)

    def _kept(self, node: cst.ClassDef, owner: Class) -> Iterator[tuple[str, cst.Assign]]:
        """Yield the attributes that ``__init__`` makes on the CPU and that nothing else sets."""
        init = owner.methods.get("__init__")
        if init is None or not self.source.is_within(init, node):
            return
        for assign in self.source.own(init, cst.Assign):
            name = self_attribute(assign.targets[0].target)
            is_once = len(assign.targets) == 1 and len(owner.attributes.get(name, [])) == 1
            if name and is_once and made_in(self.source, assign.value) is not None:
                yield name, assign

    def _look(self, owner: Class, kept: dict[str, cst.Assign]) -> None:
        calls = {name: made_in(self.source, assign.value) for name, assign in kept.items()}
        made = {name: call for name, call in calls.items() if call is not None}
        names = {call: name for name, call in made.items()}
        told: set[str] = set()
        for method in owner.methods.values():
            if method.name.value not in ("forward", *STEPS):
                continue
            for met in Places(self.source, method, made).meetings():
                name = names.get(met.origin, "")
                if name and name not in told:
                    told.add(name)
                    self._tell(name, kept[name], met.node)

    def _tell(self, name: str, assign: cst.Assign, meets: cst.CSTNode) -> None:
        value = self.source.module.code_for_node(assign.value)
        change = Change(assign, f'self.register_buffer("{name}", {value}, persistent=False)')
        self.report(
            assign,
            "this tensor stays on the CPU when the module moves: use self.register_buffer",
            *([change] if self._is_ready(assign) else []),
            about=[(meets, "meets", "a tensor on the module's device here")],
        )

    def _is_ready(self, assign: cst.Assign) -> bool:
        """Return whether ``super().__init__()`` has run before."""
        init = self.source.function(assign)
        assert init is not None
        return any(
            object_of(call) is not None and last(call.func) == "__init__"
            for call in self.source.below(init, cst.Call)
            if self.source.order(call) < self.source.order(assign)
        )

"""A list that is gathered and then reduced as if it were a tensor."""

from __future__ import annotations

import libcst as cst

from distlint.collectives import receiver
from distlint.definitions import reaching
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import argument, dotted, last, object_of, self_attribute

_REDUCTIONS = frozenset({"mean", "sum", "max", "min", "median", "std", "var", "nanmean"})
_GATHERS = frozenset({"all_gather", "gather", "gather_for_metrics"})
_FAMILIES = frozenset({"lightning_module", "fabric", "accelerator", "strategy"})


class DL209(Rule):
    """What ``all_gather`` makes of a list is reduced like a tensor: it is a list, and that fails.

    What goes wrong:

        torch.mean(self.all_gather(self.outputs))
        TypeError: mean(): argument 'input' (position 1) must be Tensor, not list

    Why: ``self.all_gather`` gathers every tensor of a collection and returns a collection of the
    same kind. A list of step outputs becomes a list of tensors of shape ``[world_size, …]``.

    How to fix: make one tensor of this rank's outputs, then gather:
    ``self.all_gather(torch.cat(self.outputs))``. If ranks have different numbers of samples, gather
    sums and counts, or use a metric object. Do not gather the entries one by one: ranks with
    different numbers of batches would hang.

    When it is silent:

    - on gathered tensors
    - on lists that ``torch.stack`` or ``torch.cat`` joins before or after
    - on Python's ``sum`` and ``max``, and on NumPy's functions, which take lists
    - on attributes that the class also sets to anything but a list
    """

    name = "mean-of-gathered-list"
    shown = (
        "bad_mean_of_step_outputs",
        "good_stacked_first",
        "bad_gather_for_metrics",
        "good_a_tensor",
    )
    tokens = ((b"gather",), COLLECTIVE_TOKENS)

    def check(self) -> None:
        """Report each reduction of a gathered list."""
        for call in self.source.nodes(cst.Call):
            owner = object_of(call)
            if last(call.func) not in _REDUCTIONS or owner is None:
                continue
            is_function = self.source.name(call.func).startswith("torch.")
            reduced = argument(call, 0, "input") if is_function else owner
            gather = self._gather(reduced)
            if gather is not None and self._is_list(argument(gather, 0, "data", "tensor")):
                shown = f"torch.{last(call.func)}" if is_function else f".{last(call.func)}()"
                name = last(gather.func)
                said = (
                    f"{name} of a list gives a list, on which {shown} fails: "
                    "join the list by torch.cat first"
                )
                self.report(call, said, about=[(gather, "gather", "a list is gathered here")])

    def _gather(self, node: cst.BaseExpression | None) -> cst.Call | None:
        """Return the call that gathers what is reduced, through one variable."""
        if isinstance(node, cst.Name):
            given = reaching(self.source, node).single
            node = given.value if given is not None and given.how == "is" else None
        owner = object_of(node) if isinstance(node, cst.Call) else None
        if not isinstance(node, cst.Call) or owner is None or last(node.func) not in _GATHERS:
            return None
        return node if receiver(self.source, owner) in _FAMILIES else None

    def _is_list(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a variable or attribute is a list to which something is appended."""
        name, owner = self_attribute(node), self.source.class_of(node) if node is not None else None
        if isinstance(node, cst.ListComp | cst.List):
            return True
        if name and node is not None and owner is not None:
            given = [*self.source.kept(node), *reaching(self.source, node).plain]
            is_grown = any(self.source.calls(owner.node, f"{dotted(node)}.append"))
            return is_grown and bool(given) and all(map(_makes_list, given))
        if isinstance(node, cst.Name):
            found = reaching(self.source, node)
            is_grown = any(each.how == "joins" for each in found.listed)
            return is_grown and bool(found.plain) and all(map(_makes_list, found.plain))
        return False


def _makes_list(node: cst.BaseExpression) -> bool:
    is_call = isinstance(node, cst.Call) and dotted(node.func) == "list"
    return is_call or isinstance(node, cst.List | cst.ListComp)

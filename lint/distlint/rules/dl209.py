"""A list that is gathered and then reduced as if it were a tensor."""

from __future__ import annotations

import libcst as cst

from distlint.collectives import receiver
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import argument, dotted, last, self_attribute

_REDUCTIONS = frozenset({"mean", "sum", "max", "min", "median", "std", "var", "nanmean"})
_GATHERS = frozenset({"all_gather", "gather", "gather_for_metrics"})
_FAMILIES = frozenset({"lightning_module", "fabric", "accelerator", "strategy"})


class DL209(Rule):
    """A reduction of what ``all_gather`` makes of a list: it fails, since a gathered list is a list.

    What goes wrong: ``self.all_gather`` gathers every tensor of a collection and returns a collection
    of the same kind. A list of step outputs becomes a list of tensors of shape ``[world_size, …]``,
    which ``torch.mean`` does not take:

        torch.mean(self.all_gather(self.outputs))
        TypeError: mean(): argument 'input' (position 1) must be Tensor, not list

    Why: the list is what the ranks keep, one entry a batch. To reduce the entries one after the other
    is no way out: batches of different sizes make that a mean of means, and ranks with different
    numbers of batches make different numbers of collectives, so the job hangs.

    How to fix: make one tensor of this rank's outputs, then gather:
    ``self.all_gather(torch.cat(self.outputs))`` for equal lengths; where ranks hold different numbers
    of examples, gather sums and counts, or use a metric object.

    When it is silent: tensors that are gathered; lists that are put together, before or after
    (``torch.stack``, ``torch.cat``); ``sum`` and ``max`` of Python; NumPy's functions, which take
    lists; attributes that are anything but a list somewhere in the class.
    """

    name = "mean-of-gathered-list"
    tokens = ((b"gather",), COLLECTIVE_TOKENS)

    def check(self) -> None:
        """Report each reduction of a gathered list."""
        for call in self.source.nodes(cst.Call):
            if last(call.func) not in _REDUCTIONS or not isinstance(call.func, cst.Attribute):
                continue
            is_function = self.source.name(call.func).startswith("torch.")
            reduced = argument(call, 0, "input") if is_function else call.func.value
            gather = self._gather(reduced)
            if gather is not None and self._is_list(argument(gather, 0, "data", "tensor")):
                shown = f"torch.{last(call.func)}" if is_function else f".{last(call.func)}()"
                name = last(gather.func)
                said = f"{name} of a list gives a list, on which {shown} fails: make one tensor of it (torch.cat) first"
                self.report(call, said, about=[(gather, "gather", "a list is gathered here")])

    def _gather(self, node: cst.BaseExpression | None) -> cst.Call | None:
        """Return the call that gathers what is reduced, through one variable."""
        if isinstance(node, cst.Name):
            found = self.values.definitions(node.value, node)
            is_one = len(found.listed) == 1 and found.listed[0].how == "is"
            node = found.listed[0].value if is_one else None
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return None
        is_gather = node.func.attr.value in _GATHERS
        return node if is_gather and receiver(self.source, node.func.value) in _FAMILIES else None

    def _is_list(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a variable or attribute is a list to which something is appended."""
        name, owner = self_attribute(node), self.source.class_of(node) if node is not None else None
        if isinstance(node, cst.ListComp | cst.List):
            return True
        if name and node is not None and owner is not None:
            given = list(owner.attributes.get(name, []))
            own = self.values.definitions(dotted(node), node).listed
            given += [each.value for each in own if each.value is not None and each.how == "is"]
            appended = self._appends(owner.node, dotted(node))
            return bool(given) and appended and all(map(_makes_list, given))
        if isinstance(node, cst.Name):
            listed = self.values.definitions(node.value, node).listed
            given = [each.value for each in listed if each.how == "is" and each.value is not None]
            is_grown = any(each.how == "joins" for each in listed)
            return is_grown and bool(given) and all(map(_makes_list, given))
        return False

    def _appends(self, owner: cst.ClassDef, name: str) -> bool:
        calls = self.source.below(owner, cst.Call)
        return any(dotted(call.func) == f"{name}.append" for call in calls)


def _makes_list(node: cst.BaseExpression) -> bool:
    is_call = isinstance(node, cst.Call) and dotted(node.func) == "list"
    return is_call or isinstance(node, cst.List | cst.ListComp)

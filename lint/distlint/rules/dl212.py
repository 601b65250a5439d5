"""A reduction whose result is thrown away."""

from __future__ import annotations

import libcst as cst

from distlint.apis import returns_new
from distlint.collectives import receiver
from distlint.edits import Change
from distlint.guards import guards
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import (
    Source,
    argument,
    dotted,
    keyword,
    last,
    number,
    object_of,
    positional,
    string,
)

# What changes its argument in place, so that the result in a new tensor is lost.
_IN_PLACE = (
    "torch.distributed.all_reduce",
    "torch.distributed.broadcast",
    "torch.distributed.reduce",
)
_COMPUTING = frozenset({"mean", "sum", "item", "clone", "float", "max", "min", "tolist"})
_WHOLE = frozenset({"reduce", "all_reduce", "allreduce", "broadcast"})


class DL212(Rule):
    """The result of a reduction is thrown away: each rank goes on with its own value.

    What goes wrong: ``accelerator.reduce`` returns the sum over ranks, and does not change its
    argument:

        accelerator.reduce(correct, reduction="sum")
        print(correct / seen)                            # 0.68 on rank 0, 0.74 on rank 1

    Why: some collectives change their argument (``torch.distributed.all_reduce``,
    ``fabric.all_reduce``). Others return a new value (``accelerator.reduce`` and ``gather``,
    ``self.all_gather``, ``torch.distributed.nn``, ``hvd.allreduce``). A temporary that is changed
    in place is lost as well: ``dist.all_reduce(loss.mean())``.

    How to fix: assign the result, ``correct = accelerator.reduce(correct, reduction="sum")``.
    Assign a temporary to a name before it is reduced in place.

    When it is silent:

    - the result is used in any way, also as ``_ = …``
    - ``gather_samples(ids, rows, dst=path)`` writes the result to a file
    - the argument is a constant (``torch.zeros(1)``), as for a warm-up or to make ranks wait
    - the call is under a condition on the rank (DL101), or a test expects it to raise
    """

    name = "reduction-lost"
    shown = (
        "bad_accelerator_reduce",
        "good_result_is_used",
        "bad_mean_without_a_name",
        "good_in_place",
    )
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather", b"broadcast", b"pad_across", b"all_to_all"))

    def check(self) -> None:
        """Report each such call that is a statement of its own."""
        for statement in self.source.nodes(cst.Expr):
            call = statement.value
            if not isinstance(call, cst.Call):
                continue
            given = argument(call, 0, "tensor", "data", "input_data", "obj", "object")
            if given is None or self._is_constant(given) or self._is_to_fail(statement):
                continue
            if any(guards(self.source, call)):
                continue  # DL101 tells of it
            file = keyword(call, "dst")
            if file is not None and number(file) is None:
                continue  # gather_samples writes it there
            method = last(call.func)
            if self._returns_new(call):
                self.report(
                    call,
                    f"{method} returns its result, which is lost here, so each rank keeps its own "
                    "value: assign the result",
                    *self._kept(call, given, method),
                    safe=False,
                )
            elif self._changes(call) and _is_temporary(given):
                self.report(
                    call,
                    f"{method} changes a temporary tensor, so the result is lost: "
                    "assign the tensor to a name first",
                )

    def _is_constant(self, given: cst.BaseExpression) -> bool:
        """Return whether a constant is sent, which warms up or makes ranks wait."""
        function = self.source.function(given)
        if not isinstance(given, cst.Name) or function is None:
            return _is_made_here(self.source, given)
        made = [
            assign.value
            for assign in self.source.below(function, cst.Assign)
            if any(dotted(each.target) == given.value for each in assign.targets)
        ]
        return bool(made) and all(_is_made_here(self.source, each) for each in made)

    def _is_to_fail(self, statement: cst.CSTNode) -> bool:
        """Return whether a test expects an error from a statement."""
        entered = self.source.contexts(statement)
        names = (last(each.func) for each in entered if isinstance(each, cst.Call))
        return any("raise" in name.lower() or "assert" in name for name in names)

    def _returns_new(self, call: cst.Call) -> bool:
        owner = object_of(call)
        family = receiver(self.source, owner) if owner is not None else ""
        return returns_new(self.source.name(call.func), family)

    def _changes(self, call: cst.Call) -> bool:
        if self.source.name(call.func) in _IN_PLACE:
            return True
        owner = object_of(call)
        if owner is None or last(call.func) != "all_reduce":
            return False
        return receiver(self.source, owner) == "fabric"

    def _kept(self, call: cst.Call, given: cst.BaseExpression, method: str) -> list[Change]:
        """Return the change that assigns the result, where it has the shape of what is given."""
        if method not in _WHOLE or not dotted(given):
            return []
        text = self.source.module.code_for_node(call)
        return [Change(call, f"{dotted(given)} = {text}")]


def _is_temporary(given: cst.BaseExpression) -> bool:
    """Return whether an argument is a new tensor or number that nothing else can read."""
    if isinstance(given, cst.Call):
        return last(given.func) in _COMPUTING and object_of(given) is not None
    return isinstance(given, cst.BinaryOperation)


def _is_made_here(source: Source, given: cst.BaseExpression) -> bool:
    """Return whether an argument is a constant, as in ``torch.zeros(1, device=device).cuda()``."""
    while isinstance(given, cst.Call) and isinstance(inner := object_of(given), cst.Call):
        given = inner
    if isinstance(given, cst.Call) and source.name(given.func).startswith("torch."):
        return not any(any(source.inside(each, cst.Name)) for each in positional(given))
    return number(given) is not None or string(given) is not None

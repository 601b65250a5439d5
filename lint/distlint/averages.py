"""Which calls make the mean over ranks of a value."""

from __future__ import annotations

import libcst as cst

from distlint.collectives import collective, is_about_world, names_group, receiver
from distlint.definitions import key_of, reaching
from distlint.source import Source, argument, keyword, last, object_of, string

_REDUCTIONS = frozenset({"all_reduce", "reduce", "allreduce"})
_GATHERS = frozenset({"gather", "all_gather", "gather_for_metrics", "allgather"})


def averaged(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return the value of which a call makes the mean over ranks, or None."""
    method = last(call.func)
    if method == "mean":
        return _gathered(source, call)
    if method not in (*_REDUCTIONS, "mesh_reduce") or not collective(source, call):
        return None
    if names_group(source, call):
        return None
    if method == "mesh_reduce":
        return argument(call, 1, "data") if "mean" in last(argument(call, 2)) else None
    given, by = argument(call, 0, "tensor"), argument(call, 1, "op", "reduce_op", "reduction")
    said = (string(by) or last(by)).lower()
    name = source.name(call.func)
    owner = object_of(call)
    family = receiver(source, owner) if owner is not None else ""
    is_default = by is None and (family in ("fabric", "strategy") or name.startswith("horovod."))
    if given is None or is_default or said in ("avg", "mean", "average"):
        return given
    is_sum = name.startswith("torch.distributed.") and said in ("", "sum")
    return given if is_sum and _is_divided(source, call, key_of(given)) else None


def _gathered(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return what has been gathered, of ``gather(x).mean()`` and ``torch.mean(gather(x))``."""
    inner = object_of(call)
    if call.args and keyword(call, "dim", "axis") is None:
        inner = call.args[0].value
    if isinstance(inner, cst.Name):
        given = reaching(source, inner).single
        inner = given.value if given is not None else None
    if not isinstance(inner, cst.Call) or last(inner.func) not in _GATHERS:
        return None
    is_one = collective(source, inner) and not names_group(source, inner)
    return argument(inner, 0, "tensor", "data") if is_one else None


def _is_divided(source: Source, call: cst.Call, name: str) -> bool:
    """Return whether a variable is divided by the number of ranks after a call."""
    scope, at = source.home(call), source.order(call)
    parts: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [
        (each.left, each.right)
        for each in source.below(scope, cst.BinaryOperation)
        if isinstance(each.operator, cst.Divide)
    ]
    parts += [
        (each.target, each.value)
        for each in source.below(scope, cst.AugAssign)
        if isinstance(each.operator, cst.DivideAssign)
    ]
    return bool(name) and any(
        source.order(left) > at and name in _known_by(left) and is_about_world(source, right)
        for left, right in parts
    )


def _known_by(node: cst.BaseExpression) -> tuple[str, str]:
    """Return by what an expression, or ``x`` of ``x.item()``, is known."""
    return key_of(node), key_of(object_of(node)) if isinstance(node, cst.Call) else ""

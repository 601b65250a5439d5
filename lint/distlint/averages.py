"""Which calls make the mean over ranks of a value."""

from __future__ import annotations

import libcst as cst

from distlint.apis import is_world
from distlint.collectives import collective, names_group, receiver
from distlint.source import Source, argument, keyword, last, string
from distlint.values import Values, key_of

_REDUCTIONS = frozenset({"all_reduce", "reduce", "allreduce"})
_GATHERS = frozenset({"gather", "all_gather", "gather_for_metrics", "allgather"})


def averaged(source: Source, values: Values, call: cst.Call) -> cst.BaseExpression | None:
    """Return the value of which a call makes the mean over ranks, or None."""
    method = last(call.func)
    if method == "mean":
        return _gathered(source, values, call)
    if method not in (*_REDUCTIONS, "mesh_reduce") or not collective(source, call):
        return None
    if names_group(source, call):
        return None
    if method == "mesh_reduce":
        return argument(call, 1, "data") if "mean" in last(argument(call, 2)) else None
    given, by = argument(call, 0, "tensor"), argument(call, 1, "op", "reduce_op", "reduction")
    said = (string(by) or last(by)).lower()
    name = source.name(call.func)
    family = receiver(source, call.func.value) if isinstance(call.func, cst.Attribute) else ""
    is_default = by is None and (family in ("fabric", "strategy") or name.startswith("horovod."))
    if given is None or is_default or said in ("avg", "mean", "average"):
        return given
    is_sum = name.startswith("torch.distributed.") and said in ("", "sum")
    return given if is_sum and _is_divided(source, call, key_of(given)) else None


def _gathered(source: Source, values: Values, call: cst.Call) -> cst.BaseExpression | None:
    """Return what has been gathered, of ``gather(x).mean()`` and ``torch.mean(gather(x))``."""
    inner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if call.args and keyword(call, "dim", "axis") is None:
        inner = call.args[0].value
    if isinstance(inner, cst.Name):
        found = values.definitions(inner.value, inner)
        inner = found.listed[0].value if len(found.listed) == 1 else None
    if not isinstance(inner, cst.Call) or last(inner.func) not in _GATHERS:
        return None
    is_one = collective(source, inner) and not names_group(source, inner)
    return argument(inner, 0, "tensor", "data") if is_one else None


def _is_divided(source: Source, call: cst.Call, name: str) -> bool:
    """Return whether a variable is divided by the number of ranks after a call."""
    function = source.function(call)
    scope = function if function is not None else source.module
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
        source.order(left) > source.order(call)
        and name in (key_of(left), _owner(left))
        and _tells_world(source, right)
        for left, right in parts
    )


def _owner(node: cst.BaseExpression) -> str:
    """Return ``x`` of ``x.item()``."""
    func = node.func if isinstance(node, cst.Call) else None
    return key_of(func.value) if isinstance(func, cst.Attribute) else ""


def _tells_world(source: Source, node: cst.BaseExpression) -> bool:
    named = (node, *source.below(node, cst.Name), *source.below(node, cst.Attribute))
    return any(is_world(last(each)) for each in named)

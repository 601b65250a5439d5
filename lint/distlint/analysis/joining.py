"""What is known of a value that is one of several, or is computed from several."""

from __future__ import annotations

from distlint.analysis.formula import RANK, SAME, Reason
from distlint.analysis.value import SAME_VALUE, UNKNOWN_VALUE, Value, dtype_of

_NOTHING: frozenset[int] = frozenset()
_MEANS = {"mean", "mean?"}


def join(first: Value, second: Value) -> Value:
    """Return what is known of a value that is one of two."""
    if first == second:
        return first
    if first.family == "none" and second.family != "none":
        first, second = second, first
    if second.family == "none":
        return first._replace(varies=max(first.varies, second.varies), constant=None, formula=None)
    if first.family and second.family and first.family != second.family:
        first, second = _without_belief(first), _without_belief(second)
    more = first if first.varies >= second.varies else second
    parts = _parts(first, second)
    return Value(
        varies=more.varies,
        reason=_along_both(more.reason, second.reason) if second.is_rank else more.reason,
        formula=first.formula if first.formula == second.formula else None,
        family=_common(first.family, second.family) if "made" not in (first.family, second.family) else "",
        target=first.target if first.target is second.target else (first.target or second.target),
        instance=first.instance or second.instance,
        name=_common(first.name, second.name),
        wrapped=_joined_wrapper(first.wrapped, second.wrapped),
        scale="mean" if {first.scale, second.scale} == _MEANS else _common(first.scale, second.scale),
        reduced=_common(first.reduced, second.reduced),
        divided=first.divided or second.divided,
        sources=first.sources | second.sources,
        length=first.length or second.length,
        grad=max(first.grad, second.grad),
        cut=first.cut or second.cut,
        dtype=_common(dtype_of(first), dtype_of(second)),
        measure=first.measure or second.measure,
        sampler=first.sampler or second.sampler,
        shuffled=first.shuffled or second.shuffled,
        call=first.call if first.call is second.call else None,
        elements=parts.elements,
        keys=parts.keys,
        order=_joined_order(first, second),
    )


def _along_both(first: Reason | None, second: Reason | None) -> Reason | None:
    """Why ranks disagree about what is made of two values: along the axes of both, or anyhow."""
    if first is None or second is None or first.axis == second.axis:
        return first
    is_along = bool(first.axis and second.axis)
    return first._replace(axis=f"{first.axis}+{second.axis}" if is_along else "")


def _common(first: str, second: str) -> str:
    return first if first == second or not second else second if not first else ""


def _joined_wrapper(first: str, second: str) -> str:
    """How a model is wrapped that is one of two: what may be wrapped is not where the other is not."""
    if "maybe" in (first, second):
        return second if first == "maybe" else first
    return first or second


def _joined_order(first: Value, second: Value) -> str:
    """The order of a value that is one of two: a dict's keys come from wherever it is filled, as a set's elements."""
    orders = {first.order, second.order}
    if "keys" in orders:
        return "keys"
    if first.family == second.family == "set":
        orders.discard("")
    if len(orders) < 2:
        return "".join(orders)
    return "set" if orders == {"set", "texts"} else ""


def any_of(values: tuple[Value, ...]) -> Value:
    """Return what is known of a value that is one of several."""
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result._replace(constant=None)


def _without_belief(value: Value) -> Value:
    """A value, or nothing where only its name has told what it is: that yields to what is known."""
    return UNKNOWN_VALUE if value == Value(family=value.family, instance=True) else value


def _parts(first: Value, second: Value) -> Value:
    """What is known of the parts of a value that is one of two; of what is not known, the other's."""
    if not second.elements and not second.family:
        return first
    if not first.elements and not first.family:
        return second
    if len(first.elements) != len(second.elements) or first.keys != second.keys:
        return UNKNOWN_VALUE
    parts = tuple(join(*each) for each in zip(first.elements, second.elements, strict=True))
    return Value(elements=parts, keys=first.keys)


def of_unseen(given: list[Value]) -> Value:
    """Return what is known of what an unseen function makes of values: of this rank's data, something of it.

    What is told the rank, to place or to name something, seldom returns it.
    """
    return through_unseen(combine([value for value in given if not value.is_rank or value.length] or [UNKNOWN_VALUE]))


def through_unseen(value: Value) -> Value:
    """Return a value as made by code that cannot be seen: that ranks disagree about it is no longer proven."""
    if value.reason is None or value.reason.unseen or not value.is_local:
        return value
    return value._replace(reason=value.reason._replace(unseen=True))


def combine(values: list[Value]) -> Value:
    """Return what is known of a value that is computed from others."""
    if not values:
        return UNKNOWN_VALUE
    most = SAME_VALUE
    sources, grad, cut, length = _NOTHING, SAME_VALUE.grad, SAME_VALUE.cut, False
    for value in values:
        if value.varies > most.varies:
            most = value
        elif value.varies == RANK and value.reason is not most.reason:
            most = most._replace(reason=_along_both(most.reason, value.reason))
        if value.sources:
            sources |= value.sources
        grad = max(grad, value.grad)
        cut = cut or value.cut
        length = length or value.length
    if most.varies == SAME and not (sources or grad or cut or length):
        return SAME_VALUE
    return Value(most.varies, most.reason, sources=sources, grad=grad, cut=cut, length=length)

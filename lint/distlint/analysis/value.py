"""What is known of a value: one record for every expression."""

from __future__ import annotations

from typing import Any, NamedTuple

from distlint.analysis.formula import RANK, SAME, UNKNOWN, Formula

_NOTHING: frozenset[int] = frozenset()


class Reason(NamedTuple):
    """Why ranks may disagree about a value.

    Attributes:
        line: where that begins.
        text: the source there.
        control: whether the value itself is the same, but was set under a test that ranks answer differently.
    """

    line: int
    text: str
    control: bool = False


class Value(NamedTuple):
    """What is known of a value.

    Attributes:
        varies: how far ranks may disagree about it: SAME, UNKNOWN, DATA (its batches) or RANK.
        reason: why they may.
        formula: the value as a condition, where it is one.
        family: what it is: "metric", "module", "lightning_module", "loader", "accelerator", "rank", "local_rank",
            "world", "none", "set", "list", "length", "batch", … or "".
        target: the function or class that it is, or the class that it is an instance of (as ``instance``).
        instance: whether it is an instance of ``target``.
        name: its qualified name, where it is imported.
        wrapped: "ddp", "fsdp" or "prepared" where it is a model wrapped so.
        scale: what it is over this rank's samples: "mean", "sum", "count" or "".
        reduced: what a reduction over ranks made of it: "sum", "mean", "max", "gathered", "local" or "".
        divided: whether it was divided by the number of ranks, or by a count that was reduced as well.
        sources: numbers of the collectives that it comes from.
        length: whether its length is this rank's own.
        grad: whether gradients flow through it.
        elements: its parts, of a tuple that is written out.
        constant: the constant that it is.
    """

    varies: int = UNKNOWN
    reason: Reason | None = None
    formula: Formula | None = None
    family: str = ""
    target: Any = None
    instance: bool = False
    name: str = ""
    wrapped: str = ""
    scale: str = ""
    reduced: str = ""
    divided: bool = False
    sources: frozenset[int] = _NOTHING
    length: bool = False
    grad: bool = False
    elements: tuple[Value, ...] = ()
    constant: Any = None

    @property
    def is_local(self) -> bool:
        """True if ranks are known to hold different values."""
        return self.varies > UNKNOWN

    @property
    def is_rank(self) -> bool:
        """True if the value follows from the rank."""
        return self.varies == RANK


UNKNOWN_VALUE = Value()
SAME_VALUE = Value(SAME)
NONE_VALUE = Value(SAME, family="none")


def join(first: Value, second: Value) -> Value:
    """Return what is known of a value that is one of two."""
    if first == second:
        return first
    if first.family == "none" and second.family != "none":
        first, second = second, first
    if second.family == "none":
        return first._replace(varies=max(first.varies, second.varies), constant=None, formula=None)
    more = first if first.varies >= second.varies else second
    return Value(
        varies=more.varies,
        reason=more.reason,
        formula=first.formula if first.formula == second.formula else None,
        family=_common(first.family, second.family),
        target=first.target if first.target is second.target else (first.target or second.target),
        instance=first.instance or second.instance,
        name=_common(first.name, second.name),
        wrapped=first.wrapped or second.wrapped,
        scale=_common(first.scale, second.scale),
        reduced=_common(first.reduced, second.reduced),
        divided=first.divided or second.divided,
        sources=first.sources | second.sources,
        length=first.length or second.length,
        grad=first.grad or second.grad,
        elements=_joined_elements(first.elements, second.elements),
    )


def _common(first: str, second: str) -> str:
    return first if first == second or not second else second if not first else ""


def _joined_elements(first: tuple[Value, ...], second: tuple[Value, ...]) -> tuple[Value, ...]:
    if len(first) != len(second):
        return ()
    return tuple(join(*each) for each in zip(first, second, strict=True))


def shallow(value: Value) -> Value:
    """Return a value that can be an element: its own parts have none, else pairs of pairs would grow for ever."""
    if not any(part.elements for part in value.elements):
        return value
    return value._replace(elements=tuple(part._replace(elements=()) for part in value.elements))


def combine(values: list[Value]) -> Value:
    """Return what is known of a value that is computed from others."""
    result = UNKNOWN_VALUE if not values else SAME_VALUE
    for value in values:
        more = value if value.varies > result.varies else result
        result = Value(
            varies=more.varies,
            reason=more.reason,
            sources=result.sources | value.sources if value.sources else result.sources,
            grad=result.grad or value.grad,
            length=result.length or value.length,
        )
    return result

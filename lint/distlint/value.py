"""What is known of a value: its kind, and what several values are together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from distlint.averageable import EXP_REASON, ROOT_REASON

Kind = Literal[
    "unknown", "constant", "metric", "result", "not averageable", "loss", "share", "reduced",
    "criterion",
]  # fmt: skip


@dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        kind: what it is; rules are silent on ``"unknown"``.
        name: of the metric, where the kind is ``"not averageable"``.
        reason: why its mean over ranks is wrong.
        items: what a dict holds under constant keys.
        is_call: whether a function makes it that cannot be seen, no primitive of a library.
        parts: what the elements of a tuple are.
    """

    kind: Kind = "unknown"
    name: str = ""
    reason: str = ""
    items: Mapping[str, Value] = field(default_factory=dict, hash=False)
    is_call: bool = False
    parts: tuple[Value, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether what is made from it is of the same kind, whatever it is called."""
        return self.kind in ("reduced", "result", "not averageable")

    @property
    def is_of_data(self) -> bool:
        """Whether it is of this rank's batch, or a loss made of it."""
        return self.kind in ("share", "loss")


UNKNOWN = Value()
CONSTANT, SHARE, LOSS = Value("constant"), Value("share"), Value("loss")
REDUCED, RESULT, METRIC = Value("reduced"), Value("result"), Value("metric")
CRITERION = Value("criterion")
EXP = Value("not averageable", "perplexity", EXP_REASON)
ROOT = Value("not averageable", "a root of a mean", ROOT_REASON)
RATIO = Value("not averageable", "a ratio of counts", "its denominator differs between ranks")


def tuple_of(values: Sequence[Value]) -> Value:
    """Return what a tuple of values is: whole, what most rules ask of its elements."""
    found = joined([each for each in values if each.kind != "not averageable"] or values)
    if all(each == UNKNOWN for each in values):
        return found
    return Value(found.kind, found.name, found.reason, {}, found.is_call, tuple(values))


def kept(items: Mapping[str, Value]) -> Value:
    """Return what a list is to which steps have added dicts: this rank's shares, by their keys."""
    shares = {
        key: Value("share", value.name, is_call=value.is_call) if value.kind == "unknown" else value
        for key, value in items.items()
    }
    return Value("share", items=shares)


def joined(values: Sequence[Value]) -> Value:
    """Return what one of several values is, on different ways."""
    left = [each for each in values if each.kind != "constant"]
    if not left:
        return values[0] if values else UNKNOWN
    if len(left) == 1:
        return left[0]
    if any(each.items for each in left):
        items: dict[str, Value] = {}
        for each in reversed(left):
            items |= each.items
        is_list = all(each.kind == "share" for each in left)
        return Value("share" if is_list else "unknown", items=items)
    return combined(left)


def combined(values: Sequence[Value]) -> Value:
    """Return what comes of several values together: what is agreed wins, then what is unknown."""
    by_kind = {each.kind: each for each in reversed(values)}
    for kind in ("reduced", "result", "not averageable"):
        if kind in by_kind:
            return by_kind[kind]
    if by_kind.keys() <= {"loss", "constant"}:
        return by_kind.get("loss", UNKNOWN)
    if by_kind.keys() & {"share", "loss"} and "metric" not in by_kind:
        return SHARE if len(values) > 1 else values[0]
    return values[0] if len(by_kind) == 1 else UNKNOWN


def same(values: Collection[Value]) -> Value:
    """Return what values are that are all alike, else unknown."""
    found = set(values)
    return found.pop() if len(found) == 1 else UNKNOWN

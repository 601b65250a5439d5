"""What is known of a value: one record for every expression."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from distlint.analysis.formula import DATA, RANK, SAME, UNKNOWN, Formula, Reason

_NOTHING: frozenset[int] = frozenset()
_MEANS = {"mean", "mean?"}
_MOST_PARTS = 12  # of a tuple that other files are told of
# Whether gradients flow through a value: of an unseen function of a batch that is not known.
MAY_HAVE_GRADIENT = 1
HAS_GRADIENT = 2
# Families of numbers that follow from the rank: ranks that compare one with a number do not all find the same.
OF_RANK = frozenset({"rank", "local_rank", "ranked"})


class Written(NamedTuple):
    """A key that is not known, by its source."""

    text: str

    def __str__(self) -> str:
        return self.text


class Elsewhere(NamedTuple):
    """A place in another file.

    Attributes:
        path: the file.
        line: of it.
        text: the source there.
    """

    path: str
    line: int
    text: str


class Cut(NamedTuple):
    """A collective that lets no gradient through.

    Attributes:
        line: where it is.
        text: the source there.
        label: what it is called.
        is_sure: whether what was given to it is known to have a gradient.
    """

    line: int
    text: str
    label: str
    is_sure: bool


class Measure(NamedTuple):
    """A metric that must not be averaged over ranks.

    Attributes:
        what: its name.
        reason: why the mean of parts is not the whole.
        line: where it is computed.
        text: the source there.
        is_curved: whether it is a function of a mean, so that the mean over examples of it is right.
        is_guess: whether only the name of a function tells.
    """

    what: str
    reason: str
    line: int
    text: str
    is_curved: bool = False
    is_guess: bool = False


class Value(NamedTuple):
    """What is known of a value.

    Attributes:
        varies: how far ranks may disagree about it: SAME, UNKNOWN, DATA (its batches) or RANK.
        reason: why they may.
        formula: the value as a condition, where it is one.
        family: what it is: "metric", "module", "lightning_module", "loader", "accelerator", "rank", "local_rank",
            "ranked" (computed from it), "world", "none", "set", "list", "length", "batch", "part" (of one),
            "ragged" (as wide as this rank's longest sample), … or "".
        target: the function or class that it is, or the class that it is an instance of (as ``instance``).
        instance: whether it is an instance of ``target``.
        name: its qualified name, where it is imported.
        wrapped: "ddp", "fsdp" or "prepared" where it is a model wrapped so, "maybe" where that is for callers to say.
        scale: what it is over this rank's samples: "mean", "mean?" where that is likely, "local mean" where it was
            divided by a count of this rank's, "sum", "count", "batches" of the number of them, or "".
        reduced: what a reduction over ranks made of it: "sum", "mean", "max", "gathered", "local" or "".
        divided: whether it was, or may have been, divided by the number of ranks or by a count of all ranks.
        sources: numbers of the collectives that it comes from.
        length: whether its length is this rank's own.
        grad: whether gradients flow through it: 0, MAY_HAVE_GRADIENT or HAS_GRADIENT.
        cut: the collective by which it lacks the gradient of the other ranks' part.
        dtype: "int" or "float" where the type of its numbers is known.
        measure: the metric that it is, where that must not be averaged over ranks.
        call: the call that made it, of the object of a framework's class or of what calling a metric returns.
        sampler: the call that made the distributed sampler that it is, or that deals out its batches, of a loader.
        shuffled: where another file makes the shuffling sampler that deals out its batches, of a loader.
        elements: its parts, of a tuple, list or dict that is written out.
        keys: of a dict that is written out, one for each of its parts: a constant, or what is written there.
        constant: the constant that it is.
        order: why the order of its elements is this process's own: "set", "texts" (a set of them), "files",
            "entries" (of a folder), "keys" (of a dict, from this rank's batches) or "".
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
    grad: int = 0
    cut: Cut | None = None
    dtype: str = ""
    measure: Measure | None = None
    call: ast.Call | None = None
    sampler: ast.Call | None = None
    shuffled: Elsewhere | None = None
    elements: tuple[Value, ...] = ()
    keys: tuple[Any, ...] = ()
    constant: Any = None
    order: str = ""

    def for_other_files(self) -> Value:
        """Return what of it can be told without this file's syntax: of a tuple, of its parts too."""
        is_for_ranks = any(part.wrapped or part.shuffled for part in self.elements)
        is_mixed = self.varies == DATA and any(part.varies < DATA for part in self.elements)
        is_short = self.family == "tuple" and len(self.elements) <= _MOST_PARTS
        parts = tuple(part.for_other_files() for part in self.elements) if is_short or is_for_ranks else ()
        varies = UNKNOWN if is_mixed else self.varies
        return self._replace(
            varies=varies,
            target=None,
            sources=_NOTHING,
            cut=None,
            dtype="",
            measure=None,
            call=None,
            sampler=None,
            elements=parts,
            keys=(),
            constant=None,
            order="",
        )

    @property
    def is_local(self) -> bool:
        """True if ranks are known to hold different values."""
        return self.varies > UNKNOWN

    @property
    def is_share(self) -> bool:
        """True if the value is a number made of this rank's share of the data, and of no other's."""
        return self.varies == DATA and not self.reduced and self.family not in ("metric", "flag")

    @property
    def is_rank(self) -> bool:
        """True if the value follows from the rank."""
        return self.varies == RANK


UNKNOWN_VALUE = Value()
SAME_VALUE = Value(SAME)
NONE_VALUE = Value(SAME, family="none")


def items_of(value: Value) -> dict[Any, Value]:
    """Return the items of a dict that is written out; nothing of another value."""
    return dict(zip(value.keys, value.elements, strict=False))


def dtype_of(value: Value) -> str:
    """Return "int" or "float", where the type of a value's numbers is known."""
    if value.dtype or value.constant is None or isinstance(value.constant, bool):
        kinds = {dtype_of(part) for part in value.elements}
        return value.dtype or (kinds.pop() if len(kinds) == 1 else "")
    return {int: "int", float: "float"}.get(type(value.constant), "")


def is_set_by_some(value: Value) -> bool:
    """True if ranks disagree about a value because some of them alone have set it."""
    return value.is_local and value.reason is not None and value.reason.control


def shallow(value: Value) -> Value:
    """Return a value that can be an element: its own parts have none, else pairs of pairs would grow for ever."""
    if not any(part.elements for part in value.elements):
        return value
    return value._replace(elements=tuple(part._replace(elements=()) for part in value.elements))

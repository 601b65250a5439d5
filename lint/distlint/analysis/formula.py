"""Conditions as formulas over atoms, so that two tests of one thing are known to be the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, Union

# How far ranks may disagree about a value; larger wins where two are joined.
SAME = 0
UNKNOWN = 1
DATA = 2
RANK = 3


class Reason(NamedTuple):
    """Why ranks may disagree about a value.

    Attributes:
        line: where that begins.
        text: the source there.
        control: whether the value itself is the same, but was set under a test that ranks answer differently.
        unseen: whether the value went through code that cannot be seen, or in which ranks may have agreed on it.
    """

    line: int
    text: str
    control: bool = False
    unseen: bool = False


class Atom(NamedTuple):
    """A condition that is not taken apart.

    Attributes:
        text: what it asks; equal texts have equal answers.
        varies: how far ranks may answer differently.
        parameter: name of the parameter of ``owner`` that it asks the truth of, or "".
        owner: the function whose parameter or local names it asks about.
        reason: why ranks may answer differently.
        doubt: why they may though nothing says so: "files" of their machines, "entries" in a container, "batches" of
            an iterator that ends, or "".
    """

    text: str
    varies: int = UNKNOWN
    parameter: str = ""
    owner: str = ""
    reason: Reason | None = None
    doubt: str = ""


class Not(NamedTuple):
    """True where ``inside`` is false."""

    inside: Formula


class Some(NamedTuple):
    """True where one of ``inside`` is."""

    inside: tuple[Formula, ...]


class All(NamedTuple):
    """True where all of ``inside`` are."""

    inside: tuple[Formula, ...]


class Constant(NamedTuple):
    """Always the same."""

    value: bool


Formula: TypeAlias = Union["Atom", "Not", "Some", "All", "Constant"]
TRUE = Constant(True)
FALSE = Constant(False)
ZERO = Atom("rank==0", RANK)
LOCAL_ZERO = Atom("local_rank==0", RANK)
_LARGEST = 32  # atoms of a formula that is kept apart; a flag that is set from itself doubles with each line


def negate(formula: Formula) -> Formula:
    """Return the formula that is true where this one is false."""
    if isinstance(formula, Constant):
        return FALSE if formula.value else TRUE
    return formula.inside if isinstance(formula, Not) else Not(formula)


def every(parts: list[Formula]) -> Formula:
    """Return the formula that is true where all parts are."""
    kept = [part for part in dict.fromkeys(parts) if part != TRUE]
    if FALSE in kept:
        return FALSE
    if not kept:
        return TRUE
    if len(kept) == 1:
        return kept[0]
    whole = All(tuple(kept))
    return whole if sum(1 for _ in atoms(whole)) <= _LARGEST else _opaque(whole)


def _opaque(whole: Formula) -> Atom:
    """Return an atom for a formula that is too large to be taken apart."""
    most = max(atoms(whole), key=lambda atom: atom.varies)
    number = zlib.crc32(repr(whole).encode(errors="replace"))
    return most._replace(text=f"{most.text} and more ({number})", parameter="")


def some(parts: list[Formula]) -> Formula:
    """Return the formula that is true where one of the parts is."""
    return negate(every([negate(part) for part in parts]))


def atoms(formula: Formula) -> Iterator[Atom]:
    """The atoms of a formula, in the order of the text."""
    if isinstance(formula, Atom):
        yield formula
    elif isinstance(formula, Not):
        yield from atoms(formula.inside)
    elif not isinstance(formula, Constant):
        for part in formula.inside:
            yield from atoms(part)


def varies(formula: Formula) -> int:
    """Return how far ranks may answer differently."""
    return max((atom.varies for atom in atoms(formula)), default=SAME)


def is_true(formula: Formula, answers: Mapping[str, bool]) -> bool:
    """Return the answer, given that of each atom by its text."""
    if isinstance(formula, Atom):
        return answers[formula.text]
    if isinstance(formula, Constant):
        return formula.value
    if isinstance(formula, Not):
        return not is_true(formula.inside, answers)
    found = (is_true(part, answers) for part in formula.inside)
    return all(found) if isinstance(formula, All) else any(found)


def substitute(formula: Formula, given: Mapping[str, Formula], owner: str) -> Formula:
    """Return the formula with the parameters of a function replaced by what a call gives for them."""
    if isinstance(formula, Constant):
        return formula
    if isinstance(formula, Atom):
        return given.get(formula.parameter, formula) if formula.owner == owner and formula.parameter else formula
    if isinstance(formula, Not):
        return negate(substitute(formula.inside, given, owner))
    parts = [substitute(part, given, owner) for part in formula.inside]
    return every(parts) if isinstance(formula, All) else some(parts)

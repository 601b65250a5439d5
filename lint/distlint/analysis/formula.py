"""Conditions as formulas over atoms, so that two tests of one thing are known to be the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, Union

from distlint.api import have_in_common, is_named

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
        axis: of a mesh, along which alone they do.
    """

    line: int
    text: str
    control: bool = False
    unseen: bool = False
    axis: str = ""


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
        axis: of a mesh, along which alone ranks answer differently.
    """

    text: str
    varies: int = UNKNOWN
    parameter: str = ""
    owner: str = ""
    reason: Reason | None = None
    doubt: str = ""
    axis: str = ""


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
    """Always the same; of a process group or a mesh, which is always true, with the axis that it is along."""

    value: bool
    axis: str = ""


Formula: TypeAlias = Union["Atom", "Not", "Some", "All", "Constant"]
TRUE = Constant(True)
FALSE = Constant(False)
ZERO = Atom("rank==0", RANK)
LOCAL_ZERO = Atom("local_rank==0", RANK)
_LARGEST = 32  # atoms of a formula that is kept apart; a flag that is set from itself doubles with each line


def numbered(kind: str, axis: str, number: object) -> Atom:
    """Return the test for one rank, of all or along an axis; of a group that has no name, as if it were of all."""
    along = f"{axis} " if is_named(axis) else ""
    return Atom(f"{along}{kind}=={number}", RANK, axis=axis)


def picks_one(atom: Atom) -> bool:
    """True if a test picks out a rank by its number, not by something that follows from it."""
    return atom.varies == RANK and atom.reason is None


def axis_of(group: Formula | None) -> str:
    """Return the axis that a process group is along; "" of all ranks, and of nothing that is a group."""
    if isinstance(group, Atom):
        return f"{group.owner}.{group.text}"
    return group.axis if isinstance(group, Constant) else ""


def parts_ranks(atom: Atom, axis: str) -> bool:
    """True if ranks of one group along an axis, "" of all ranks, may answer a test of the rank differently."""
    asked = atom.reason.axis if atom.reason is not None else atom.axis
    if atom.varies != RANK or not axis:
        return atom.varies == RANK
    is_of_all = is_named(axis) and not asked and picks_one(atom) and atom.text != LOCAL_ZERO.text
    return is_of_all or have_in_common(asked, axis)


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

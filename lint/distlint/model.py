"""What the parts of the linter hand to each other: rules, reports, findings."""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import libcst as cst

from distlint.analysis import Analysis
from distlint.concrete import ConcreteTree
from distlint.syntax import Located


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Condition:
    """What a finding depends on and the code does not say: such a finding is for review.

    Attributes:
        lacks: what is not known: that several devices run the code, that an object is pickled, that states are sharded,
            or what the ranks' data are.
        text: the same as the end of the message, such as "if this module is trained on several devices".
    """

    lacks: Literal["devices", "pickled", "sharded", "data"]
    text: str


SEVERAL_DEVICES = Condition("devices", "if it runs on several devices")


def remaining(condition: Condition | None, devices: str) -> Condition | None:
    """Return what a finding still depends on, given what the user says of devices: "one", "many" or ""."""
    return None if condition is not None and condition.lacks == "devices" and devices == "many" else condition


@dataclass(frozen=True)
class TraceStep:
    """A further place that a finding is about, such as the guard that hides a collective.

    Attributes:
        path: the file, as given on the command line.
        line: from 1.
        label: what the place is to the finding, in a word or two.
        text: what is to be seen there.
        cell: number of the cell of a notebook that the line counts in.
    """

    path: str
    line: int
    label: str
    text: str
    cell: int | None = None

    @property
    def place(self) -> str:
        """The file, or the cell of a notebook."""
        return place(self.path, self.cell)


@dataclass(frozen=True)
class Edit:
    """Replace a region of the file, or of a cell of a notebook, by ``text``."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    cell: int | None = None


@dataclass(frozen=True)
class Fix:
    """Edits that remove a finding; ``safe`` when they cannot change what right code does."""

    safe: bool
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Finding:
    """One thing to report, with lines and columns from 1.

    Attributes:
        code: stable code of the rule, such as ``DL101``.
        name: stable name of the rule, such as ``collective-under-rank-guard``.
        message: one sentence.
        path: the file, as given on the command line.
        line: first line.
        column: first column.
        end_line: last line.
        end_column: column after the last character.
        severity: error or warning.
        fix: how to repair it, if that is known.
        trace: further places, in the order of reading.
        statement: first and last line of the statement, where a suppression comment may stand.
        cell: number of the cell of a notebook that lines count in, from 1, cells of text counted.
        condition: what it depends on, told by the message too; None where it follows from the code.
    """

    code: str
    name: str
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: Severity = Severity.ERROR
    fix: Fix | None = None
    trace: tuple[TraceStep, ...] = ()
    statement: tuple[int, int] = field(default=(0, 0), compare=False)
    cell: int | None = None
    condition: Condition | None = None

    @property
    def place(self) -> str:
        """The file, or the cell of a notebook."""
        return place(self.path, self.cell)

    @property
    def confidence(self) -> Literal["sure", "review"]:
        """Whether it follows from the code, or depends on what only the reader knows."""
        return "sure" if self.condition is None else "review"

    @property
    def level(self) -> str:
        """Error, warning, or note for what is for review: its severity in the words of other programs."""
        return "note" if self.condition is not None else self.severity.value


def place(path: str, cell: int | None) -> str:
    """What to call a file, or a cell of a notebook."""
    return path if cell is None else f"{path}:cell {cell}"


@dataclass(frozen=True)
class Change:
    """New source for a node, or a line beside a statement.

    Attributes:
        node: what is replaced; for a line beside it, a statement.
        text: its new source; "" removes it. A line beside a statement gets the statement's indentation.
        where: in its place, or on a line of its own before or after it.
    """

    node: cst.CSTNode
    text: str
    where: Literal["instead", "before", "after"] = "instead"

    @classmethod
    def adding(cls, tree: ConcreteTree, call: cst.Call, argument: str) -> Change:
        """One more argument after the last one of a call."""
        last = call.args[-1].value
        return cls(last, f"{tree.source_at(last)}, {argument}")


@dataclass(frozen=True)
class Repair:
    """How a finding can be removed; ``safe`` when the changes cannot alter what right code does."""

    safe: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Report:
    """What a rule yields: a node of Python's own tree.

    Attributes:
        node: the place.
        message: one sentence.
        trace: further places: path, line, label and text.
        condition: what it depends on, where it does not follow from the code.
        repair: makes a repair, if there is one, given the place in the concrete tree; asked for files with findings.
    """

    node: Located
    message: str
    trace: tuple[tuple[str, int, str, str], ...] = ()
    condition: Condition | None = None
    repair: Callable[[ConcreteTree, cst.CSTNode], Repair | None] | None = None


@dataclass(frozen=True)
class Example:
    """Source that a rule must report, line by line: its documentation and its test.

    Attributes:
        source: a small module.
        marks: line to a part of the message expected there; no other line may be reported.
    """

    source: str
    marks: dict[int, str]


class Rule(ABC):
    """One code. The docstring of a rule is its page; its examples are its tests.

    Attributes:
        code: stable, never reused.
        name: stable, in words.
        group: the family that the page is filed under.
        severity: error where a job hangs, crashes or reports a wrong number.
        tokens: for the prefilter. A file can matter when at least one token of *each* group occurs.
        evidence: a last question of the prefilter, for rules that tokens cannot tell enough about.
        bad: what must be reported.
        good: what must not.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    group: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    tokens: ClassVar[tuple[tuple[bytes, ...], ...]]
    evidence: ClassVar[staticmethod[[bytes], bool]] = staticmethod(bool)
    bad: ClassVar[Sequence[Example]]
    good: ClassVar[Sequence[str]]

    @abstractmethod
    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Everything that this rule has to say about one file."""

    @classmethod
    def page(cls) -> str:
        """The rule's documentation, without indentation."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """The first line of the page."""
        return cls.page().partition("\n")[0]

"""What the linter reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from distlint.text import Edit

SYNTAX_ERROR = "DL000"


@dataclass(frozen=True)
class Related:
    """A further place that a finding is about, such as the test of the rank.

    Attributes:
        path: the file, as given on the command line.
        line: from 1.
        label: what the place is to the finding, in a word or two.
        text: what is to be seen there.
        cell: the cell of a notebook that the line counts in.
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
class Fix:
    """Edits that remove a finding; ``safe`` if they cannot change what right code does."""

    safe: bool
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Finding:
    """One thing to report, with lines and columns from 1.

    Attributes:
        code: of the rule, such as ``DL101``.
        name: of the rule, such as ``collective-under-rank-guard``.
        message: one sentence.
        path: the file, as given on the command line.
        line: first line.
        column: first column.
        end_line: last line.
        end_column: the column after the last character.
        severity: ``"error"`` or ``"warning"``.
        fix: how to repair it, if that is known.
        trace: further places, in the order of reading.
        statement: first and last line of the statement, where a comment may silence it.
        cell: the cell of a notebook that lines count in, from 1, cells of text counted.
        waits: whether it holds only where several devices run the code.
    """

    code: str
    name: str
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: str = "error"
    fix: Fix | None = None
    trace: tuple[Related, ...] = ()
    statement: tuple[int, int] = field(default=(0, 0), compare=False)
    cell: int | None = None
    waits: bool = False

    @property
    def place(self) -> str:
        """The file, or the cell of a notebook."""
        return place(self.path, self.cell)


def is_applicable(found: Finding, *, unsafe: bool) -> bool:
    """Return whether a finding has a fix of a kind that the user has asked for."""
    return found.fix is not None and (found.fix.safe or unsafe)


def place(path: str, cell: int | None) -> str:
    """Return what a file, or a cell of a notebook, is called."""
    return path if cell is None else f"{path}:cell {cell}"


def unreadable(path: str, line: int, column: int, message: str) -> Finding:
    """Return the finding for a file, or a cell of a notebook, that cannot be read."""
    said = " ".join(message.split())
    where = (path, line, column, line, column)
    return Finding(
        SYNTAX_ERROR, "syntax-error", f"cannot be parsed: {said}", *where, statement=(line, line)
    )

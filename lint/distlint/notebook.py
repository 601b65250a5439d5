"""Notebooks: all code cells as one module, positions by cell, and fixes written back into them."""

from __future__ import annotations

import json
import re
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlint.finding import Finding, Fix, Related, place, unreadable
from distlint.magics import Magics
from distlint.syntax import Broken, error_of
from distlint.text import Edit, Text, split_lines

NOTEBOOK = ".ipynb"
_MARK = re.compile(r"^# %% distlint-cell (\d+)\n", re.MULTILINE)
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_BYTE_ORDER_MARK = "\ufeff"


class NotebookError(Exception):
    """A file that is no notebook.

    Attributes:
        line: where, from 1.
        column: where, from 1.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Cell:
    """A code cell.

    Attributes:
        number: of the cell in the notebook, from 1, cells of text counted.
        source: as the user wrote it.
        span: where the file has it, as a JSON value.
    """

    number: int
    source: str
    span: tuple[int, int]


class Notebook:
    """A notebook of Python.

    Args:
        source: the file.

    Raises:
        NotebookError: it is none.
    """

    def __init__(self, source: bytes) -> None:
        self._text = _decode(source)
        self._is_ascii = self._text.removeprefix(_BYTE_ORDER_MARK).isascii()
        self.cells = list(_code_cells(self._text)) if _is_in_python(_load(self._text)) else []
        self.broken: list[tuple[Cell, Broken]] = []
        self._magics = Magics()
        self._starts: list[int] = []
        parts: list[str] = []
        line = 1
        for cell in self.cells:
            parts += [f"# %% distlint-cell {cell.number}", *self._shown(cell)]
            self._starts.append(line)
            line = len(parts) + 1
        self.python = "\n".join([*parts, ""]).encode()

    def _shown(self, cell: Cell) -> list[str]:
        shown = self._magics.hide(cell.source)
        error = error_of(shown)
        if error is not None:
            if (
                error_of(textwrap.dedent(shown)) is not None
            ):  # IPython takes cells that are indented as a whole
                self.broken.append((cell, error))
            shown = self._magics.hide_all(cell.source)
        return shown.split("\n")

    def lines(self, path: str) -> dict[str, list[str]]:
        """The lines of every cell, by the name that findings give it."""
        return {place(path, cell.number): split_lines(cell.source) for cell in self.cells}

    def locate(self, found: Finding) -> Finding:
        """A finding of the module as one of a cell."""
        cell, start = self._cell(found.line)
        first, last = found.statement
        return replace(
            found,
            cell=cell.number,
            line=found.line - start,
            end_line=found.end_line - start,
            statement=(first - start, last - start),
            trace=tuple(self._locate_step(step) for step in found.trace),
            fix=None
            if found.fix is None
            else Fix(found.fix.safe, tuple(map(self._locate_edit, found.fix.edits))),
        )

    def _locate_step(self, step: Related) -> Related:
        cell, start = self._cell(step.line)
        return replace(step, cell=cell.number, line=step.line - start)

    def _locate_edit(self, edit: Edit) -> Edit:
        cell, start = self._cell(edit.line)
        line, lines = max(1, edit.line - start), split_lines(cell.source)
        if line > len(lines) > 0:  # after the last line, which ends without a line end
            end = len(lines[-1]) + 1
            return Edit(
                line - 1, end, line - 1, end, "\n" + edit.text.removesuffix("\n"), cell.number
            )
        return replace(edit, cell=cell.number, line=line, end_line=max(1, edit.end_line - start))

    def _cell(self, line: int) -> tuple[Cell, int]:
        """The cell of a line, and the line of its mark; a mark is the end of the cell before."""
        at = max(0, bisect_left(self._starts, line) - 1)
        return self.cells[at], self._starts[at]

    def located(self, path: str, findings: Sequence[Finding]) -> list[Finding]:
        """Findings of the module by cell, with those for cells that are no Python."""
        found = [
            replace(unreadable(path, error.line, error.column, error.message), cell=cell.number)
            for cell, error in self.broken
        ]
        found += [self.locate(each) for each in findings]
        return sorted(found, key=lambda each: (each.cell or 0, each.line, each.column, each.code))

    def written(self, python: bytes) -> bytes:
        """The file with the cells of a changed module; all else is as it was, byte for byte.

        Raises:
            ValueError: the module no longer has the notebook's cells, or IPython's lines.
        """
        restored = self._magics.restore(python.decode())
        before, *rest = _MARK.split(restored)
        numbers, sources = rest[::2], rest[1::2]
        if numbers != [str(cell.number) for cell in self.cells]:
            raise ValueError("a cell is gone")
        parts, done = [], 0
        for cell, source in zip(self.cells, sources, strict=True):
            new = before + source.removesuffix("\n")
            before = ""
            if new != cell.source:
                first, last = cell.span
                parts += [
                    self._text[done:first],
                    _encode(new, self._text[first:last], is_ascii=self._is_ascii),
                ]
                done = last
        return ("".join(parts) + self._text[done:]).encode()


def python_of(source: bytes, path: str) -> bytes:
    """Return the Python in a file; none of a broken notebook, which is a finding when checked."""
    try:
        return Notebook(source).python if path.endswith(NOTEBOOK) else source
    except NotebookError:
        return b""


def lines_of(source: bytes, path: str) -> dict[str, list[str]]:
    """Return the lines of a file, or of each cell, by the place that findings name."""
    if path.endswith(NOTEBOOK):
        try:
            return Notebook(source).lines(path)
        except NotebookError:
            pass  # it is a finding, whose frame is the file itself
    try:
        return {path: Text.decode(source).lines}
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return {path: split_lines(source.decode("utf-8", "replace"))}


def _decode(source: bytes) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise NotebookError(
            "cannot decode this line as utf-8", source.count(b"\n", 0, error.start) + 1
        ) from None


def _load(text: str) -> dict[str, Any]:
    if text.startswith("version https://git-lfs"):
        raise NotebookError(
            "a pointer of Git LFS, not the notebook itself: run git lfs pull, or exclude the file"
        )
    try:
        notebook = json.loads(text.removeprefix(_BYTE_ORDER_MARK))
    except json.JSONDecodeError as error:
        raise NotebookError(f"not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise NotebookError("its JSON is nested too deeply") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise NotebookError("no notebook of version 4 or later: it has no list of cells")
    return notebook


def _is_in_python(notebook: dict[str, Any]) -> bool:
    metadata = notebook.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    for key, field in (("kernelspec", "language"), ("language_info", "name")):
        section = given.get(key)
        language = section.get(field) if isinstance(section, dict) else None
        if isinstance(language, str):
            return "python" in language.lower()
    return True


def _code_cells(text: str) -> Iterator[Cell]:
    start = text.index("{")
    cells = {key: at for key, at, _ in _members(text, start)}["cells"]
    for number, (first, _) in enumerate(_items(text, cells), 1):
        if text[first] != "{":
            continue
        fields = {key: (at, end) for key, at, end in _members(text, first)}
        kind, source = (
            json.loads(text[slice(*fields[key])]) if key in fields else None
            for key in ("cell_type", "source")
        )
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if kind == "code" and isinstance(source, str):
            yield Cell(number, source, fields["source"])


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of every value of the JSON object at ``start``."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        first = _skip(text, _skip(text, at) + 1)
        _, last = _DECODER.raw_decode(text, first)
        yield key, first, last
        at = _next(text, last)


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Start and end of every value of the JSON array at ``start``."""
    at = _skip(text, start + 1)
    while text[at] != "]":
        _, last = _DECODER.raw_decode(text, at)
        yield at, last
        at = _next(text, last)


def _next(text: str, end: int) -> int:
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _encode(source: str, old: str, *, is_ascii: bool) -> str:
    """A cell's source as JSON, laid out as it was."""
    if not old.startswith("["):
        return json.dumps(source, ensure_ascii=is_ascii)
    lines = [
        json.dumps(line, ensure_ascii=is_ascii) for line in re.findall(r"[^\n]*\n|[^\n]+", source)
    ]
    before, after = old[1 : _skip(old, 1)], old[len(old[:-1].rstrip()) : -1]
    between = before if "\n" in before else " " if '", "' in old else ""
    return f"[{before}{(',' + between).join(lines)}{after}]"

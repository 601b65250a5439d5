"""A file's text by lines and columns, edited in place and written back with its own encoding and line ends."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import accumulate

from distlint.model import Edit

_LINE_END = re.compile(r"\r\n?|\n")


def split_lines(text: str) -> list[str]:
    """The lines as Python counts them, without their ends; other separators of ``str.splitlines`` stay inside."""
    lines = _LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


@dataclass(frozen=True)
class Text:
    """The text of a file.

    Attributes:
        text: decoded, with the line ends of the file.
        encoding: what it was decoded from, a byte order mark included.
    """

    text: str
    encoding: str = "utf-8"

    @classmethod
    def decode(cls, source: bytes) -> Text:
        """By byte order mark or coding line, as Python reads it.

        Raises:
            SyntaxError: a coding line that means nothing.
            UnicodeDecodeError: other bytes than the encoding has.
        """
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
        return cls(source.decode(encoding), encoding)

    def encode(self) -> bytes:
        """The bytes of the file."""
        return self.text.encode(self.encoding)

    @cached_property
    def lines(self) -> list[str]:
        """Without their ends."""
        return split_lines(self.text)

    @cached_property
    def newline(self) -> str:
        """The line end that the file uses first."""
        found = _LINE_END.search(self.text)
        return "\n" if found is None else found[0]

    def adapted(self, text: str) -> str:
        """Another text with the line ends of this one."""
        return _LINE_END.sub(self.newline, text)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def offset(self, line: int, column: int) -> int:
        """Where a line and column, both from 1, are in the text; places past the end are the end."""
        if line > len(self._starts):
            return len(self.text)
        return min(self._starts[line - 1] + column - 1, len(self.text))

    def span(self, edit: Edit) -> tuple[int, int]:
        """The region that an edit replaces."""
        return self.offset(edit.line, edit.column), self.offset(edit.end_line, edit.end_column)

    def edited(self, edits: Iterable[Edit]) -> Text:
        """The text after edits that do not overlap; of those at one place in their order, the same one once."""
        spans = sorted(((*self.span(edit), edit.text) for edit in dict.fromkeys(edits)), key=lambda span: span[:2])
        ends = [0, *accumulate((end for _, end, _ in spans), max)]
        parts = [self.text[end:start] + new for end, (start, _, new) in zip(ends, spans, strict=False)]
        return Text("".join(parts) + self.text[ends[-1] :], self.encoding)

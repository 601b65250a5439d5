"""The text of a file: decoded, addressed by line and column, edited and encoded again."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import accumulate

LARGEST = 1 << 20  # bytes: larger files are told of and not read
_LINE_END = re.compile(r"\r\n?|\n")
# The tokens of Python, as far as strings, comments and brackets are concerned.
TOKENS = re.compile(
    r"""[bfrtu]{0,2}(?P<quote>\"{3}|'{3})(?:\\.|.)*?(?P=quote)|[bfrtu]{0,2}"(?:\\.|[^"\\\n])*"
    |[bfrtu]{0,2}'(?:\\.|[^'\\\n])*'|\#[^\n]*|(?P<mark>[()\[\]{},;]|\\?\n)|\w+|[^\w\s]""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Edit:
    """Replace a region of the file, or of one cell of a notebook, by ``text``."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    cell: int | None = None


def split_lines(text: str) -> list[str]:
    """Return the lines as Python counts them, without their ends."""
    lines = _LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def lines_in_strings(text: str) -> set[int]:
    """Return the lines of a text, from 0, that begin inside of a string."""
    found: set[int] = set()
    for token in TOKENS.finditer(text):
        if token["quote"]:
            first = text.count("\n", 0, token.start())
            found |= set(range(first + 1, first + token[0].count("\n") + 1))
    return found


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
        """Decode by byte order mark or coding line, as Python does.

        Raises:
            SyntaxError: a coding line that means nothing.
            UnicodeDecodeError: other bytes than the encoding has.
        """
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
        return cls(source.decode(encoding), encoding)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return self.text.encode(self.encoding)

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return split_lines(self.text)

    @cached_property
    def newline(self) -> str:
        """The line end that the file uses first."""
        found = _LINE_END.search(self.text)
        return "\n" if found is None else found[0]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def offset(self, line: int, column: int) -> int:
        """Return where a line and column, both from 1, are; places past the end are the end."""
        if line > len(self._starts):
            return len(self.text)
        return min(self._starts[line - 1] + column - 1, len(self.text))

    def span(self, edit: Edit) -> tuple[int, int]:
        """Return the region that an edit replaces."""
        first = self.offset(edit.line, edit.column)
        return first, self.offset(edit.end_line, edit.end_column)

    def edited(self, edits: Iterable[Edit]) -> Text:
        """Return the text after edits that do not overlap; the same edit counts once."""
        spans = sorted(
            ((*self.span(edit), edit.text) for edit in dict.fromkeys(edits)),
            key=lambda span: span[:2],
        )
        ends = [0, *accumulate((end for _, end, _ in spans), max)]
        parts = [
            self.text[end:start] + new for end, (start, _, new) in zip(ends, spans, strict=False)
        ]
        return Text("".join(parts) + self.text[ends[-1] :], self.encoding)

"""``# distlint: ignore[DL101] reason`` on a statement's first or last line; ``ignore-file`` anywhere."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field

from distlint.model import Finding

_COMMENT = re.compile(r"#\s*distlint:\s*(?P<what>ignore-file|ignore)\b(?:\[(?P<codes>[^\]]*)\])?")
ALL = frozenset({"*"})


@dataclass
class Suppressions:
    """The comments of one file.

    Attributes:
        lines: the codes ignored on each line.
        file: the codes ignored everywhere.
    """

    lines: dict[int, frozenset[str]] = field(default_factory=dict)
    file: frozenset[str] = frozenset()

    def hide(self, finding: Finding) -> bool:
        """Whether a comment asks not to report a finding."""
        places = {finding.line, *finding.statement}
        ignored = self.file.union(*(self.lines.get(line, frozenset()) for line in places))
        return finding.code in ignored or ignored >= ALL


def find_suppressions(text: str) -> Suppressions:
    """Read the comments of a file that can be parsed."""
    found = Suppressions()
    if "distlint:" not in text:
        return found
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        given = match["codes"]
        codes = ALL if given is None else frozenset(code.strip().upper() for code in given.split(",") if code.strip())
        if match["what"] == "ignore-file":
            found.file |= codes
        else:
            line = token.start[0]
            found.lines[line] = found.lines.get(line, frozenset()) | codes
    return found

"""What is said besides findings: counts, differences, and in which colour."""

from __future__ import annotations

import difflib
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from distlint.fix import is_applicable
from distlint.model import Finding
from distlint.run import Checked
from distlint.text import Text


def summary(checked: Checked) -> str:
    """The last line: how much was found, and how much of it can be fixed with which option."""
    safe = sum(is_applicable(found, unsafe=False) for found in checked.findings)
    more = sum(is_applicable(found, unsafe=True) for found in checked.findings) - safe
    ways = [f"{safe} fixable with --fix"] * (safe > 0)
    ways += [f"{more} {'more' if safe else 'fixable'} with --fix --unsafe-fixes"] * (more > 0)
    shown = f" ({', '.join(ways)})" if ways else ""
    shown += f"; {checked.hidden} more with --review" if checked.hidden else ""
    return f"{count(len(checked.findings), 'finding')} in {count(checked.files, 'file')}{shown}\n"


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'s' * (number != 1)}"


def statistics(findings: Sequence[Finding], *, as_json: bool) -> str:
    """How many findings each rule has, and how many of them can be fixed."""
    rows = []
    for (code, name), number in sorted(Counter((found.code, found.name) for found in findings).items()):
        mine = [found for found in findings if found.code == code]
        safe = sum(is_applicable(found, unsafe=False) for found in mine)
        unsafe = sum(is_applicable(found, unsafe=True) for found in mine) - safe
        rows.append({"code": code, "name": name, "count": number, "fixable": safe, "fixable_unsafe": unsafe})
    if as_json:
        return json.dumps(rows, indent=1) + "\n"
    return "".join(_statistics_line(**row) for row in rows)  # type: ignore[arg-type]


def _statistics_line(*, code: str, name: str, count: int, fixable: int, fixable_unsafe: int) -> str:
    ways = [f"{fixable} with --fix"] * (fixable > 0) + [f"{fixable_unsafe} with --fix --unsafe-fixes"] * (
        fixable_unsafe > 0
    )
    return f"{count:>6}  {code}  {name}" + (f"  ({', '.join(ways)})" if ways else "") + "\n"


def diff(path: str, before: bytes, after: bytes) -> str:
    """How a file would change."""
    old, new = (list(io.StringIO(Text.decode(source).text, newline="")) for source in (before, after))
    lines = difflib.unified_diff(old, new, path, path)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def is_coloured(wish: str, out: TextIO) -> bool:
    """By the option, then NO_COLOR and FORCE_COLOR, then whether people are looking."""
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or out.isatty()

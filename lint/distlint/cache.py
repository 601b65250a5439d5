"""What is known of files from runs before, by their content and all that findings depend on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from distlint.facts import ClassFact, Fact, Facts, Scan
from distlint.files import write_atomically
from distlint.finding import Finding, Fix, Related
from distlint.text import Edit

FOLDER = ".distlint_cache"
VARIABLE = "DISTLINT_CACHE_DIR"
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # of the cache directory tagging specification
)


class Cache:
    """The results of one set of rules.

    Args:
        folder: where it is kept.
        codes: of the rules that are applied.
    """

    def __init__(self, folder: Path, codes: Iterable[str]) -> None:
        self._file = folder / f"{digest(_own_hash(), *codes)}.json"
        self._contents: dict[str, str] = {}
        self._scans: dict[str, list[Any]] = {}
        self._findings: dict[str, list[Any]] = {}
        self._is_changed = False
        self._read()

    def _read(self) -> None:
        try:
            hashed, _, stored = self._file.read_bytes().partition(b"\n")
        except OSError:
            return  # the first run
        if hashed.decode("ascii", "replace") == digest(stored):
            known = json.loads(stored)
            self._scans, self._findings = known["scans"], known["findings"]
        # else damaged, or not ours: it will be written anew

    def _content(self, path: str) -> str:
        if path not in self._contents:
            try:
                self._contents[path] = digest(Path(path).read_bytes())
            except OSError:
                self._contents[path] = ""
        return self._contents[path]

    def scan(self, path: str) -> Scan | None:
        """Return what a file says of its project, if it has not changed."""
        known = self._scans.get(path)
        if known is None or known[0] != self._content(path) or not known[0]:
            return None
        facts, classes, imported = known[1]
        return Scan(
            tuple(Fact(*each) for each in facts),
            tuple(ClassFact(name, tuple(b), frozenset(m)) for name, b, m in classes),
            frozenset(imported),
        )

    def keep_scan(self, path: str, scan: Scan) -> None:
        """Remember what a file says of its project."""
        facts = [[getattr(each, field.name) for field in fields(Fact)] for each in scan.facts]
        classes = [[each.name, list(each.bases), sorted(each.methods)] for each in scan.classes]
        self._scans[path] = [self._content(path), [facts, classes, sorted(scan.imported)]]
        self._is_changed = True

    def findings(self, path: str, facts: Facts) -> list[Finding] | None:
        """Return what was found in a file, if neither it nor what it is told has changed."""
        known = self._findings.get(path)
        if known is None or known[:2] != [self._content(path), facts_key(facts)] or not known[0]:
            return None
        return [_finding(each) for each in known[2]]

    def keep_findings(self, path: str, facts: Facts, findings: Iterable[Finding]) -> None:
        """Remember what was found in a file."""
        plain = [asdict(each) for each in findings]
        self._findings[path] = [self._content(path), facts_key(facts), plain]
        self._is_changed = True

    def save(self) -> None:
        """Write what is new. Two runs at a time may each forget what the other has found.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._is_changed:
            return
        for known in (self._scans, self._findings):
            for path in [each for each in known if not os.path.exists(each)]:  # noqa: PTH110
                del known[path]
        folder = self._file.parent
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((".gitignore", "*\n"), ("CACHEDIR.TAG", _TAG)):
            if not (folder / name).exists():
                write_atomically(folder / name, text.encode())
        stored = json.dumps({"scans": self._scans, "findings": self._findings}).encode()
        write_atomically(self._file, digest(stored).encode() + b"\n" + stored)


def _finding(stored: dict[str, Any]) -> Finding:
    fix = stored["fix"]
    edits = tuple(Edit(**each) for each in fix["edits"]) if fix is not None else ()
    return Finding(
        **stored
        | {
            "fix": Fix(fix["safe"], edits) if fix is not None else None,
            "trace": tuple(Related(**each) for each in stored["trace"]),
            "statement": tuple(stored["statement"]),
        }
    )


def facts_key(facts: Facts) -> str:
    """Return a hash of all that a file is told of its project."""
    shown = {each.name: _plain(getattr(facts, each.name)) for each in fields(Facts)}
    return digest(json.dumps(shown, sort_keys=True))


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return [_plain(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def digest(*parts: str | bytes) -> str:
    """Return a hash of texts and bytes."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little") + raw)
    return state.hexdigest()


@cache
def _own_hash() -> str:
    """Return a hash of the linter itself, of what it parses with, and of Python."""
    here = Path(__file__).parent
    sources = (path.read_bytes() for path in sorted(here.glob("*.py")))
    rules = (path.read_bytes() for path in sorted((here / "rules").glob("*.py")))
    return digest(version("libcst"), sys.version, *sources, *rules)

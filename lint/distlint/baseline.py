"""Findings that are known already, told by what the code says and not by where it stands."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distlint.finding import Finding

_VERSION = 1


def content_hash(found: Finding, lines: Sequence[str]) -> str:
    """Return a hash of code and statement, wherever it moves and however it is indented."""
    first, last = found.statement if found.statement != (0, 0) else (found.line, found.end_line)
    statement = [line.strip() for line in lines[first - 1 : last]]
    return hashlib.sha256(
        "\n".join([found.code, *statement]).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


def fingerprints(findings: Iterable[Finding], sources: Mapping[str, Sequence[str]]) -> list[str]:
    """One for each finding, in their order: the same statement found again in a file gets a number.

    Args:
        findings: of any number of files.
        sources: the lines of the files, by the place that findings name.
    """
    seen: Counter[tuple[str, str]] = Counter()
    made = []
    for found in findings:
        content = content_hash(found, sources.get(found.place, ()))
        seen[found.path, content] += 1
        number = seen[found.path, content]
        made.append(content if number == 1 else f"{content}-{number}")
    return made


class BaselineError(Exception):
    """A file that is no baseline."""


@dataclass(frozen=True, order=True)
class Entry:
    """What is known of one statement, or of several that read the same.

    Attributes:
        path: the file, from the baseline's folder, with forward slashes.
        code: of the rule.
        hash: of the statement.
        message: for readers of the baseline.
    """

    path: str
    code: str
    hash: str
    message: str = field(compare=False)


@dataclass
class Baseline:
    """Known findings, each with how often it occurs.

    Attributes:
        folder: of the baseline's file: paths are told from there.
        entries: what is known.
    """

    folder: Path
    entries: Counter[Entry] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, findings: Iterable[Finding], sources: Mapping[str, Sequence[str]], folder: Path
    ) -> Baseline:
        """Take findings for known."""
        made = cls(folder)
        made.entries.update(made._entry(found, sources) for found in findings)
        return made

    @classmethod
    def read(cls, file: Path) -> Baseline:
        """What was written before.

        Raises:
            BaselineError: the file holds something else.
        """
        try:
            data = json.loads(file.read_text("utf-8"))
            if data["version"] != _VERSION:
                raise BaselineError(
                    f"{file} has version {data['version']} of the baseline's format, not {_VERSION}"
                )
            made = cls(file.parent)
            for known in data["findings"]:
                entry = Entry(known["path"], known["code"], known["hash"], known["message"])
                made.entries[entry] += int(known["count"])
        except (ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise BaselineError(
                f"{file} is no baseline of distlint ({said}); --write-baseline makes a new file"
            ) from None
        return made

    def text(self) -> str:
        """The file: one line an entry, so that versions can be compared."""
        shown = [
            json.dumps({**vars(entry), "count": count}, ensure_ascii=False)
            for entry, count in sorted((+self.entries).items())
        ]
        inside = "".join(f"\n  {line}," for line in shown)[:-1]
        return f'{{"version": {_VERSION}, "findings": [{inside}\n]}}\n'

    def split(
        self, findings: Iterable[Finding], sources: Mapping[str, Sequence[str]]
    ) -> tuple[list[Finding], Counter[Entry]]:
        """New findings, and known ones that were not met."""
        left = self.entries.copy()
        new = []
        for found in findings:
            entry = self._entry(found, sources)
            if left[entry] > 0:
                left[entry] -= 1
            else:
                new.append(found)
        return new, +left

    def gone(self, left: Counter[Entry], checked: Iterable[str], codes: Collection[str]) -> int:
        """How many known findings no longer exist, of those that this run could have met."""
        files = {self._path(path) for path in checked}
        return sum(
            count for entry, count in left.items() if self._could_be_met(entry, files, codes)
        )

    def keep(self, before: Baseline, checked: Iterable[str], codes: Collection[str]) -> None:
        """Take over what a run could not have met: other files, and rules that were not applied."""
        files = {self._path(path) for path in checked}
        for entry, count in before.entries.items():
            if not self._could_be_met(entry, files, codes):
                self.entries[entry] = count

    def _could_be_met(self, entry: Entry, files: Collection[str], codes: Collection[str]) -> bool:
        return entry.code in codes and (
            entry.path in files or not (self.folder / entry.path).exists()
        )

    def _entry(self, found: Finding, sources: Mapping[str, Sequence[str]]) -> Entry:
        return Entry(
            self._path(found.path),
            found.code,
            content_hash(found, sources.get(found.place, ())),
            found.message,
        )

    def _path(self, path: str) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()

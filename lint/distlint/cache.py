"""What is known of files from runs before, by their content and by all else that findings depend on."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import libcst

from distlint.analysis import Summary, Value
from distlint.analysis.events import Branch, Exit, Handled, Inlined, Loop, Place, Step
from distlint.analysis.formula import All, Atom, Constant, Not, Reason, Some
from distlint.analysis.project import ClassSummary, Project, Settings, WrappedArgument
from distlint.api import Effect
from distlint.engine import Examined
from distlint.fix import write_atomically
from distlint.model import Condition, Edit, Finding, Fix, Severity, TraceStep
from distlint.project.handed import Handed
from distlint.project.outline import Outline
from distlint.project.scan import Scanned

FOLDER = ".distlint_cache"
VARIABLE = "DISTLINT_CACHE_DIR"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"  # of the cache directory tagging specification
_SIZE = 20  # bytes of a hash
_STORED: dict[tuple[str, str], type] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        All,
        Atom,
        Branch,
        ClassSummary,
        Condition,
        Constant,
        Edit,
        Effect,
        Examined,
        Exit,
        Finding,
        Fix,
        Handed,
        Handled,
        Inlined,
        Loop,
        Not,
        Outline,
        Place,
        Reason,
        Scanned,
        Severity,
        Some,
        Step,
        Summary,
        TraceStep,
        Value,
        WrappedArgument,
        frozenset,
        set,
    )
}


class Cache:
    """The results of one set of rules and settings.

    Args:
        folder: where it is kept.
        codes: of the rules that are applied.
        settings: what the user has declared.
    """

    def __init__(self, folder: Path, codes: Iterable[str], settings: Settings) -> None:
        key = digest(_own_hash(), tuple(codes), _plain(settings))
        self._file = folder / f"{key.hex()}.pickle"
        self._hashes: dict[str, bytes] = {}
        self._scanned: dict[str, tuple[bytes, Scanned]] = {}
        self._examined: dict[str, tuple[bytes, dict[bytes, Examined]]] = {}
        self._is_changed = False
        self._summaries: dict[int, bytes] = {}
        self._kept: list[object] = []
        self._read()

    def _read(self) -> None:
        try:
            stored = self._file.read_bytes()
        except OSError:
            return  # the first run
        if hashlib.blake2b(stored[_SIZE:], digest_size=_SIZE).digest() != stored[:_SIZE]:
            return  # damaged: it will be written anew
        try:
            self._scanned, self._examined = _Reader(io.BytesIO(stored[_SIZE:])).load()
        except pickle.UnpicklingError:
            return  # whole, yet not ours

    def content(self, path: str) -> bytes:
        """The hash of a file's content; empty for a file that cannot be read."""
        if path not in self._hashes:
            try:
                self._hashes[path] = digest(Path(path).read_bytes())
            except OSError:
                self._hashes[path] = b""
        return self._hashes[path]

    def scanned(self, path: str) -> Scanned | None:
        """What the first pass found in the file, if it has not changed."""
        known = self._scanned.get(path)
        return known[1] if known is not None and known[0] == self.content(path) != b"" else None

    def keep_scanned(self, path: str, scanned: Scanned) -> None:
        """Remember the first pass over a file."""
        self._scanned[path] = (self.content(path), scanned)
        self._is_changed = True

    def examined(self, path: str, key: bytes) -> Examined | None:
        """What the second pass found in the file, if neither it nor what it knows of others has changed."""
        content, known = self._examined.get(path, (b"", {}))
        return known.get(key) if content == self.content(path) != b"" else None

    def keep_examined(self, path: str, key: bytes, examined: Examined) -> None:
        """Remember the second pass over a file; what was found in other content of it is forgotten."""
        content, known = self._examined.get(path, (b"", {}))
        if content != self.content(path):
            known = {}
        self._examined[path] = (self.content(path), {**known, key: examined})
        self._is_changed = True

    def key(self, project: Project, *, is_wanted: bool) -> bytes:
        """All that the second pass over a file depends on besides its content, the rules and the settings.

        Args:
            project: what the file knows of the others.
            is_wanted: whether rules are applied to it.
        """
        return digest(
            b"wanted" if is_wanted else b"",
            bytes([project.spawns, project.is_launched]),
            tuple(sorted(map(repr, project.wrapped))),
            tuple(sorted(project.placed)),
            tuple(sorted(project.pickled)),
            project.evidence,
            tuple(sorted(project.opt_outs)),
            tuple(sorted(project.names.items())),
            *(self._summary(project.classes[name]) for name in sorted(project.classes)),
            *(self._summary(project.functions[name]) for name in sorted(project.functions)),
        )

    def _summary(self, summary: object) -> bytes:
        found = self._summaries.get(id(summary))
        if found is None:
            found = self._summaries[id(summary)] = digest(_plain(summary))
            self._kept.append(summary)  # so that its id stays its own
        return found

    def save(self) -> None:
        """Write what is new. Two runs at a time may each forget what the other has found, never mix it up.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._is_changed:
            return
        for known in (self._scanned, self._examined):
            for path in [path for path in known if path not in self._hashes and not os.path.exists(path)]:  # noqa: PTH110
                del known[path]
        folder = self._file.parent
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((".gitignore", "*\n"), ("CACHEDIR.TAG", _TAG)):
            if not (folder / name).exists():
                write_atomically(folder / name, text.encode())
        stored = pickle.dumps((self._scanned, self._examined), pickle.HIGHEST_PROTOCOL)
        write_atomically(self._file, hashlib.blake2b(stored, digest_size=_SIZE).digest() + stored)


class _Reader(pickle.Unpickler):
    """Reads nothing but what is written here: a cache may have come with somebody else's repository."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STORED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a cache")
        return _STORED[module, name]


def digest(*parts: object) -> bytes:
    """A hash of bytes, texts and tuples of these."""
    state = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.digest()


def _plain(value: object) -> object:
    """A dataclass as tuples, with sets in order, so that equal values have equal texts."""
    if isinstance(value, frozenset | set):
        return tuple(sorted(value))
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, tuple):
        name = () if type(value) is tuple else (type(value).__name__,)  # two formulas of the same parts differ
        return (*name, *(_plain(each) for each in value))
    if hasattr(value, "__dataclass_fields__"):
        return tuple(_plain(getattr(value, name)) for name in value.__dataclass_fields__)
    return value


@cache
def _own_hash() -> bytes:
    """Of the linter itself, of what it parses with, and of Python."""
    here = Path(__file__).parent
    sources = (path.read_bytes() for path in sorted(here.rglob("*.py")))
    return digest(libcst.LIBCST_VERSION, sys.version, *sources)

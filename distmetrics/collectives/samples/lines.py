"""Samples as JSON lines in a file that is there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from distmetrics.collectives.buckets import dtype_of
from distmetrics.collectives.samples.schema import Column
from distmetrics.errors import InputTypeError


class LinesFile:
    """Writes a line for each sample, to a file beside ``path`` that takes its place at the end.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        self._part = Path(name)
        self._file: TextIO = os.fdopen(handle, "w", encoding="utf-8", newline="\n")

    def write(
        self,
        ids: Iterable[Any],
        tree: Any,
    ) -> None:
        """Append the samples of a tree."""
        for sample_id, sample in zip(ids, _samples(tree), strict=True):
            line = {"id": sample_id, "sample": sample}
            self._file.write(json.dumps(line, default=_listed) + "\n")

    def finish(self) -> None:
        """Put the file in place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.chmod(0o666 & ~_umask())  # a temporary file is its owner's alone
        self._part.replace(self._path)

    def discard(self) -> None:
        """Remove what was written, unless it is in place."""
        with contextlib.suppress(OSError):  # of the last bytes, on a full disk
            self._file.close()
        self._part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _samples(tree: Any) -> Iterator[Any]:
    """Yield each sample of a tree, as JSON has it."""
    if isinstance(tree, dict):
        children = map(_samples, tree.values())
        return (dict(zip(tree, row, strict=True)) for row in zip(*children, strict=True))
    if isinstance(tree, tuple):
        return map(list, zip(*map(_samples, tree), strict=True))
    return iter(tree.tolist() if isinstance(tree, Tensor) else tree)


def _listed(value: Any) -> Any:
    """Return a list or a number for a tensor or an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def check_writable(
    path: str,
    column: Column,
    values: Any,
) -> None:
    """Refuse samples that JSON cannot hold.

    Raises:
        InputTypeError: there are some.
    """
    where = path or "the tree"
    if column.dtype and dtype_of(column.dtype).is_complex:
        raise InputTypeError(f"{where} has complex numbers, which JSON cannot hold")
    if column.kind != "items":
        return
    for value in values:
        try:
            json.dumps(value, default=_listed)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{where} cannot be written as JSON: {error}") from error

"""The findings of many files, each with the facts of its project, in several processes."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, TypeVar

from distlint_new.check import LARGEST
from distlint_new.facts import Facts, Project, Scan, scan
from distlint_new.finding import Finding, unreadable
from distlint_new.notebook import check_document, python_of
from distlint_new.rules.base import Rule

GivenT = TypeVar("GivenT")
GotT = TypeVar("GotT")
_WORTH_A_PROCESS = 64  # files: below, starting one costs more than it saves


class DoAll(Protocol):
    """``map``, wherever the work is done."""

    def __call__(self, f: Callable[[GivenT], GotT], given: Sequence[GivenT], /) -> Iterable[GotT]:
        """Return the results in the order of what was given."""


def scan_file(path: str) -> Scan:
    """Return what a file says of its project; nothing, if it cannot be read."""
    try:
        source = Path(path).read_bytes()
    except OSError:
        return Scan()
    if len(source) > LARGEST:
        return Scan()
    return scan(python_of(source, path).decode("utf-8", "replace"), path)


@dataclass(frozen=True)
class Job:
    """One file to check, with all that its findings depend on."""

    path: str
    facts: Facts
    rules: tuple[type[Rule], ...]


def check_file(job: Job) -> list[Finding]:
    """Return the findings of a file; that it cannot be read is one."""
    try:
        source = Path(job.path).read_bytes()
    except OSError as error:
        return [unreadable(job.path, 1, 1, error.strerror or str(error))]
    return check_document(source, job.path, job.rules, job.facts)

"""How a rank's failure is shown: by pytest's own means, made where the rank ran, so that its source
lines are there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
    Traceback,
)
from _pytest.assertion import util

from distmetrics.errors import who
from distmetrics.liveness.outcome import Outcome, blame

_PACKAGE = Path(__file__).resolve().parent.parent
_OWN_FRAMES = re.compile(
    rf'  File "{re.escape(str(Path(__file__).with_name("plugin.py")))}".*(\n    .*)?\n?'
)
_one_at_a_time = (
    threading.Lock()
)  # it parses source, which threads of Python 3.11 must not do together (gh-106905)
_ATTRIBUTE = (
    "_distmetrics_shown"  # of an error: its representation, which travels with it from a process
)


@dataclass(frozen=True)
class Look:
    """What pytest's options say about tracebacks, and where the test begins."""

    style: Any
    showlocals: bool
    fulltrace: bool
    verbosity: int
    path: str
    line: int

    @classmethod
    def of(cls, item: pytest.Function) -> Look:
        """Read them of a test."""
        option = item.config.getoption
        style = option("tbstyle", "auto")
        code = item.function.__code__
        return cls(
            "long" if style == "auto" else style,
            bool(option("showlocals", default=False)),
            bool(option("fulltrace", default=False)),
            item.config.get_verbosity(),
            code.co_filename,
            code.co_firstlineno,
        )

    def cut(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
        """Leave out what lies before the test, and our own frames."""
        whole = excinfo.traceback
        begun = whole.cut(path=self.path, firstlineno=self.line - 1)
        kept = begun.filter(lambda entry: not _is_ours(Path(entry.path))).filter(excinfo)
        return kept or begun

    @contextlib.contextmanager
    def comparisons(self) -> Iterator[None]:
        """Explain failed comparisons as pytest does; in a process of ours nothing else does."""
        if util._reprcompare is not None:
            yield
            return
        util._reprcompare = functools.partial(_compare, self.verbosity)
        try:
            yield
        finally:
            util._reprcompare = None


def shown(error: BaseException, look: Look) -> ExceptionChainRepr:
    """Make the representation of an error on the rank where it was raised, and let the error carry
    it.
    """
    excinfo = pytest.ExceptionInfo.from_exception(error)
    with _one_at_a_time:
        made = excinfo.getrepr(
            style="value"
            if isinstance(error, pytest.fail.Exception) and not error.pytrace
            else look.style,
            showlocals=look.showlocals,
            tbfilter=False if look.fulltrace else look.cut,
        )
    chain = (
        made
        if isinstance(made, ExceptionChainRepr)
        else _chain([(made.reprtraceback, made.reprcrash, None)])
    )
    setattr(error, _ATTRIBUTE, chain)
    return chain


def carried(error: BaseException) -> dict[str, Any]:
    """Return the representation that an error carries, as attributes for another."""
    made = getattr(error, _ATTRIBUTE, None)
    return {} if made is None else {_ATTRIBUTE: made}


def failure_of(failed: Sequence[Outcome], world_size: int, backend: str) -> ExceptionChainRepr:
    """Show every rank that failed: equal failures once, those that were let down first, what began
    it last.
    """
    groups: dict[str, list[Outcome]] = {}
    for outcome in failed:
        groups.setdefault(_alike(outcome), []).append(outcome)
    least = min(blame(outcome.error) for outcome in failed)
    ordered = sorted(groups.values(), key=lambda group: (-blame(group[0].error), -group[0].rank))
    elements = []
    for group in ordered:
        label = who(outcome.rank for outcome in group)
        let_down = blame(group[0].error) > least
        *chain, (traceback, crash, _) = _brief(group[0]) if let_down else _whole(group[0])
        what = "let down by what is shown below" if let_down else f"of {world_size}, on {backend}"
        elements += [*chain, (traceback, crash, f"^ {label} {what}")]
    return _chain(elements)


Element = tuple[ReprTraceback, ReprFileLocation | None, str | None]


def _chain(elements: Sequence[Element]) -> ExceptionChainRepr:
    return ExceptionChainRepr(list(elements))


def _whole(outcome: Outcome) -> list[Element]:
    made = getattr(outcome.error, _ATTRIBUTE, None)
    return list(made.chain) if made is not None else _brief(outcome, notes=True)


def _brief(outcome: Outcome, *, notes: bool = False) -> list[Element]:
    """Show an error without its traceback, which it may not have: whose process was killed, say."""
    error = outcome.error
    lines = [f"{type(error).__name__}: {error}"]
    lines += (
        [_OWN_FRAMES.sub("", note) for note in getattr(error, "__notes__", [])] if notes else []
    )
    made = getattr(error, _ATTRIBUTE, None)
    crash = made.reprcrash if made is not None else None
    message = lines[0].partition("\n")[0]
    entry = ReprEntryNative(["\n".join(lines) + "\n"])
    return [
        (ReprTraceback([entry], None, "native"), crash or ReprFileLocation("", 0, message), None)
    ]


def _alike(outcome: Outcome) -> str:
    """Return what equal failures share; addresses differ from rank to rank."""
    made = getattr(outcome.error, _ATTRIBUTE, None)
    text = f"{type(outcome.error).__name__}: {outcome.error}" if made is None else str(made)
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(_PACKAGE)


def _compare(verbosity: int, op: str, left: object, right: object) -> str | None:
    config = _plain_config(verbosity)
    for lines in config.hook.pytest_assertrepr_compare(
        config=config, op=op, left=left, right=right
    ):
        if found := [line.replace("\n", "\\n") for line in lines or ()]:
            return "\n~".join(found).replace("%", "%%")
    return None


@functools.cache
def _plain_config(verbosity: int) -> pytest.Config:
    """Return a configuration without plugins, for a process in which pytest does not run."""
    from _pytest.config import get_config

    config = get_config()
    arguments = [
        "-p",
        "no:terminal",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
    ]
    config.parse([*arguments, *["-v"] * verbosity])
    return config

"""How failures of ranks are shown: by pytest's means, where each rank has its source lines."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Sequence
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

from distmetrics.comm.verdict import Outcome, blame
from distmetrics.errors import DistmetricsError, first_line, who

Element = tuple[ReprTraceback, ReprFileLocation | None, str | None]
_PACKAGE = Path(__file__).resolve().parent.parent
_PLUGIN = re.escape(str(Path(__file__).with_name("plugin.py")))
_FRAMES_OF_PLUGIN = re.compile(rf'  File "{_PLUGIN}".*(\n    .*)?\n?')
# Making a representation parses source, which threads of Python 3.11 must not do together
# (gh-106905).
_one_at_a_time = threading.Lock()
# An error's attribute with how pytest shows it: it travels with the error from a process.
_ATTRIBUTE = "_distmetrics_elements"


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
        """Return the look of a test."""
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

    def attach(self, error: BaseException) -> None:
        """Let an error carry how it is shown; called on the rank that raised it."""
        is_plain = isinstance(error, pytest.fail.Exception) and not error.pytrace
        with _one_at_a_time:
            shown = pytest.ExceptionInfo.from_exception(error).getrepr(
                style="value" if is_plain else self.style,
                showlocals=self.showlocals,
                tbfilter=False if self.fulltrace else self._cut,
            )
        alone = [(shown.reprtraceback, shown.reprcrash, None)]
        setattr(error, _ATTRIBUTE, getattr(shown, "chain", alone))

    def _cut(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
        """Leave out what lies before the test, and our own frames."""
        test = excinfo.traceback.cut(path=self.path, firstlineno=self.line - 1)
        theirs = test.filter(lambda entry: not Path(entry.path).is_relative_to(_PACKAGE))
        return theirs.filter(excinfo) or test


def explain_comparisons(verbosity: int) -> None:
    """Have failed comparisons explained as pytest does; in a process of ours nothing else does."""
    if util._reprcompare is None:
        util._reprcompare = functools.partial(_explain, verbosity)


def _explain(verbosity: int, op: str, left: object, right: object) -> str | None:
    config = _plain_config(verbosity)
    explanations = config.hook.pytest_assertrepr_compare(
        config=config, op=op, left=left, right=right
    )
    lines = next(filter(None, explanations), None)
    if lines is None:
        return None
    return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "distmetrics/")


@functools.cache
def _plain_config(verbosity: int) -> pytest.Config:
    """Return the configuration of a process in which pytest does not run."""
    arguments = ["--noconftest", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    return pytest.Config.fromdictargs({"verbose": verbosity}, arguments)


def failure_of(failed: Sequence[Outcome], world_size: int, backend: str) -> ExceptionChainRepr:
    """Show every rank that failed: equal failures once, and what began it last."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in failed:
        groups.setdefault(_comparable(outcome.error), []).append(outcome)
    least = min(blame(outcome.error) for outcome in failed)
    ordered = sorted(groups.values(), key=lambda group: blame(group[0].error))
    shown: list[Element] = []
    for group in reversed(ordered):
        error = group[0].error
        if blame(error) > least:
            elements, what = [_brief(error)], "let down by what is shown below"
        else:
            elements, what = _elements(error), f"of {world_size}, on {backend}"
        *causes, (traceback, crash, _) = elements
        label = f"^ {who(outcome.rank for outcome in group)} {what}"
        shown += [*causes, (traceback, crash, label)]
    return ExceptionChainRepr(shown)


def _elements(error: BaseException | None) -> list[Element]:
    """Return how an error is shown; one that carries nothing is of a rank that was ended, say."""
    notes = [_FRAMES_OF_PLUGIN.sub("", note) for note in getattr(error, "__notes__", [])]
    return getattr(error, _ATTRIBUTE, None) or [_brief(error, notes)]


def _brief(error: BaseException | None, notes: Sequence[str] = ()) -> Element:
    """Show an error without its traceback."""
    text = f"{type(error).__name__}: {error}"
    entry = ReprEntryNative(["\n".join([text, *notes]) + "\n"])
    crash = ReprFileLocation("", 0, first_line(text))
    return ReprTraceback([entry], None, "native"), crash, None


def _comparable(error: BaseException | None) -> str:
    """Return what equal failures share: addresses differ from rank to rank.

    An error of ours has one text on all ranks, which names the line of each.
    """
    text = f"{type(error).__name__}: {error}"
    if hasattr(error, _ATTRIBUTE) and not isinstance(error, DistmetricsError):
        text = str(ExceptionChainRepr(_elements(error)))
    return re.sub(r"0x[0-9a-f]+", "0x", text)

"""What a rank is asked, and what it answers: tests, turns of loops, and whether something fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distlint.confirm.frames import lines
from distlint.confirm.stand_ins import key_of

_ENOUGH = 3_000  # answers, after which a run is taken for one that never ends
# Errors of the program, or of the user who stops it: all ranks have them at once.
_ALIKE = (AttributeError, ImportError, KeyboardInterrupt, NameError, NotImplementedError, SystemExit, TypeError)


class EndlessError(BaseException):
    """Ends a rank that goes on for ever."""


@dataclass(frozen=True)
class Scenario:
    """One way of answering.

    Attributes:
        answers: by what is asked: yes or no, or of a loop how many turns.
        default: the answer to all other tests.
    """

    answers: Mapping[str, int] = field(default_factory=dict)
    default: bool = True


@dataclass(frozen=True)
class Asked:
    """A test that was answered, or a loop."""

    key: str
    text: str
    answer: int
    line: int
    is_local: bool


class Answers:
    """The answers of one rank.

    Args:
        number: of the rank.
        path: of the file.
        scenario: how tests are answered.

    Attributes:
        asked: what was asked, in order.
        count: how often something was.
        failing: errors that the next call raises.
    """

    def __init__(self, number: int, path: str, scenario: Scenario) -> None:
        self.asked: dict[str, Asked] = {}
        self.count = 0
        self.failing: list[type[BaseException]] = []
        self._number = number
        self._path = path
        self._scenario = scenario
        self._times: Counter[int] = Counter()
        self._attempts: Counter[int] = Counter()

    def decide(self, key: str, text: str, is_local: bool) -> bool:
        """Answer a test; one that is asked again and again in one place is answered otherwise some time: loops end."""
        line = next(iter(lines(self._path)), 0)
        times = self._times[line]
        self._times[line] += 1
        return bool(self.answer(key, text, is_local, self._scenario.default)) ^ bool(times // 3 % 2)

    def answer(self, key: str, text: str, is_local: bool, default: int) -> int:
        """Return the answer to a question, and remember it."""
        self.count += 1
        if self.count > _ENOUGH:
            raise EndlessError
        answer = self._scenario.answers.get(key, default)
        self.asked.setdefault(key, Asked(key, text, answer, next(iter(lines(self._path)), 0), is_local))
        return answer

    def attempt(self, number: int, line: int, is_caught: Any) -> Any:
        """A ``try``: in some scenarios the first call in it that may fail does, the first time that it is entered."""
        return _Attempt(self, number, line, is_caught)

    def try_(self, number: int, line: int, caught: type[BaseException]) -> None:
        """Decide whether something fails in a ``try``."""
        text = f"something fails in the try of line {line} on rank {self._number}"
        answer = self.answer(key_of("fails", number, self._number), text, True, 0)
        self._attempts[number] += 1
        if answer and self._attempts[number] == 1:
            self.failing.append(caught)


def _types(caught: Any) -> Iterator[type[BaseException]]:
    """The classes of errors that a ``try`` catches; any, if it has only a ``finally``."""
    parts = list(caught) if isinstance(caught, tuple) else [caught]
    if not parts:
        yield RuntimeError
    for each in parts:
        if isinstance(each, tuple):
            yield from _types(each)
        elif isinstance(each, type) and issubclass(each, BaseException):
            yield RuntimeError if each in (Exception, BaseException) else each


class _Attempt:
    def __init__(self, answers: Answers, number: int, line: int, caught: Any) -> None:
        self._answers = answers
        self._where = number, line
        self._caught = caught

    def __enter__(self) -> None:
        caught = [each for each in _types(self._caught()) if not issubclass(each, _ALIKE)]
        if caught:
            self._answers.try_(*self._where, caught[0])

    def __exit__(self, *error: object) -> None:
        self._answers.failing.clear()

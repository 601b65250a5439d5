"""The search for a way of answering tests with which two ranks come apart at a line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from distlint.analysis import Analysis
from distlint.confirm.answers import Answers, Asked, EndlessError, Scenario
from distlint.confirm.calls import call
from distlint.confirm.cut import Cut
from distlint.confirm.meeting import Meeting, StoppedError
from distlint.confirm.rank import WORLD, Rank, source_lines
from distlint.model import Finding
from distlint.syntax import FunctionNode

_MOST_RUNS = 200
_MOST_SECONDS = 5.0
_MOST_MUTED = 5
_NOT_OF_RUNS = {"DL112": "it is about the shapes of tensors, and stand-ins have none"}
_LIMIT = 10.0  # seconds, of a run


@dataclass(frozen=True)
class Verdict:
    """What came of a finding.

    Attributes:
        outcome: "confirmed", "refuted" or "not runnable".
        text: how the ranks ended, or why the code cannot be run.
        runs: how many ways of answering were tried.
        answers: what was answered in the run that confirms.
    """

    outcome: str
    text: str
    runs: int
    answers: tuple[Asked, ...] = ()


@dataclass(frozen=True)
class _Ended:
    """How a run ended: for each rank, and with what error of its own."""

    ranks: tuple[Rank, ...]
    own: str

    @property
    def stopped(self) -> BaseException | None:
        return next((rank.meeting.stopped for rank in self.ranks if rank.meeting.stopped is not None), None)


def try_finding(analysis: Analysis, found: Finding) -> Verdict:
    """Run the function around a finding as two ranks, in many ways of answering."""
    if found.code in _NOT_OF_RUNS:
        return Verdict("not runnable", _NOT_OF_RUNS[found.code], 0)
    lines = range(found.line, found.end_line + 1)
    verdict = try_lines(analysis, lines, counts_logs=found.code in ("DL102", "DL107"))
    condition = found.condition
    if verdict.outcome == "refuted" and condition is not None and condition.lacks == "data":  # runs may not bring it up
        return replace(verdict, outcome="not runnable", text=f"{verdict.text}, though it may hang {condition.text}")
    return verdict


def try_lines(analysis: Analysis, lines: Sequence[int], counts_logs: bool = False) -> Verdict:
    """Run the function around some lines; if they are not reached so, one around that."""
    verdict = Verdict("not runnable", "no function is around it", 0)
    for function in _around(analysis, lines[0]):
        verdict = _try_function(analysis, function, frozenset(lines), counts_logs)
        if verdict.outcome != "not runnable":
            return verdict
    return verdict


def _around(analysis: Analysis, line: int) -> Iterator[FunctionNode]:
    functions = analysis.index.all_functions
    around = [each for each in functions[1:] if _first(each) <= line <= (getattr(each.node, "end_lineno", 0) or 0)]
    yield from around[-1:]
    yield from around[:-1]
    if not around:
        yield functions[0]


def _first(function: FunctionNode) -> int:
    return min([getattr(function.node, "lineno", 0), *(each.lineno for each in function.decorators)])


def _try_function(analysis: Analysis, function: FunctionNode, lines: frozenset[int], counts_logs: bool) -> Verdict:
    """Try a function; collectives that hang before the line in question are left out the next time."""
    source_lines(analysis.index)
    try:
        cut = Cut(analysis)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Verdict("not runnable", f"the function cannot be cut out: {error}", 0)
    cut.counts_logs = counts_logs
    muted: frozenset[int] = frozenset()
    until = time.monotonic() + _MOST_SECONDS
    for _ in range(_MOST_MUTED):
        search = _Search(cut, function, lines, muted, until)
        verdict = search.run()
        more = muted | search.elsewhere
        if verdict.outcome == "confirmed" or more == muted:
            break
        muted = more
    if muted and verdict.outcome == "confirmed":
        left_out = ", ".join(map(str, sorted(muted)))
        text = f"{verdict.text}\n(without the collectives of line {left_out}, which hang themselves)"
        return replace(verdict, text=text)
    return verdict


class _Search:
    """Tries one way of answering after the other.

    Attributes:
        elsewhere: lines of collectives outside of the lines in question that have hung.
    """

    def __init__(
        self, cut: Cut, function: FunctionNode, lines: frozenset[int], muted: frozenset[int], until: float
    ) -> None:
        self._cut = cut
        self._function = function
        self._lines = lines
        self._muted = muted
        self._until = until
        self.elsewhere: frozenset[int] = frozenset()

    def run(self) -> Verdict:
        """Search until ranks come apart at the lines, or all ways or the time are spent."""
        runs, whole, is_reached, reason = 0, 0, False, ""
        pending, known = [Scenario(), Scenario(default=False)], set[object]()
        while pending and runs < _MOST_RUNS and time.monotonic() < self._until:
            scenario = pending.pop(0)
            ended = _run(self._cut, self._function, scenario, self._muted)
            runs += 1
            asked = {key: each for rank in ended.ranks for key, each in rank.answers.asked.items()}
            if ended.stopped is not None and not ended.own:
                if any(rank.meeting.last & self._lines for rank in ended.ranks) or self._part(ended):
                    return Verdict("confirmed", str(ended.stopped), runs, tuple(asked.values()))
                self.elsewhere |= {rank.meeting.here for rank in ended.ranks} - {0}
            lines = {each.line for each in asked.values()}.union(*(rank.meeting.reached for rank in ended.ranks))
            is_reached = is_reached or bool(lines & self._lines)
            whole += not ended.own and ended.stopped is None
            reason = reason or ended.own
            pending += _others(scenario, asked.values(), known)
        if is_reached and whole:
            text = f"both ranks came to the end together in {whole} of {runs} ways of answering"
            return Verdict("refuted", text, runs)
        where = f"line {min(self._lines)} was reached in none of {runs} ways of answering"
        return Verdict("not runnable", f"{where}; {reason}" if reason else where, runs)

    def _part(self, ended: _Ended) -> bool:
        """Whether the ranks have answered a test in the lines differently: a finding may be about the test."""
        answers = [
            sorted((each.line, each.answer) for each in rank.answers.asked.values() if each.line in self._lines)
            for rank in ended.ranks
        ]
        return any(each != answers[0] for each in answers)


def _others(scenario: Scenario, asked: Iterable[Asked], known: set[object]) -> Iterator[Scenario]:
    """The ways in which one more thing is answered differently; those that tell ranks apart first."""
    for each in sorted(asked, key=lambda each: not each.is_local):
        if each.key in scenario.answers:
            continue
        changed = 1 if each.answer == 2 else 1 - int(each.answer)  # a test, or the turns of a loop
        answers = {**scenario.answers, each.key: changed}
        seen = scenario.default, frozenset(answers.items())
        if seen not in known:
            known.add(seen)
            yield Scenario(answers, scenario.default)


def _run(cut: Cut, function: FunctionNode, scenario: Scenario, muted: frozenset[int]) -> _Ended:
    """Run both ranks once."""
    from distmetrics.testing import outcomes

    ranks: dict[int, Rank] = {}

    def main(comm: object) -> None:
        number = int(comm.rank)  # type: ignore[attr-defined]
        path = cut.index.path
        answers, meeting = Answers(number, path, scenario), Meeting(path, comm, muted, cut.counts_logs)
        rank = ranks[number] = Rank(number, cut.index, answers, meeting, call)
        cut.load(rank)
        cut.run(rank, function)
        meeting.finish()

    own = ""
    for outcome in outcomes(WORLD, main, limit=_LIMIT):
        error = outcome.error
        if isinstance(error, EndlessError):
            own = own or "it goes on for ever with stand-ins"
        elif error is not None and not isinstance(error, StoppedError):
            own = own or f"rank {outcome.rank} ended with {type(error).__name__}: {error}".partition("\n")[0]
    return _Ended(tuple(ranks[number] for number in sorted(ranks)), own)

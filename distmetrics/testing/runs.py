"""The runs of a metric on one case: each is made once, whichever laws ask for it."""

import contextlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from distmetrics.comm.communicator import Communicator, SingleCommunicator, use
from distmetrics.comm.process_group import is_connection_error
from distmetrics.comm.verdict import Outcome
from distmetrics.errors import DivergedError, MismatchError, PeerLostError, in_short
from distmetrics.testing.batches import Batch, Shards, count, cut, identities
from distmetrics.testing.equality import BITWISE, Equality, brief
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.recording import RecordingCommunicator
from distmetrics.testing.scenarios import Rank, Scenario, plain
from distmetrics.testing.shards import in_runs
from distmetrics.testing.subject import Subject
from distmetrics.testing.worlds import RunWorld

_TRANSPORT = "ranks disagree on a collective"  # what gloo would abort on, or hang
LAYOUTS = ({"dp": 2, "tp": 2, "pp": 2},)


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one process, or one rank of a world, ended.

    Attributes:
        kind: "value", "raised", or "stuck": it waits for a call that never comes, or the transport
            breaks.
        value: what the scenario returned.
        collectives: the operations that the rank's transport was asked for.
        error: what the rank raised.
    """

    kind: str
    value: Any = None
    collectives: tuple[str, ...] = ()
    error: BaseException | None = None

    @property
    def text(self) -> str:
        """The error, on a line."""
        return in_short(self.error)


@dataclass(eq=False)
class LawBroken(Exception):  # noqa: N818  (no error: a verdict)
    """A run breaks a law: what should have been, what is, on which shards.

    ``expected`` and ``got`` are values, results of ranks, or texts.
    """

    expected: Any
    got: Sequence[Any]
    detail: str
    shards: Shards


class NotJudged(Exception):  # noqa: N818  (no error: a law says nothing of this case)
    """A law cannot be judged on a case; the text says why."""


@dataclass
class Runs:
    """The runs of a metric on a case.

    Attributes:
        subject: the metric.
        equality: when two values are the same.
        run_world: runs worlds, see :func:`~distmetrics.testing.worlds.worlds`.
        shards: for each rank its batches.
        layouts: sizes by axis of the meshes that laws about layouts are judged on.
    """

    subject: Subject
    equality: Equality
    run_world: RunWorld
    shards: Shards
    layouts: Sequence[Mapping[str, int]] = LAYOUTS
    # Keys are identities of batches, so that the batches are kept alive next to the results.
    _runs: dict[Hashable, tuple[Shards, list[RankResult]]] = field(default_factory=dict)

    @property
    def dense(self) -> Shards:
        """The shards without ranks and batches that have no samples; some must have samples."""
        kept = [tuple(filter(_has_samples, shard)) for shard in self.shards]
        if not any(kept):
            raise NotJudged("no rank has samples")
        return tuple(filter(None, kept))

    @property
    def pooled(self) -> tuple[Batch, ...]:
        """All batches that have samples, in rank order."""
        return tuple(chain.from_iterable(self.dense))

    def parts(self, world_size: int) -> Shards:
        """Deal all batches to so many ranks, each with some; they are cut if they are too few."""
        batches: Sequence[Batch] = self.pooled
        if len(batches) < world_size:
            batches = [part for batch in batches for part in cut(batch, world_size)]
        if len(batches) < world_size:
            raise NotJudged(f"there are not enough samples for {world_size} ranks")
        return in_runs(batches, world_size)

    @property
    def loosely(self) -> Equality:
        """The equality without types, of which a law of its own speaks."""
        return replace(self.equality, types=False)

    def single(
        self, batches: Sequence[Batch] | None = None, *, then: Sequence[Batch] = ()
    ) -> RankResult:
        """Return what a single process gets, from the data of all ranks by default.

        Args:
            batches: all data.
            then: more data, before which it computes for the first time.
        """
        with use(SingleCommunicator()):
            try:
                metric = self.subject.filled(batches or self.pooled)
                if then:
                    self.subject.value(metric)
                    self.subject.update(metric, then)
                return RankResult("value", self.subject.value(metric))
            except Exception as error:  # noqa: BLE001  (whatever a metric raises is compared)
                return RankResult("raised", error=error)

    def world(self, shards: Shards, scenario: Scenario = plain) -> list[RankResult]:
        """Run a scenario on every rank of a world that has these shards."""
        key = scenario, identities(shards)
        if key not in self._runs:
            job = partial(_on_rank, scenario, self.subject, shards)
            calls_torch = self.subject.sync == "own" or self.subject.is_function
            with routed() if calls_torch else contextlib.nullcontext():
                outcomes = self.run_world(len(shards), job)
            self._runs[key] = shards, _results(outcomes)
        return self._runs[key][1]

    def settled(self, shards: Shards, scenario: Scenario = plain) -> list[RankResult]:
        """Return how the ranks of a world ended that is not stuck.

        Raises:
            NotJudged: it is, which the law "no-hang" speaks of.
        """
        results = self.world(shards, scenario)
        for rank in results:
            if rank.kind == "stuck":
                raise NotJudged(f"the ranks got stuck, see no-hang: {rank.text}")
        return results

    def values(self, shards: Shards, scenario: Scenario = plain) -> list[Any]:
        """Return what every rank returned.

        Raises:
            NotJudged: some did not.
        """
        results = self.settled(shards, scenario)
        for rank in results:
            if rank.kind == "raised":
                raise NotJudged(f"the sync raises {rank.text}")
        return [rank.value for rank in results]

    def same_value(
        self,
        shards: Shards,
        others: Iterable[Shards],
        note: str,
        equality: Equality | None = None,
        scenario: Scenario = plain,
    ) -> None:
        """Compare rank 0's value on some shards with that on others, or in another scenario."""
        expected = self.values(shards)[0]
        for other in others:
            got = self.values(other, scenario)[:1]
            compare(expected, got, equality or self.loosely, other, note)

    def same_on_each_rank(self, scenario: Scenario) -> None:
        """Run a scenario that returns pairs of what must be equal; compare them on every rank."""
        for rank, pairs in enumerate(self.values(self.dense, scenario)):
            for what, expected, got, bitwise in pairs:
                equality = BITWISE if bitwise else self.loosely
                if difference := equality.difference(expected, got):
                    detail = f"{what}, on rank {rank}: {difference}"
                    raise LawBroken(expected, [got], detail, self.dense)

    def keeps_value(self, expected: Any, shards: Shards, note: str = "") -> None:
        """Compare rank 0's value with one that is expected; an error on any rank is none."""
        ranks = self.settled(shards)
        no_error(expected, ranks, shards)
        compare(expected, [ranks[0].value], self.loosely, shards, note)


def text_of(value: Any) -> str:
    """Return a value, or how a rank ended, on a line."""
    if isinstance(value, RankResult):
        value = value.value if value.kind == "value" else value.text
    return value if isinstance(value, str) else brief(value)


def _has_samples(batch: Batch) -> bool:
    return count(batch) != 0


def compare(
    expected: Any,
    got: Sequence[Any],
    equality: Equality,
    shards: Shards,
    note: str = "",
) -> None:
    """Compare every rank's value with one that is expected."""
    for rank, value in enumerate(got):
        if difference := equality.difference(expected, value):
            raise LawBroken(expected, got, f"rank {rank}: {difference}{note}", shards)


def no_error(expected: Any, results: Sequence[RankResult], shards: Shards) -> None:
    """Say that the law is broken if a rank raised."""
    for rank, result in enumerate(results):
        if result.kind == "raised":
            raise LawBroken(expected, results, f"rank {rank} raises {result.text}", shards)


def _on_rank(
    scenario: Scenario,
    subject: Subject,
    shards: Shards,
    comm: Communicator,
) -> tuple[Any, tuple[str, ...]]:
    """Be one rank: run a scenario on the rank's own shard, and write its collectives down."""
    recording = RecordingCommunicator(comm)
    with use(recording):
        value = scenario(Rank(recording, subject, shards[comm.rank]))
    return value, tuple(call.op for call in recording.calls)


def _results(outcomes: Sequence[Outcome]) -> list[RankResult]:
    """Tell values, errors and stuck ranks apart; one that another's error let down is not stuck."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    kind = "stuck" if all(map(_is_stuck, errors)) else "raised"
    results = []
    for outcome in outcomes:
        result = RankResult(kind, error=outcome.error)
        if outcome.error is None:
            result = RankResult("value", *outcome.value)
        results.append(result)
    return results


def _is_stuck(error: BaseException) -> bool:
    if isinstance(error, MismatchError):
        return error.what.startswith(_TRANSPORT)
    return isinstance(error, DivergedError | PeerLostError) or is_connection_error(error)

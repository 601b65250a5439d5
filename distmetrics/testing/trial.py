"""One case on which laws are judged: a metric and its shards, and every run of it, each made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from distmetrics.comm.base import Communicator
from distmetrics.comm.crew import Crew
from distmetrics.comm.current import use
from distmetrics.comm.outcome import Outcome
from distmetrics.comm.record import RecordingCommunicator
from distmetrics.comm.threads import ThreadWorld
from distmetrics.comm.waits import is_connection_error
from distmetrics.errors import DivergedError, MismatchError, PeerLostError
from distmetrics.testing import scenarios
from distmetrics.testing.batches import Batch, Shards, count
from distmetrics.testing.equality import Equality, brief
from distmetrics.testing.pool import Pool
from distmetrics.testing.routed import routed
from distmetrics.testing.scenarios import Rank, Scenario
from distmetrics.testing.subject import Subject, quiet

_TRANSPORT = "ranks disagree on a collective"  # what gloo would abort on, or hang


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one process, or one rank of a world, ended.

    Attributes:
        kind: "value", "raised", or "stuck": it waits for a call that never comes, or the transport
            breaks.
        value: what the scenario returned.
        collectives: the operations that the rank's transport was asked for.
        text: the error, on a line; ``error``: it.
    """

    kind: str
    value: Any = None
    collectives: tuple[str, ...] = ()
    text: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        return brief(self.value) if self.kind == "value" else self.text


@dataclass(eq=False)
class LawBroken(Exception):  # noqa: N818  (no error: a verdict)
    """A run breaks a law: what should have been, what is, on which shards."""

    expected: str
    got: tuple[str, ...]
    detail: str
    shards: Shards


class NotJudged(Exception):  # noqa: N818  (no error: a law says nothing of this case)
    """A law cannot be judged on a case; the text says why."""


@dataclass
class Trial:
    """A metric on given shards.

    Attributes:
        subject: the metric.
        shards: of each rank its batches.
        equality: when two values are the same.
        pool_of: gives a world of processes of a size; without, ranks are threads.
        crew: whose threads they are, if not new ones.
    """

    subject: Subject
    shards: Shards
    equality: Equality
    pool_of: Callable[[int], Pool] | None = None
    crew: Crew | None = None
    # Keys are identities of batches, so that the batches are kept alive next to the results.
    _runs: dict[Hashable, tuple[Shards, list[RankResult]]] = field(default_factory=dict)

    @property
    def dense(self) -> Shards:
        """The shards without ranks and batches that have no samples; some must have samples."""
        kept = [tuple(batch for batch in shard if count(batch) != 0) for shard in self.shards]
        if not any(kept):
            raise NotJudged("no rank has samples")
        return tuple(shard for shard in kept if shard)

    @property
    def pooled(self) -> tuple[Batch, ...]:
        """All batches that have samples, in rank order."""
        return tuple(batch for shard in self.dense for batch in shard)

    @property
    def loosely(self) -> Equality:
        """The equality without types, of which a law of its own speaks."""
        return replace(self.equality, types=False)

    def single(self, batches: Sequence[Batch] | None = None) -> RankResult:
        """Return what a single process gets, from the data of all ranks by default."""
        mine = self.pooled if batches is None else tuple(batches)
        world = ThreadWorld(1, crew=self.crew)
        job = partial(_on_rank, scenarios.alone, self.subject, (mine,))
        return self._once("single", (mine,), lambda: world.outcomes(job))[0]

    def world(
        self, shards: Shards | None = None, scenario: Scenario = scenarios.plain
    ) -> list[RankResult]:
        """Run a scenario on every rank of a world that has these shards, by default the trial's."""
        dealt = self.shards if shards is None else shards
        job = partial(_on_rank, scenario, self.subject, dealt)
        return self._once(scenario.__name__, dealt, lambda: self._outcomes(len(dealt), job))

    def settled(self, shards: Shards, scenario: Scenario = scenarios.plain) -> list[RankResult]:
        """Return how the ranks ended that are not stuck.

        Raises:
            NotJudged: they are, which the law "no-hang" speaks of.
        """
        results = self.world(shards, scenario)
        for rank in results:
            if rank.kind == "stuck":
                raise NotJudged(f"the ranks got stuck, see no-hang: {rank.text}")
        return results

    def values(self, shards: Shards, scenario: Scenario = scenarios.plain) -> list[Any]:
        """Return what every rank returned.

        Raises:
            NotJudged: some did not.
        """
        return values(self.settled(shards, scenario))

    def among(self, metrics: Sequence[Any]) -> list[RankResult]:
        """Sync metrics that hold something already, one a rank."""
        world = ThreadWorld(len(metrics), crew=self.crew)
        with quiet():
            return _results(
                world.outcomes(lambda comm: (self.subject.synced(metrics[comm.rank], comm), ()))
            )

    def _outcomes(self, world_size: int, job: Callable[[Communicator], Any]) -> list[Outcome]:
        if self.pool_of is not None:
            return self.pool_of(world_size).outcomes(partial(_quietly, job))
        world = ThreadWorld(world_size, crew=self.crew)
        if self.subject.sync == "distmetrics" and not self.subject.is_function:
            return world.outcomes(job)
        with routed():
            return world.outcomes(job)

    def _once(
        self, name: str, shards: Shards, run: Callable[[], Sequence[Outcome]]
    ) -> list[RankResult]:
        key = name, tuple(tuple(map(id, shard)) for shard in shards)
        if key not in self._runs:
            with quiet():
                self._runs[key] = shards, _results(run())
        return self._runs[key][1]


def values(results: Sequence[RankResult]) -> list[Any]:
    """Return what ranks returned.

    Raises:
        NotJudged: some did not.
    """
    for rank in results:
        if rank.kind != "value":
            raise NotJudged(f"the sync raises {rank.text}")
    return [rank.value for rank in results]


def _on_rank(
    scenario: Scenario, subject: Subject, shards: Shards, comm: Communicator
) -> tuple[Any, tuple[str, ...]]:
    """Be one rank: run a scenario on the rank's own shard, and write its collectives down."""
    recording = RecordingCommunicator(comm)
    with use(recording):
        value = scenario(Rank(recording, subject, shards[comm.rank]))
    return value, tuple(call.op for call in recording.calls)


def _quietly(job: Callable[[Communicator], Any], comm: Communicator) -> Any:
    """Run a job in a process of its own, where warnings are silenced anew."""
    with quiet():
        return job(comm)


def _results(outcomes: Sequence[Outcome]) -> list[RankResult]:
    """Tell values, errors and stuck ranks apart; a rank that an error of another let down is not stuck."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    stuck = bool(errors) and all(map(_is_stuck, errors))
    results = []
    for outcome in outcomes:
        if outcome.error is None:
            value, collectives = outcome.value
            results.append(RankResult("value", value, collectives))
            continue
        first_line = str(outcome.error).strip().partition("\n")[0]
        text = f"{type(outcome.error).__name__}: {first_line}"
        results.append(RankResult("stuck" if stuck else "raised", text=text, error=outcome.error))
    return results


def _is_stuck(error: BaseException) -> bool:
    if isinstance(error, MismatchError):
        return error.what.startswith(_TRANSPORT)
    return isinstance(error, DivergedError | PeerLostError) or is_connection_error(error)

"""One case under trial: a metric, its shards, and every run that the laws ask for, each made once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distmetrics.comm.thread_pool import ThreadPool
from distmetrics.comm.threads import ThreadWorld
from distmetrics.errors import DivergedError, MismatchError, PeerLostError
from distmetrics.liveness.outcome import Outcome
from distmetrics.liveness.pending_calls import is_connection_error
from distmetrics.testing import acts
from distmetrics.testing.equality import Equality
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.pool import Pool
from distmetrics.testing.rows import Batch, count
from distmetrics.testing.subject import Subject, quiet

Shards = tuple[tuple[Batch, ...], ...]
_TRANSPORT = "ranks disagree on a collective"  # what gloo would abort on, or hang


@dataclass(frozen=True, slots=True)
class Ended:
    """How one process, or one rank of a world, ended.

    Attributes:
        kind: "value", "raised", or "stuck": it waits for ever, or the transport breaks.
        value: what the act returned; ``text``: the error, on a line.
        error: it.
    """

    kind: str
    value: Any = None
    text: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """That a law does not hold: what should have been, what is, on which shards."""

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
        threads: whose threads they are, if not new ones.
    """

    subject: Subject
    shards: Shards
    equality: Equality
    pool_of: Callable[[int], Pool] | None = None
    threads: ThreadPool | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _alive: list[Any] = field(
        default_factory=list
    )  # what keys were made of: an identity that is free is used again

    @property
    def dense(self) -> Shards:
        """The shards without ranks and batches that have no samples."""
        kept = tuple(tuple(batch for batch in shard if count(batch) != 0) for shard in self.shards)
        return tuple(shard for shard in kept if shard)

    @property
    def pooled(self) -> tuple[Batch, ...]:
        """All batches that have samples, in rank order."""
        return tuple(batch for shard in self.dense for batch in shard)

    def single(self, batches: Sequence[Batch] | None = None) -> Ended:
        """Return what a single process gets, from the data of all ranks by default."""
        chosen = self.pooled if batches is None else tuple(batches)
        self._alive.append(chosen)
        ended: Ended = self._once(("single", _key((chosen,))), lambda: self._single(chosen))
        return ended

    def _single(self, batches: Sequence[Batch]) -> Ended:
        world = ThreadWorld(1, pool=self.threads).outcomes(lambda comm: self._alone(batches))
        return _ended(world)[0]

    def _alone(self, batches: Sequence[Batch]) -> Any:
        if self.subject.is_function:
            return self.subject.make()(batches)
        return self.subject.value(self.subject.filled(batches))

    def world(self, shards: Shards | None = None, act: acts.Act = acts.plain) -> list[Ended]:
        """Run an act in a world that has these shards, by default the trial's."""
        chosen = self.shards if shards is None else shards
        self._alive.append(chosen)
        return self._once((act.__name__, _key(chosen)), lambda: _ended(self._run(chosen, act)))  # type: ignore[no-any-return]

    def _run(self, shards: Shards, act: acts.Act) -> list[Outcome]:
        job = _Job(act, self.subject, shards)
        if self.pool_of is not None:
            return self.pool_of(len(shards)).outcomes(job)
        if self.subject.sync == "distmetrics" and not self.subject.is_function:
            return ThreadWorld(len(shards), pool=self.threads).outcomes(job)
        with routed():
            return ThreadWorld(len(shards), pool=self.threads).outcomes(job)

    def among(self, metrics: Sequence[Any]) -> list[Ended]:
        """Sync metrics that hold something already, one a rank."""
        with quiet():
            return _ended(
                ThreadWorld(len(metrics), pool=self.threads).outcomes(
                    lambda comm: self.subject.synced(metrics[comm.rank], comm)
                )
            )

    def _once(self, key: Hashable, run: Any) -> Any:
        if key not in self._made:
            with quiet():
                self._made[key] = run()
        return self._made[key]


@dataclass(frozen=True)
class _Job:
    """What every rank runs: an act on its own shard. Picklable where the metric's maker is."""

    act: acts.Act
    subject: Subject
    shards: Shards

    def __call__(self, comm: Any) -> Any:
        with (
            quiet() if comm.__class__.__name__ == "GroupCommunicator" else contextlib.nullcontext()
        ):
            return self.act(comm, self.subject, self.shards[comm.rank])


def _ended(outcomes: Sequence[Outcome]) -> list[Ended]:
    """Tell values, errors and what is stuck apart; who was only let down by an error of another's
    is not stuck.
    """
    raised = [o for o in outcomes if o.error is not None and not _is_stuck(o.error)]
    ended = []
    for outcome in outcomes:
        error = outcome.error
        if error is None:
            ended.append(Ended("value", outcome.value))
            continue
        kind = "raised" if raised or not _is_stuck(error) else "stuck"
        ended.append(
            Ended(
                kind,
                text=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
                error=error,
            )
        )
    return ended


def _is_stuck(error: BaseException) -> bool:
    if isinstance(error, MismatchError):
        return str(error).startswith(_TRANSPORT)
    return isinstance(error, DivergedError | PeerLostError) or is_connection_error(error)


def _key(shards: Sequence[Sequence[Batch]]) -> Hashable:
    """Return what tells shards apart: batches are the same objects in every run of a trial."""
    return tuple(tuple(id(batch) for batch in shard) for shard in shards)

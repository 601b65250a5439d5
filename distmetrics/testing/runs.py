"""The runs of a metric on one case: each is made once, whichever laws ask for it."""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from distmetrics.comm.communicator import Communicator, SingleCommunicator, use
from distmetrics.comm.process_group import is_connection_error
from distmetrics.comm.verdict import Outcome
from distmetrics.errors import DivergedError, MismatchError, PeerLostError, in_short
from distmetrics.layouts.mesh import Mesh, usual_roles
from distmetrics.testing.equality import BITWISE, Equality, brief
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.recording import RecordingCommunicator
from distmetrics.testing.scenarios import Rank, Scenario, plain
from distmetrics.testing.shards import Batch, Shards, count, cut, identities, in_runs
from distmetrics.testing.subject import Subject
from distmetrics.testing.worlds import Backend, RunWorld, worlds

_TRANSPORT = "ranks disagree on a collective"  # what gloo would abort on, or hang
_USUAL_LAYOUTS = ({"dp": 2, "tp": 2, "pp": 2},)
_NO_VALUE = object()


class World(NamedTuple):
    """How the ranks of a world ended, and the operations that each one's transport was asked for.

    ``shards`` are kept alive here, since their identities stand for them.
    """

    shards: Shards
    ended: list[Outcome]
    collectives: list[tuple[str, ...]]

    @property
    def is_stuck(self) -> bool:
        """True if ranks wait for calls that never come; not if an error of one let others down."""
        errors = [each.error for each in self.ended if each.error]
        return bool(errors) and all(map(_is_stuck, errors))


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
        meshes: that laws about layouts are judged on.
        shards: for each rank its batches.
    """

    subject: Subject
    equality: Equality
    run_world: RunWorld
    meshes: Sequence[Mesh]
    shards: Shards
    _worlds: dict[Hashable, World] = field(default_factory=dict)

    @property
    def dense(self) -> Shards:
        """The shards without ranks and batches that have no samples; some must have samples."""
        kept = [tuple(batch for batch in shard if count(batch) != 0) for shard in self.shards]
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

    def single(
        self, batches: Sequence[Batch] | None = None, *, then: Sequence[Batch] = ()
    ) -> Outcome:
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
                return Outcome(0, self.subject.value(metric))
            except Exception as error:  # noqa: BLE001  (whatever a metric raises is compared)
                return Outcome(0, error=error)

    def world(self, shards: Shards, scenario: Scenario = plain) -> World:
        """Run a scenario on every rank of a world that has these shards."""
        key = scenario, identities(shards)
        if key not in self._worlds:
            job = partial(_on_rank, scenario, self.subject, shards)
            calls_torch = self.subject.sync == "own" or self.subject.is_function
            with routed() if calls_torch else contextlib.nullcontext():
                outcomes = self.run_world(len(shards), job)
            pairs = [each.value or (None, ()) for each in outcomes]
            ended = [
                replace(each, value=value) for each, (value, _) in zip(outcomes, pairs, strict=True)
            ]
            self._worlds[key] = World(shards, ended, [calls for _, calls in pairs])
        return self._worlds[key]

    def settled(self, shards: Shards, scenario: Scenario = plain) -> list[Outcome]:
        """Return how the ranks of a world ended that is not stuck.

        Raises:
            NotJudged: it is, which the law "no-hang" speaks of.
        """
        world = self.world(shards, scenario)
        if world.is_stuck:
            errors = filter(None, (each.error for each in world.ended))
            raise NotJudged(f"the ranks got stuck, see no-hang: {in_short(next(errors))}")
        return world.ended

    def values(
        self, shards: Shards, scenario: Scenario = plain, *, instead: Any = _NO_VALUE
    ) -> list[Any]:
        """Return what every rank returned.

        Raises:
            NotJudged: some did not.
            LawBroken: some raised ``instead`` of returning this value.
        """
        ended = self.settled(shards, scenario)
        for each in ended:
            if each.error and instead is _NO_VALUE:
                raise NotJudged(f"the sync raises {in_short(each.error)}")
            if each.error:
                said = f"rank {each.rank} raises {in_short(each.error)}"
                raise LawBroken(instead, ended, said, shards)
        return [each.value for each in ended]

    def compare(
        self,
        expected: Any,
        got: Sequence[Any],
        shards: Shards,
        note: str = "",
        equality: Equality | None = None,
    ) -> None:
        """Compare every rank's value with one that is expected.

        By default types may differ, of which a law of its own speaks.
        """
        chosen = equality or replace(self.equality, types=False)
        for rank, value in enumerate(got):
            if difference := chosen.difference(expected, value):
                raise LawBroken(expected, got, f"rank {rank}: {difference}{note}", shards)

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
            self.compare(expected, self.values(other, scenario)[:1], other, note, equality)

    def same_on_each_rank(self, scenario: Scenario) -> None:
        """Run a scenario that returns pairs of what must be equal; compare them on every rank."""
        for rank, pairs in enumerate(self.values(self.dense, scenario)):
            for what, expected, got, bitwise in pairs:
                equality = BITWISE if bitwise else replace(self.equality, types=False)
                if difference := equality.difference(expected, got):
                    detail = f"{what}, on rank {rank}: {difference}"
                    raise LawBroken(expected, [got], detail, self.dense)


@contextlib.contextmanager
def runs_of(
    subject: Subject,
    equality: Equality,
    backend: Backend = "threads",
    layouts: Sequence[Mapping[str, int]] = (),
) -> Iterator[Callable[[Shards], Runs]]:
    """Yield what makes the runs of a case; processes end with the block.

    Raises:
        InputError: there is no such backend.
        ConfigurationError: an axis of a layout has no name that is known.
    """
    meshes = [Mesh.of(sizes, usual_roles(sizes)) for sizes in layouts or _USUAL_LAYOUTS]
    with worlds(backend) as run_world:
        yield partial(Runs, subject, equality, run_world, meshes)


def text_of(value: Any) -> str:
    """Return a value, or how a rank ended, on a line."""
    if isinstance(value, Outcome):
        value = in_short(value.error) if value.error else value.value
    return value if isinstance(value, str) else brief(value)


def _on_rank(
    scenario: Scenario, subject: Subject, shards: Shards, comm: Communicator
) -> tuple[Any, tuple[str, ...]]:
    """Be one rank: run a scenario on the rank's own shard, and write its collectives down."""
    recording = RecordingCommunicator(comm)
    with use(recording):
        value = scenario(Rank(recording, subject, shards[comm.rank]))
    return value, tuple(call.op for call in recording.calls)


def _is_stuck(error: BaseException) -> bool:
    if isinstance(error, MismatchError):
        return error.what.startswith(_TRANSPORT)
    return isinstance(error, DivergedError | PeerLostError) or is_connection_error(error)

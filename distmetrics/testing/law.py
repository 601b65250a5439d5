"""A law as a function that raises, sets of laws, and the runs of a metric that laws compare.

A run of a case is made once, whichever laws ask for it.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from distmetrics.comm.communicator import Communicator, SingleCommunicator, use
from distmetrics.comm.process_group import is_connection_error
from distmetrics.comm.verdict import Outcome
from distmetrics.errors import (
    DivergedError,
    InputError,
    InputTypeError,
    LawViolation,
    MismatchError,
    PeerLostError,
    in_short,
)
from distmetrics.layouts.mesh import Mesh, usual_roles
from distmetrics.testing.equality import BITWISE, CLOSE, Equality, brief
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.recording import RecordingCommunicator
from distmetrics.testing.shards import Batch, Case, Shards, code, count, cut, identities, in_runs
from distmetrics.testing.subject import Rank, Scenario, Subject, Sync, kept, plain, quiet
from distmetrics.testing.worlds import Backend, RunWorld, worlds

_TRANSPORT = "ranks disagree on a collective"  # what gloo would abort on, or hang
_USUAL_LAYOUTS = ({"dp": 2, "tp": 2, "pp": 2},)
_NO_VALUE = object()


class ShardedRun(NamedTuple):
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
    _worlds: dict[Hashable, ShardedRun] = field(default_factory=dict)

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
                    kept(metric.compute())
                    self.subject.update(metric, then)
                return Outcome(0, kept(metric.compute()))
            except Exception as error:  # noqa: BLE001  (whatever a metric raises is compared)
                return Outcome(0, error=error)

    def world(self, shards: Shards, scenario: Scenario = plain) -> ShardedRun:
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
            self._worlds[key] = ShardedRun(shards, ended, [calls for _, calls in pairs])
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


# Laws.

Check = Callable[[Runs], None]
_LONG = 400  # characters of a shard in a report


@dataclass(frozen=True, eq=False)
class Law:
    """A law: ``law(make, case)`` raises ``LawViolation`` if the metric breaks it.

    Attributes:
        number: its place in the list.
        name: in reports, such as ``no-hang``.
        title: the statement.
        page: what it means, why metrics break it, and what to do.
        check: the function that judges it.
        on_all_shards: whether it is judged on every way to deal an example, or on one.
        needs_state: whether it is about the state of a metric, which a function does not have.
        not_own: why a metric's own sync cannot be judged by it, or ``""``.

    >>> from distmetrics.testing import laws
    >>> laws.RANKS_AGREE.number, laws.RANKS_AGREE.title
    (2, 'all ranks get the same value, bit by bit')
    >>> laws.RANKS_AGREE(len, [[(1,)], []])
    Traceback (most recent call last):
    ...
    distmetrics.errors.LawViolation: len breaks the law ranks-agree (2): ...
    """

    number: int
    name: str
    title: str
    page: str = field(repr=False)
    check: Check = field(repr=False)
    on_all_shards: bool = False
    needs_state: bool = False
    not_own: str = ""

    def __call__(self, make: Any, case: Iterable[Iterable[Any]], **options: Any) -> None:
        """Judge a metric on a case.

        Args:
            make: as for :func:`~distmetrics.testing.check_metric`.
            case: the batches of each rank, as :func:`~distmetrics.testing.sharded` draws them.
            options: ``sync``, ``backend`` and ``layouts`` as for
                :func:`~distmetrics.testing.check_metric`, and ``equality``.

        Raises:
            LawViolation: the metric breaks the law.
            InputError: the case says nothing about the law. In a test of hypothesis the case is
                rejected instead, as by ``hypothesis.assume``.
        """
        __tracebackhide__ = True
        Laws.of(self)(make, case, **options)

    def verdict(self, runs: Runs) -> LawBroken | NotJudged | None:
        """Judge the law on a case; return None if it holds."""
        try:
            self._ask(runs)
        except (LawBroken, NotJudged) as reason:
            return reason
        return None

    def _ask(self, runs: Runs) -> None:
        if not runs.shards:
            raise NotJudged("there is no rank")
        if self.not_own and runs.subject.sync != "distmetrics":
            raise NotJudged(self.not_own)
        if self.needs_state and runs.subject.is_function:
            raise NotJudged("a function holds no state")
        with quiet():
            self.check(runs)

    def __str__(self) -> str:
        return self.name

    def __or__(self, other: Law | Laws) -> Laws:
        return Laws.of(self) | other


@dataclass(frozen=True, slots=True)
class Laws:
    """A set of laws, in their order, and what counts as equal; operators of sets combine them.

    Attributes:
        chosen: the laws.
        off_because: laws that were declared off, each with its reason.
        equality: the :class:`~distmetrics.testing.Equality` of values; default a relative
            difference of 1e-5 and an absolute one of 1e-6.

    >>> from distmetrics.testing import laws
    >>> print(*(laws.NO_HANG | laws.RANKS_AGREE | laws.SHIFT) - laws.SHIFT)
    ranks-agree no-hang
    >>> kept = laws.DEFAULT.off(laws.RANK_ORDER, because="the value is a list in rank order")
    >>> laws.RANK_ORDER in kept, len(laws.DEFAULT) - len(kept)
    (False, 1)
    """

    chosen: frozenset[Law]
    off_because: Mapping[Law, str] = field(default_factory=dict)
    equality: Equality = CLOSE

    @classmethod
    def of(cls, laws: Law | Laws) -> Laws:
        """Return laws as they are, and one law as a set.

        Raises:
            InputTypeError: they are not laws.
        """
        if isinstance(laws, Law):
            return cls(frozenset([laws]))
        if not isinstance(laws, Laws):
            raise InputTypeError(
                f"laws must be laws of distmetrics.testing.laws, got {laws!r}",
                do="pass laws.DEFAULT, laws.NO_HANG | laws.RANKS_AGREE, or laws.find(name).",
            )
        return laws

    def __call__(
        self,
        make: Any,
        case: Iterable[Iterable[Any]],
        *,
        sync: Sync = "distmetrics",
        backend: Backend = "threads",
        equality: Equality | None = None,
        layouts: Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Judge a metric on a case by these laws; arguments and errors as of one law."""
        __tracebackhide__ = True
        subject, shards = Subject.of(make, sync), Case(case)
        unjudged: dict[Law, NotJudged] = {}
        with runs_of(subject, equality or self.equality, backend, layouts) as runs:
            on_case = runs(shards)
            for law in self:
                found = law.verdict(on_case)
                if isinstance(found, LawBroken):
                    raise LawViolation(told(law, subject, shards, found))
                if found is not None:
                    unjudged[law] = found
        if len(unjudged) == len(self) > 0:
            law, why = next(iter(unjudged.items()))
            _reject(f"the law {law} says nothing about this case: {why}")

    def off(self, law: Law, *, because: str) -> Laws:
        """Return these laws without one that the metric cannot keep.

        Args:
            law: the law to leave out.
            because: the reason, which is in every report.

        Raises:
            InputError: no reason is given.
        """
        if not because.strip():
            raise InputError(f'the law {law} is declared off without a reason; say because="…"')
        return replace(self - law, off_because={**self.off_because, law: because})

    def equal(self, equality: Equality) -> Laws:
        """Return these laws, judged by another equality."""
        return replace(self, equality=equality)

    def __iter__(self) -> Iterator[Law]:
        return iter(sorted(self.chosen, key=lambda law: law.number))

    def __contains__(self, law: object) -> bool:
        return law in self.chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __or__(self, other: Law | Laws) -> Laws:
        added = Laws.of(other)
        reasons = {**self.off_because, **added.off_because}
        off = {law: why for law, why in reasons.items() if law not in added}
        return replace(self, chosen=self.chosen | added.chosen, off_because=off)

    def __sub__(self, other: Law | Laws) -> Laws:
        return replace(self, chosen=self.chosen - Laws.of(other).chosen)


def _reject(why: str) -> None:
    """Reject a case that says nothing: what is not judged must not count as a success."""
    try:
        import hypothesis
    except ImportError:
        raise InputError(why) from None
    if not hypothesis.currently_in_test_context():
        raise InputError(why)
    hypothesis.event(why)
    hypothesis.reject()


def told(law: Law, subject: Subject, case: Shards, broken: LawBroken, again: str = "") -> str:
    """Say that a law is broken, what was expected, what each rank got, and why metrics break it.

    ``again`` is code that shows it.
    """
    lines = [
        f"{subject.name} breaks the law {law.name} ({law.number}): {law.title}",
        *(["", textwrap.indent(again, "    ")] if again else []),
        "",
        f"  expected    {text_of(broken.expected)}",
        *(f"  rank {rank} got  {text_of(got)}" for rank, got in enumerate(broken.got)),
        textwrap.indent(broken.detail, "  "),
    ]
    if repr(Case(broken.shards)) != repr(case):
        lines += ["  That is the run on", textwrap.indent(case_text(broken.shards), "    ")]
    return "\n".join([*lines, "", textwrap.indent(law.page, "  ")])


def shard_texts(case: Shards) -> tuple[str, ...]:
    """Return each rank's batches as code, cut where it is long."""
    texts = [", ".join(map(code, shard)) for shard in case]
    return tuple(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for text in texts)


def case_text(case: Shards) -> str:
    """Return a case as code with a line per rank."""
    lines = []
    for rank, text in enumerate(shard_texts(case)):
        comma = "," if len(case[rank]) == 1 else ""
        lines.append(f"    ({text}{comma}),  # rank {rank}" + ("" if text else ": no data"))
    return "\n".join(["(", *lines, ")"])


def law(number: int, title: str, **options: Any) -> Callable[[Check], Law]:
    """Make a law of its check, whose docstring is the law's page."""

    def made(check: Check) -> Law:
        name = check.__name__.lower().replace("_", "-")
        return Law(number, name, title, inspect.cleandoc(check.__doc__ or ""), check, **options)

    return made

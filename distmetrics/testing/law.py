"""A law as a function that raises, and sets of laws."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distmetrics.errors import InputError, InputTypeError, LawViolation
from distmetrics.testing.equality import CLOSE, Equality
from distmetrics.testing.runs import LawBroken, NotJudged, Runs, runs_of, text_of
from distmetrics.testing.shards import Case, Shards, code
from distmetrics.testing.subject import Subject, Sync, quiet
from distmetrics.testing.worlds import Backend

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
        check: judges it; raises ``LawBroken``, ``NotJudged`` or nothing.
        on_all_shards: whether it is judged on every way to deal an example, and not on one.
        needs_state: whether it is about what a metric holds; functions hold nothing.
        not_own: why a metric's own sync cannot be judged by it, or "".
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
            make: as of :func:`~distmetrics.testing.check_metric`.
            case: for each rank its batches, as :func:`~distmetrics.testing.sharded` draws them.
            options: ``sync``, ``backend``, ``equality`` and ``layouts``.

        Raises:
            LawViolation: the metric breaks the law; says how, and why metrics do.
            InputError: the case says nothing about the law, outside of a test of hypothesis; in
                one the case is rejected, as ``hypothesis.assume`` does.
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
    """A set of laws, with those that were declared off and why, and what counts as equal."""

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
        """Judge a metric on a case by these laws, as one law does."""
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
            law: that one.
            because: the reason, which stands in every report.

        Raises:
            InputError: no reason is given.
        """
        if not because.strip():
            raise InputError(f'the law {law} is declared off without a reason; say because="…"')
        return replace(self - law, off_because={**self.off_because, law: because})

    def equal(self, equality: Equality) -> Laws:
        """Return these laws, judged by another equality.

        The default is :data:`~distmetrics.testing.equality.CLOSE`.
        """
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

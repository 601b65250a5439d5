"""A law as a value, and sets of laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distmetrics.errors import InputError, InputTypeError
from distmetrics.testing.equality import CLOSE, Equality


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Attributes:
        number: its place in the list; ``name``: in reports and on the command line.
        title: the statement.
        page: what it means, why it breaks, what to do.
        check: judges it on a ``Trial``: raises ``LawBroken``, ``NotJudged`` or nothing.
        on_all_shards: judged on every way to deal an example; other laws are judged on one.
        needs_state: about what a metric holds, and functions hold nothing.
        not_own: why a metric's own sync cannot be judged by it, or "".
    """

    number: int
    name: str
    title: str
    page: str = field(repr=False)
    check: Callable[[Any], None] = field(repr=False)
    on_all_shards: bool = False
    needs_state: bool = False
    not_own: str = ""

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
            InputTypeError: they are none.
        """
        if isinstance(laws, Law):
            return cls(frozenset([laws]))
        if not isinstance(laws, Laws):
            raise InputTypeError(
                f"laws must be laws of distmetrics.testing.laws, got {laws!r}",
                do="pass laws.DEFAULT, laws.NO_HANG | laws.RANKS_AGREE, or laws.find(name).",
            )
        return laws

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

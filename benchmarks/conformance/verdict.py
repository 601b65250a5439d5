"""From how the ranks ended to one word: ok, wrong, error, hang or abort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.conformance.ranks import Ended
from distmetrics.testing.equality import CLOSE, EXACT

__all__ = ["VERDICTS", "Row", "judge"]

VERDICTS = ("ok", "wrong", "error", "hang", "abort")


@dataclass(frozen=True)
class Row:
    """One line of the results: a case in one layout, synced by one library."""

    name: str
    group: str
    package: str
    transport: str
    world_size: int
    layout: str
    verdict: str
    detail: str

    @property
    def kind(self) -> str:
        """The class alone."""
        return self.name.partition("[")[0]


def judge(single: Ended, ranks: Sequence[Ended]) -> tuple[str, str]:
    """Return the verdict and what there is to say about it.

    An abort outweighs an error, since the error of the other ranks follows from it, and an error a
    hang. Where the single process raises too, the right outcome is the same error on every rank.
    """
    kinds = [one.kind for one in ranks]
    for kind in ("abort", "error", "hang"):
        if kind not in kinds:
            continue
        if kind == "error" and all(
            (one.kind, one.text) == (single.kind, single.text) for one in ranks
        ):
            return "ok", f"same error: {single.text}"
        rank = kinds.index(kind)
        waits = kinds.count("hang") if kind == "error" else 0
        rest = f"; {waits} other{'s wait' if waits > 1 else ' waits'} for it" if waits else ""
        return kind, f"rank {rank}: {ranks[rank].text}{rest}"
    return _values(single, ranks)


def _values(single: Ended, ranks: Sequence[Ended]) -> tuple[str, str]:
    """Judge ranks that all returned a value."""
    if single.kind == "error":
        return "wrong", f"a value where the single process raises {single.text}"
    for rank, one in enumerate(ranks):
        if found := CLOSE.difference(single.value, one.value):
            return "wrong", f"rank {rank}: {found}"
    for rank, one in enumerate(ranks):
        if found := EXACT.difference(ranks[0].value, one.value):
            return "wrong", f"rank {rank} is not as rank 0: {found}"
    return "ok", ""

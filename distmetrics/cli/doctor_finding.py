"""What a check of ``doctor`` found, and how what ranks found is put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from distmetrics.errors import DistmetricsError, who

Status = Literal["ok", "warn", "fail"]
_ORDER: dict[Status, int] = {"ok": 0, "warn": 1, "fail": 2}
_DO = "\nDo:     "


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check.
        status: "ok", "warn" for what is slow or will bite later, "fail" for what stops a job or
            makes it wrong.
        found: what was found.
        do: what to do about it; nothing where all is well.
        ranks: who found it; empty where it is about the job as a whole.
        numbers: what was measured, for machines.
    """

    name: str
    status: Status
    found: str
    do: str = ""
    ranks: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether a check failed."""
    return any(finding.status == "fail" for finding in findings)


def of_error(name: str, error: BaseException) -> Finding:
    """Turn an error into a failed check: what it says to do stands apart."""
    text = str(error) if isinstance(error, DistmetricsError) else f"{type(error).__name__}: {error}"
    found, _, do = text.partition(_DO)
    return Finding(name, "fail", found.rstrip(), do)


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Put together what each rank found: one finding where all agree, else one for each that
    differs.

    Names come in the order of the checks; of one name, the worst first. What is fine is one finding
    whatever the ranks' words are, with each of them.

    >>> ok, bad = Finding("names", "ok", "fine"), Finding("names", "fail", "no address", "mend it")
    >>> [(finding.status, finding.ranks) for finding in merged([[ok], [bad], [ok]])]
    [('fail', (1,)), ('ok', (0, 2))]
    """
    names = dict.fromkeys(finding.name for findings in by_rank for finding in findings)
    found: list[Finding] = []
    for name in names:
        groups: dict[tuple[Status, str, str], list[int]] = {}
        for rank, findings in enumerate(by_rank):
            for finding in findings:
                if finding.name == name:
                    groups.setdefault((finding.status, finding.found, finding.do), []).append(rank)
        fine = {key[1]: ranks for key, ranks in groups.items() if key[0] == "ok"}
        bad = [Finding(name, *key, tuple(ranks)) for key, ranks in groups.items() if key[0] != "ok"]
        found += sorted(bad, key=lambda finding: -_ORDER[finding.status])
        if fine:
            found.append(_fine(name, fine))
    everyone = tuple(range(len(by_rank)))
    return [
        replace(finding, ranks=()) if finding.ranks == everyone else finding for finding in found
    ]


_FEW = 4  # sets of ranks whose words are told apart


def _fine(name: str, words: Mapping[str, Sequence[int]]) -> Finding:
    """Say what is fine: in the ranks' words if they are few, else in those of the first."""
    ranks = tuple(sorted({rank for group in words.values() for rank in group}))
    if len(words) == 1:
        return Finding(name, "ok", next(iter(words)), "", ranks)
    lines = [f"{who(group)}: {text}" for text, group in words.items()]
    more = [f"and {len(lines) - _FEW} more"] if len(lines) > _FEW else []
    return Finding(name, "ok", "\n".join([*lines[:_FEW], *more]), "", ranks)

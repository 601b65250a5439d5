"""What the timeline's page draws: a lane a rank, or a group of equal ranks, packed so that many
ranks fit one page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from distmetrics.errors import who
from distmetrics.guard.postmortem import Divergence, PostMortem
from distmetrics.guard.postmortem_files import Call, RankReport
from distmetrics.guard.postmortem_text import place

_MANY = 32  # ranks, above which equal ones share a lane
_UNIT = 1e-5  # seconds that the page's whole numbers count
_LONGEST = 400  # letters of one text
_BUDGET = 12_000_000  # bytes of all the page's data
_IN_SCRIPT = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of the page: ranks that made the same calls; those without a file have no reports.

    Attributes:
        ranks: whose lane it is.
        reports: what they left, in the order of the ranks.
    """

    ranks: Sequence[int]
    reports: Sequence[RankReport] = ()


def lanes(post: PostMortem) -> list[Lane]:
    """Return a lane for each rank, or for each group of equal ranks if there are many."""
    silent = [Lane(post.missing)] if post.missing else []
    if post.world_size <= _MANY:
        silent = [Lane((rank,)) for rank in post.missing]
        found = [Lane((rank,), (report,)) for rank, report in post.reports.items()]
    else:
        found = _grouped(post, _exactly)
        if len(found) > _MANY:  # shards of different size are no difference that matters
            found = _grouped(post, _roughly)
    return sorted([*found, *silent], key=lambda lane: lane.ranks[0])


def _grouped(post: PostMortem, key: Callable[[RankReport], Hashable]) -> list[Lane]:
    groups: dict[Hashable, list[RankReport]] = {}
    for report in post.reports.values():
        groups.setdefault(key(report), []).append(report)
    return [Lane([report.rank for report in group], group) for group in groups.values()]


def _exactly(report: RankReport) -> Hashable:
    error = report.error and (report.error.kind, report.error.site)
    return error, report.where, tuple((*call[:5], call.ended is None) for call in report.calls)


def _roughly(report: RankReport) -> Hashable:
    error = report.error and report.error.kind
    return (
        error,
        report.where[:1],
        tuple((*call[:3], call.site, call.ended is None) for call in report.calls),
    )


class _Table:
    """Numbers things: each is written once, and meant by its number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, thing: Hashable) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))


def packed(post: PostMortem, of: Sequence[Lane]) -> str:
    """Return what the page's script reads, as JSON that cannot end the element that it stands in.

    Where all of it would make too large a page, only the last calls of each lane are kept; ``kept``
    says how many.
    """
    last: int | None = None
    while (
        size := len((text := _escaped(_data(post, of, last))).encode("utf-8", "replace"))
    ) > _BUDGET and last != 1:
        most = (
            max(len(report.calls) for lane in of for report in lane.reports)
            if last is None
            else last
        )
        last = max(1, min(most - 1, int(0.95 * most * _BUDGET / size)))
    return text


def _escaped(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for letter, code in _IN_SCRIPT.items():
        text = text.replace(letter, code)
    return text


def _data(post: PostMortem, of: Sequence[Lane], last: int | None) -> dict[str, Any]:
    first = post.divergences[0] if post.divergences else None
    drawn = [call for lane in of for report in lane.reports for call in _last(report, last)]
    written = [report.written for report in post.reports.values()]
    origin = min((call.started for call in drawn), default=min(written))
    answers = _answers(first)
    usual = Counter(answers.values()).most_common(1)[0][0] if answers else None
    texts, kinds, groups = _Table(), _Table(), _Table()
    for call in sorted(drawn, key=lambda call: call.started):
        groups(call.group)
    rows = [
        _lane(lane, origin, last, (texts, kinds, groups)) | _standing(lane, answers, usual, texts)
        for lane in of
    ]
    return {
        "origin": origin,
        "unit": _UNIT,
        "kept": last,
        "end": _units(max(written) - origin),
        "mark": first
        and {"at": _units(first.at - origin), "group": groups(first.group), "number": first.number},
        "lanes": rows,
        "kinds": list(kinds.numbers),
        "groups": list(groups.numbers),
        "texts": list(texts.numbers),
    }


def _last(report: RankReport, count: int | None) -> Sequence[Call]:
    return report.calls if count is None else report.calls[-count:]


def _units(seconds: float) -> int:
    return round(seconds / _UNIT)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _lane(
    lane: Lane, origin: float, last: int | None, tables: tuple[_Table, _Table, _Table]
) -> dict[str, Any]:
    """Return a lane: three numbers a call (kind, start since the one before, length), and of groups
    who was late.
    """
    texts, kinds, groups = tables
    calls: list[int] = []
    late: list[int] = []
    before = 0
    for same in zip(*(_last(report, last) for report in lane.reports), strict=True):
        call = same[0]
        said = (texts(_cut(call.op)), texts(_details(same)), texts(_cut(call.site)))
        start = _units(_middle([one.started for one in same]) - origin)
        calls += [
            kinds((call.number, groups(call.group), *said)),
            start - before,
            _length(same, lane.reports, origin),
        ]
        before = start
        if len(same) > 1:
            slowest = max(range(len(same)), key=lambda place: same[place].started)
            spread = same[slowest].started - min(one.started for one in same)
            late += [_units(spread), lane.ranks[slowest]]
    hosts = list(dict.fromkeys(report.host for report in lane.reports))
    found: dict[str, Any] = {
        "ranks": who(lane.ranks),
        "hosts": texts(_hosts(hosts)),
        "calls": calls,
    }
    if lane.reports:
        found |= {
            "stack": texts(_cut("\n".join(lane.reports[0].where))),
            "state": texts(_cut(_state(lane.reports[0]))),
        }
    if len(lane.reports) == 1:
        found["pid"] = lane.reports[0].pid
    return found | ({"late": late} if late else {})


def _details(same: Sequence[Call]) -> str:
    """Say what a rank sends, and how many other things the ranks of its lane send."""
    others = len({call.detail for call in same}) - 1 if len(same) > 1 else 0
    return _cut(same[0].detail) + (
        f" (and {others} other{'s' if others > 1 else ''})" if others else ""
    )


def _length(same: Sequence[Call], reports: Sequence[RankReport], origin: float) -> int:
    """Return how long a call took; below 0 how long it had waited when the file was written, less
    one.
    """
    start = _units(_middle([call.started for call in same]) - origin)
    ends = [call.ended for call in same if call.ended is not None]
    if len(ends) == len(same):
        return max(0, _units(_middle(ends) - origin) - start)
    return -1 - max(0, _units(max(report.written for report in reports) - origin) - start)


def _middle(times: Sequence[float]) -> float:
    return median(times) if len(times) > 1 else times[0]


def _hosts(names: Sequence[str]) -> str:
    few = 3
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _state(report: RankReport) -> str:
    if report.error is not None:
        return f"raised {report.error.kind}"
    return f"elsewhere: {report.where[0]}" if report.where else "elsewhere"


def _answers(first: Divergence | None) -> dict[int, str | None]:
    """Return what each rank called where the ranks part, or what it sent if they part over that;
    None: nothing.
    """
    if first is None:
        return {}
    over_ops = first.absent or len(first.ops) > 1
    came = {rank: call.op if over_ops else call.detail for rank, call in first.calls.items()}
    return came | dict.fromkeys(first.absent)


def _standing(
    lane: Lane, answers: Mapping[int, str | None], usual: str | None, texts: _Table
) -> dict[str, Any]:
    """Say whether a lane is odd where the ranks part, and if it was absent, where it was."""
    if not lane.reports:
        return {"silent": 1, "odd": 1}
    given = [answers[rank] for rank in lane.ranks if rank in answers]
    said: dict[str, Any] = {"absent": texts(_cut(place(lane.reports[0])))} if None in given else {}
    return said | ({"odd": 1} if any(answer != usual for answer in given) else {})

"""Clocks of different machines put side by side: ranks leave a collective together, whatever their
clocks say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from distmetrics.guard.postmortem_files import Call, RankReport

_LOOSE = {
    "broadcast",
    "gather",
    "reduce",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
}  # a rank need not wait in these

_Ends = dict[str, float]  # when a call ended, by host and its clock


def ahead(reports: Iterable[RankReport]) -> dict[str, float]:
    """Tell by how many seconds each host's clock is ahead of the first host's.

    Told from the ends of calls that ranks of both made, or of each and a third. A host without such
    calls is left out.
    """
    reports = list(reports)
    known = {report.host: 0.0 for report in reports[:1]}
    shared = _shared(reports) if len({report.host for report in reports}) > 1 else []
    while True:
        found: defaultdict[str, list[float]] = defaultdict(list)
        for ends in shared:
            if at := [end - known[host] for host, end in ends.items() if host in known]:
                base = median(at)
                for host in ends.keys() - known.keys():
                    found[host].append(ends[host] - base)
        if not found:
            return known
        known |= {host: median(leads) for host, leads in found.items()}


def _shared(reports: Iterable[RankReport]) -> list[_Ends]:
    """Return the ends of calls that several hosts made; of a host's ranks the first end is nearest
    to the truth.
    """
    ends: defaultdict[tuple[str, int, str], _Ends] = defaultdict(dict)
    for report in reports:
        # The last call of a rank that raised ended by that error, and not with the others
        for call in report.calls[:-1] if report.error else report.calls:
            if call.ended is not None and call.op.partition(" ")[0] not in _LOOSE:
                of_call = ends[call.group, call.number, call.op]
                of_call[report.host] = min(call.ended, of_call.get(report.host, call.ended))
    return [of_call for of_call in ends.values() if len(of_call) > 1]


def set_back(report: RankReport, seconds: float) -> RankReport:
    """Return the report with all times earlier by so much."""
    if not seconds:
        return report
    calls = tuple(
        Call(
            *call[:5], call.started - seconds, None if call.ended is None else call.ended - seconds
        )
        for call in report.calls
    )
    return replace(report, written=report.written - seconds, calls=calls)

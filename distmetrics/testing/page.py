"""One self-contained HTML page of reports: metrics by laws, with filters, and the smallest case of
each violation.
"""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from distmetrics.testing import laws
from distmetrics.testing.laws import Law
from distmetrics.testing.report import Report

_MARKS = {
    "o": "✓",
    "v": "✗",
    "s": "–",
    "f": "○",
    "": "",
}  # judged and held, violated, skipped, declared off, not asked
_VERDICTS = {"o": "ok", "v": "violated", "s": "skipped", "f": "declared off"}
_IN_SCRIPT = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def write(
    reports: Sequence[Report | Mapping[str, Any]], path: str | Path, title: str = "Laws of metrics"
) -> None:
    """Write the page of reports to a file; see :func:`render`."""
    Path(path).write_text(render(reports, title), encoding="utf-8")


def render(reports: Sequence[Report | Mapping[str, Any]], title: str = "Laws of metrics") -> str:
    """Return the page of reports as HTML: no request leaves it, and it works from a file.

    Args:
        reports: what ``check_metric`` returned, or ``to_dict()`` of it. A dictionary may say two
            things more: ``package``, which is told from the metric's name otherwise, and ``error``:
                why it could not be judged.
        title: of the page.

    >>> "no metric" in render([], "Nothing yet")
    True
    """
    rows = _rows(
        [report if isinstance(report, Mapping) else report.to_dict() for report in reports]
    )
    judged = _laws(rows)
    parts = files("distmetrics.testing") / "data"
    page = string.Template((parts / "page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(title),
        css=(parts / "page.css").read_text(encoding="utf-8"),
        js=(parts / "page.js").read_text(encoding="utf-8"),
        counts=_counts(rows, judged),
        law_options="".join(_option(law.name, f"{law.number} {law.name}") for law in judged),
        package_options="".join(map(_option, sorted({row.package for row in rows} - {""}))),
        sync_options="".join(map(_option, sorted({row.sync for row in rows} - {""}))),
        heads="".join(_head(law) for law in judged),
        sums="".join(
            f"<td>{sum(row.verdict(law) == 'v' for row in rows) or ''}</td>" for law in judged
        ),
        body="\n".join(_line(row, judged) for row in rows),
        rows=len(rows) + 2,
        data=_data(rows, judged),
    )


@dataclass(frozen=True)
class _Row:
    """One report as a row: what it says, by the number of a law.

    Attributes:
        key: names the row in a link; no other row has it.
        package: where the metric is from, as far as known.
        how: sync, transport and world sizes.
        error: why the metric could not be judged, or "".
        held: times that a law was judged.
        reasons: verdict ("s" or "f") and reason of the laws that were not judged.
        cases: the violations, as dictionaries.
    """

    key: str
    metric: str
    package: str
    sync: str
    how: str
    error: str
    held: Mapping[int, int]
    reasons: Mapping[int, tuple[str, str]]
    cases: Sequence[tuple[int, Mapping[str, Any]]]

    def verdict(self, law: Law) -> str:
        """Return the class of a cell: a key of ``_MARKS``."""
        if any(number == law.number for number, _ in self.cases):
            return "v"
        return (
            self.reasons[law.number][0]
            if law.number in self.reasons
            else "o"
            if law.number in self.held
            else ""
        )


def _rows(reports: Iterable[Mapping[str, Any]]) -> list[_Row]:
    seen: Counter[str] = Counter()
    rows = []
    for report in reports:
        metric, sync = str(report["metric"]), str(report.get("sync", ""))
        key = f"{metric}@{sync}" if sync else metric
        seen[key] += 1
        reasons = {_number(law): ("s", str(why)) for law, why in report.get("skipped", {}).items()}
        reasons |= {_number(law): ("f", str(why)) for law, why in report.get("off", {}).items()}
        rows.append(
            _Row(
                key if seen[key] == 1 else f"{key}~{seen[key]}",
                metric,
                str(report.get("package", _package(metric))),
                sync,
                _how(report, sync),
                str(report.get("error", "")),
                {_number(law): int(times) for law, times in report.get("judged", {}).items()},
                reasons,
                [(_number(case["law"]), case) for case in report.get("violations", ())],
            )
        )
    return rows


def _number(law: str | int) -> int:
    return laws.find(law).number


def _package(metric: str) -> str:
    """Return what stands before the class in ``torchmetrics.text:BLEUScore`` or
    ``torchmetrics.text.BLEUScore(…)``.
    """
    name = metric.partition("(")[0]
    return name.rpartition(":")[0] or name.rpartition(".")[0]


def _how(report: Mapping[str, Any], sync: str) -> str:
    """Say how a metric was run: ``own sync, threads, W = 2, 3``."""
    sizes = ", ".join(map(str, report.get("world_sizes", ())))
    said = [
        f"{sync} sync" if sync else "",
        str(report.get("backend", "")),
        f"W = {sizes}" if sizes else "",
    ]
    return ", ".join(filter(None, said))


def _laws(rows: Sequence[_Row]) -> list[Law]:
    """Return the laws that any report speaks of, in order."""
    told = {
        number
        for row in rows
        for number in (*row.held, *row.reasons, *(number for number, _ in row.cases))
    }
    return [laws.find(number) for number in sorted(told)]


def _counts(rows: Sequence[_Row], judged: Sequence[Law]) -> str:
    """Say in the header what was found."""
    if not rows:
        return "There is no metric in this report."
    cells = Counter(row.verdict(law) for row in rows for law in judged)
    bad, failed = sum(bool(row.cases) for row in rows), sum(bool(row.error) for row in rows)
    metrics = len({row.metric for row in rows})
    said = [
        f"<b>{metrics}</b> metric{'s' if metrics != 1 else ''} in {len(rows)} "
        f"run{'s' if len(rows) != 1 else ''}",
        f'<b class="{"bad" if bad else ""}">{bad}</b> with a violation',
        *(f"<b>{cells[name]}</b> cells {text}" for name, text in _VERDICTS.items()),
    ]
    return " · ".join([*said, f"<b>{failed}</b> could not be judged"] if failed else said)


def _option(value: str, text: str = "") -> str:
    return f'<option value="{escape(value)}">{escape(text or value)}</option>'


def _head(law: Law) -> str:
    title = escape(f"{law.number}. {law.title}")
    return f'<th scope="col" class="law" title="{title}"><span>{law.number} {escape(law.name)}</span></th>'


def _line(row: _Row, judged: Sequence[Law]) -> str:
    name = escape(row.metric)
    head = f'<th scope="row" class="metric" title="{name}">{name}</th><td class="how">{escape(row.how)}</td>'
    if row.error:
        cells = f'<td class="error" colspan="{max(1, len(judged))}">{escape(row.error)}</td>'
    else:
        cells = "".join(_cell(row, law) for law in judged)
    return f"<tr>{head}{cells}</tr>"


def _cell(row: _Row, law: Law) -> str:
    verdict = row.verdict(law)
    if not verdict:
        return "<td></td>"
    reason = row.reasons[law.number][1] if verdict in ("s", "f") else ""
    title = f' title="{escape(reason)}"' if reason else ""
    return f'<td class="{verdict}" aria-label="{law.name}: {_VERDICTS[verdict]}"{title}>{_MARKS[verdict]}</td>'


def _data(rows: Sequence[_Row], judged: Sequence[Law]) -> str:
    """Return what the page's script reads, as JSON that cannot end the element that it stands in."""
    columns = {law.number: index for index, law in enumerate(judged)}
    data = {
        "laws": [{"number": law.number, "name": law.name, "title": law.title} for law in judged],
        "rows": [
            {
                "key": row.key,
                "metric": row.metric,
                "package": row.package,
                "sync": row.sync,
                "how": row.how,
                "cases": [_case(columns[number], case) for number, case in row.cases],
            }
            for row in rows
        ],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return "".join(_IN_SCRIPT.get(letter, letter) for letter in text)


def _case(column: int, case: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: str(case.get(name, "")) for name in ("expected", "detail", "snippet")}
    return {
        "law": column,
        **texts,
        **{name: [str(one) for one in case.get(name, ())] for name in ("shards", "got")},
    }

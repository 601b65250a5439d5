"""The results of two runs of the same tests: read from pytest's XML, compared, and told."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.upstream_tests.causes import cause_of

OUTCOMES = ("passed", "failed", "error", "skipped")
_ELEMENTS = {"failure": "failed", "error": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes:
        kind: one of ``OUTCOMES``.
        said: what it failed with, in one line.
        syncs: how many syncs through distmetrics its processes made.
    """

    kind: str
    said: str = ""
    syncs: int = 0


@dataclass(frozen=True)
class Run:
    """One run of a family: test → outcome, and file → why its tests could not be collected."""

    tests: Mapping[str, Outcome]
    uncollected: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A family's two runs, and how many distributed tests it has in all."""

    family: str
    cases: int
    theirs: Run
    ours: Run

    @property
    def names(self) -> list[str]:
        """The tests of either run, in order."""
        return list({**self.theirs.tests, **self.ours.tests})

    def of(self, name: str) -> tuple[Outcome, Outcome]:
        """Return how a test ended in each; what one of the runs lacks is an error there."""
        lost = Outcome("error", "not run")
        return self.theirs.tests.get(name, lost), self.ours.tests.get(name, lost)

    @property
    def differ(self) -> list[str]:
        """The tests that end otherwise with distmetrics' sync."""
        return [name for name in self.names if len({outcome.kind for outcome in self.of(name)}) > 1]

    @property
    def alike(self) -> list[str]:
        """The tests that fail with both."""
        return [
            name
            for name in self.names
            if {outcome.kind for outcome in self.of(name)} in ({"failed"}, {"error"})
        ]


def read(text: str) -> Run:
    """Read pytest's XML.

    Of a test that has two entries, as one whose teardown fails, the worse counts.
    """
    tests: dict[str, Outcome] = {}
    uncollected: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        found = _outcome(case)
        place, name = case.get("classname", ""), case.get("name", "")
        if not place:  # the place of a test that was collected is its module
            uncollected[name] = found.said
            continue
        full = f"{place}::{name}"
        before = tests.get(full)
        if before is None or _WORST.index(found.kind) < _WORST.index(before.kind):
            tests[full] = found
    return Run(tests, uncollected)


_WORST = ("error", "failed", "skipped", "passed")


def _outcome(case: ET.Element) -> Outcome:
    made = [each.get("value", "0") for each in case.iter("property") if each.get("name") == "syncs"]
    syncs = int(made[0]) if made else 0
    for tag, kind in _ELEMENTS.items():
        element = case.find(tag)
        if element is not None:
            said = element.get("message", "")
            if said == "collection failure":
                said = _last_error(element.text or "")
            return Outcome(kind, _line(said), syncs)
    return Outcome("passed", "", syncs)


def _last_error(text: str) -> str:
    lines = [line[1:] for line in text.splitlines() if line.startswith("E ")]
    return lines[-1] if lines else "collection failure"


def _line(said: str, length: int = 240) -> str:
    said = re.sub(r"\s+", " ", said).strip()
    return said if len(said) <= length else said[: length - 1] + "…"


def part(run: Run, place: str) -> Run:
    """Return what a run found below a test file, such as ``bases/test_ddp.py``, or a folder."""
    start = "unittests." + place.removesuffix(".py").replace("/", ".")

    def within(name: str) -> bool:
        module = name.partition("::")[0].removeprefix("tests.")
        return module == start or module.startswith(f"{start}.")

    return Run(
        {name: outcome for name, outcome in run.tests.items() if within(name)},
        {name: said for name, said in run.uncollected.items() if within(name)},
    )


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one document of those of several runs; facts that differ follow one another."""
    found: dict[str, Any] = {"facts": {}, "totals": {}, "families": {}}
    for one in parts:
        for name, said in one["facts"].items():
            known = found["facts"].get(name)
            found["facts"][name] = said if known in (None, said) else f"{known}; {said}"
        found["families"].update(one["families"])
    for sync in ("theirs", "ours"):
        tally = Counter[str]()
        for family in found["families"].values():
            tally.update(family[sync])
        found["totals"][sync] = {kind: tally[kind] for kind in OUTCOMES}
    for key in ("differ", "fail_with_both"):
        found[key] = [row for one in parts for row in one[key]]
    return found


def counts(run: Run) -> dict[str, int]:
    """Return how many tests ended how."""
    tally = Counter(outcome.kind for outcome in run.tests.values())
    return {kind: tally[kind] for kind in OUTCOMES}


def totals(pairs: Iterable[Pair]) -> dict[str, dict[str, int]]:
    """Return the counts of all families together, for each sync."""
    found = {"theirs": Counter[str](), "ours": Counter[str]()}
    for pair in pairs:
        found["theirs"].update(counts(pair.theirs))
        found["ours"].update(counts(pair.ours))
    return {sync: {kind: tally[kind] for kind in OUTCOMES} for sync, tally in found.items()}


def document(pairs: Sequence[Pair], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that was found, as what becomes JSON."""
    families = {
        pair.family: {
            "distributed_cases": pair.cases,
            "theirs": counts(pair.theirs),
            "ours": counts(pair.ours),
            "tests_synced_by_ours": sum(outcome.syncs > 0 for outcome in pair.ours.tests.values()),
            "syncs_by_ours": sum(outcome.syncs for outcome in pair.ours.tests.values()),
            "syncs_by_ours_in_their_run": sum(
                outcome.syncs for outcome in pair.theirs.tests.values()
            ),
            "uncollected": dict(pair.ours.uncollected),
            "tests": pair.names,
        }
        for pair in pairs
    }
    return {
        "facts": dict(facts),
        "totals": totals(pairs),
        "families": families,
        "differ": [_row(pair, name) for pair in pairs for name in pair.differ],
        "fail_with_both": [_row(pair, name) for pair in pairs for name in pair.alike],
    }


def _row(pair: Pair, name: str) -> dict[str, Any]:
    theirs, ours = pair.of(name)
    return {
        "family": pair.family,
        "test": name,
        "theirs": asdict(theirs),
        "ours": asdict(ours),
        "cause": "",
    }


def explain(found: Mapping[str, Any]) -> None:
    """Put in the causes that are known."""
    for row in (*found["differ"], *found["fail_with_both"]):
        worse = row["ours"] if row["ours"]["kind"] in ("failed", "error") else row["theirs"]
        row["cause"] = cause_of(f"{row['test']} {worse['said']}")


def markdown(found: Mapping[str, Any]) -> str:
    """Tell it for reading."""
    parts = [
        "# torchmetrics' own distributed tests",
        _INTRODUCTION,
        "\n".join(f"- {name}: {value}" for name, value in found["facts"].items()),
        _table(found),
        _SYNCED.format(
            tests=sum(family["tests_synced_by_ours"] for family in found["families"].values()),
            syncs=sum(family["syncs_by_ours"] for family in found["families"].values()),
            none=sum(family["syncs_by_ours_in_their_run"] for family in found["families"].values()),
        ),
        "## Tests that end otherwise",
        _listed(found["differ"], "ours"),
        "## Tests that fail with both",
        _listed(found["fail_with_both"], "ours"),
        "## Files whose tests could not be collected",
        _uncollected(found["families"]),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
The distributed cases (`ddp=True`) of torchmetrics' unit tests, each in a pool of two gloo
processes: as they are, and with metrics that sync through distmetrics. Both runs have the same
tests, and a new pool after every test that failed. A test that does not end in its time has
failed."""

_SYNCED = """\
With distmetrics' sync, {tests} tests made {syncs} syncs through distmetrics; with torchmetrics'
own, {none}."""


def _table(found: Mapping[str, Any]) -> str:
    ended = " | ".join(OUTCOMES)
    lines = [
        f"| family | distributed cases | run | theirs: {ended} | ours: {ended} |",
        "|---" * 11 + "|",
    ]
    families = found["families"]
    for name, family in families.items():
        lines.append(_cells(name, family["distributed_cases"], len(family["tests"]), family))
    cases = sum(family["distributed_cases"] for family in families.values())
    lines.append(
        _cells(
            "all", cases, sum(len(family["tests"]) for family in families.values()), found["totals"]
        )
    )
    return "\n".join(lines)


def _cells(name: str, cases: int, run: int, syncs: Mapping[str, Mapping[str, int]]) -> str:
    ended = [syncs[sync][kind] for sync in ("theirs", "ours") for kind in OUTCOMES]
    return f"| {' | '.join(map(str, [name, cases, run, *ended]))} |"


def _listed(rows: Sequence[Mapping[str, Any]], sync: str) -> str:
    """List tests, those together that end alike for one cause."""
    alike: defaultdict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        said = "" if row["cause"] else row["test"]
        alike[row["family"], row["theirs"]["kind"], row["ours"]["kind"], row["cause"], said].append(
            row
        )
    lines = []
    for (family, theirs, ours, cause, _), group in alike.items():
        names = ", ".join(
            f"`{row['test'].removeprefix('tests.unittests.')}`" for row in group[:_SHOWN]
        )
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        said = group[0][sync]["said"] or group[0]["theirs"]["said"]
        why = f" Cause: {cause}." if cause else ""
        lines.append(
            f"- {family}, theirs {theirs}, ours {ours}: {names}{more}. Says: `{said}`.{why}"
        )
    return "\n".join(lines) or "None."


_SHOWN = 6  # tests of one cause that are named; the JSON has all


def _uncollected(families: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        f"- `{name}`: {said}"
        for family in families.values()
        for name, said in family["uncollected"].items()
    ]
    return "\n".join(lines) or "None."


def write(pairs: Sequence[Pair], facts: Mapping[str, Any], folder: Path) -> None:
    """Write ``upstream_tests.json`` and ``upstream_tests.md``."""
    tell(document(pairs, facts), folder)


def tell(found: Mapping[str, Any], folder: Path) -> None:
    """Write what was found, with its causes."""
    folder.mkdir(parents=True, exist_ok=True)
    explain(found)
    (folder / "upstream_tests.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    )
    (folder / "upstream_tests.md").write_text(markdown(found))

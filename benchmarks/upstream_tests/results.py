"""The results of two runs of the same tests: read from pytest's XML, compared, and told."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.common import table

OUTCOMES = ("passed", "failed", "error", "skipped")
_WORST = ("error", "failed", "skipped", "passed")
_ELEMENTS = {"failure": "failed", "error": "error", "skipped": "skipped"}
# Why a test ends otherwise: matched against its name and what it said; read, and looked into.
CAUSES: dict[str, str] = {
    r"test_ddp\[_test_ddp_(sum|cat)\]": "the test calls the private `_sync_dist` of a metric that "
    "was never updated, whose state was never given to `add_state`; to distmetrics that is a "
    "metric without data, which stays as it is. Updated once, it is merged",
    r"test_ddp\[_test_ddp_sum_cat\]": "the test replaces the private `_reductions` by two names "
    "that were never given to `add_state`, of which `_defaults` has none; distmetrics reads the "
    "two side by side, and raises a ValueError before data moves",
    r"test_sync_on_compute\[_test_sync_on_compute_list_state-True\]"
    r"|test_sync_with_(empty|unequal_size)_lists": "`compute` returns the list state itself; in "
    "one process that is a list, and so it is on every rank with distmetrics, where torchmetrics' "
    "sync makes one tensor of it, which the test asserts",
}


@dataclass(frozen=True)
class Outcome:
    """How one test ended: one of ``OUTCOMES``, what it failed with, syncs through distmetrics."""

    kind: str
    said: str = ""
    syncs: int = 0


@dataclass(frozen=True)
class Run:
    """One run of a family: test → outcome, and file → why its tests could not be collected."""

    tests: Mapping[str, Outcome]
    uncollected: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> list[int]:
        """How many tests ended how."""
        tally = Counter(outcome.kind for outcome in self.tests.values())
        return [tally[kind] for kind in OUTCOMES]

    @property
    def syncs(self) -> int:
        """How many syncs through distmetrics there were."""
        return sum(outcome.syncs for outcome in self.tests.values())


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
        return [name for name in self.names if len({one.kind for one in self.of(name)}) > 1]

    @property
    def cells(self) -> list[int]:
        """The figures of a line of the table."""
        return [self.cases, len(self.names), *self.theirs.counts, *self.ours.counts]


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
        before = tests.get(f"{place}::{name}")
        if before is None or _WORST.index(found.kind) < _WORST.index(before.kind):
            tests[f"{place}::{name}"] = found
    return Run(tests, uncollected)


def _outcome(case: ET.Element) -> Outcome:
    made = [each.get("value", "0") for each in case.iter("property") if each.get("name") == "syncs"]
    syncs = int(made[0]) if made else 0
    for tag, kind in _ELEMENTS.items():
        element = case.find(tag)
        if element is not None:
            said = element.get("message", "")
            if said == "collection failure":
                lines = (element.text or "").splitlines()
                said = [said, *(line[1:] for line in lines if line.startswith("E "))][-1]
            said = re.sub(r"\s+", " ", said).strip()
            return Outcome(kind, said if len(said) <= 240 else f"{said[:239]}…", syncs)
    return Outcome("passed", "", syncs)


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


def cause_of(said: str) -> str:
    """Return the cause of a failure, empty where none is known."""
    return next((cause for pattern, cause in CAUSES.items() if re.search(pattern, said)), "")


def markdown(pairs: Sequence[Pair], facts: Mapping[str, str]) -> str:
    """Tell it for reading."""
    first, *others = OUTCOMES
    ended = [f"theirs: {first}", *others, f"ours: {first}", *others]
    sums = map(sum, zip(*(pair.cells for pair in pairs), strict=True))
    lines = [[pair.family, *pair.cells] for pair in pairs] + [["all", *sums]]
    tests = sum(each.syncs > 0 for pair in pairs for each in pair.ours.tests.values())
    ours, theirs = (sum(getattr(pair, of).syncs for pair in pairs) for of in ("ours", "theirs"))
    synced = f"With distmetrics' sync, {tests} tests made {ours} syncs through distmetrics; with "
    lost = [f"- `{name}`: {said}" for pair in pairs for name, said in pair.ours.uncollected.items()]
    parts = [
        "# torchmetrics' own distributed tests",
        _INTRODUCTION,
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        table(["family", "distributed cases", "run", *ended], lines),
        f"{synced}torchmetrics' own, {theirs}.",
        "## Tests that end otherwise",
        _listed((pair, name) for pair in pairs for name in pair.differ),
        "## Files whose tests could not be collected",
        "\n".join(lost) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
The distributed cases (`ddp=True`) of torchmetrics' unit tests, each in a pool of two gloo
processes: as they are, and with metrics that sync through distmetrics. Both runs have the same
tests, and a new pool after every test that failed. A test that does not end in its time has
failed."""


def _listed(tests: Iterable[tuple[Pair, str]]) -> str:
    """List tests, those together that end alike for one cause."""
    alike: dict[tuple[str, ...], list[str]] = {}
    words: dict[tuple[str, ...], str] = {}
    for pair, name in tests:
        theirs, ours = pair.of(name)
        worse = ours if ours.kind in ("failed", "error") else theirs
        cause = cause_of(f"{name} {worse.said}")
        key = (pair.family, theirs.kind, ours.kind, cause, "" if cause else name)
        alike.setdefault(key, []).append(f"`{name.removeprefix('tests.unittests.')}`")
        words.setdefault(key, ours.said or theirs.said)
    lines = []
    for kinds, names in alike.items():
        family, theirs_kind, ours_kind, cause, _ = kinds
        said = f"{', '.join(names)}. Says: `{words[kinds]}`."
        why = f" Cause: {cause}." if cause else ""
        lines.append(f"- {family}, theirs {theirs_kind}, ours {ours_kind}: {said}{why}")
    return "\n".join(lines) or "None."

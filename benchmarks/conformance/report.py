"""From how the ranks ended to a verdict, and the verdicts as a page."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.common import table
from benchmarks.conformance.ranks import Ended
from distmetrics.testing.equality import CLOSE, EXACT

VERDICTS = ("ok", "wrong", "error", "hang", "abort")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Row:
    """One verdict: a case in one layout, synced by one library."""

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

    @property
    def said(self) -> str:
        """The detail without what differs from case to case."""
        if self.verdict == "wrong":
            return "another value"
        return re.sub(r"^rank \d+: |; \d other.*$", "", self.detail)


def judge(single: Ended, ranks: Sequence[Ended]) -> tuple[str, str]:
    """Return the verdict and what there is to say about it.

    An abort outweighs an error, since the error of the other ranks follows from it, and an error a
    hang. Where the single process raises too, the right outcome is the same error on every rank.
    """
    kinds = [one.kind for one in ranks]
    for kind in ("abort", "error", "hang"):
        if kind not in kinds:
            continue
        if kind == "error" and {(kind, single.text)} == {(one.kind, one.text) for one in ranks}:
            return "ok", f"same error: {single.text}"
        rank = kinds.index(kind)
        waits = kinds.count("hang") if kind == "error" else 0
        rest = f"; {waits} other{'s wait' if waits > 1 else ' waits'} for it" if waits else ""
        return kind, f"rank {rank}: {ranks[rank].text}{rest}"
    if single.kind == "error":
        return "wrong", f"a value where the single process raises {single.text}"
    for rank, one in enumerate(ranks):
        if found := CLOSE.difference(single.value, one.value):
            return "wrong", f"rank {rank}: {found}"
    for rank, one in enumerate(ranks):
        if found := EXACT.difference(ranks[0].value, one.value):
            return "wrong", f"rank {rank} is not as rank 0: {found}"
    return "ok", ""


# Why classes fail, as far as torchmetrics' code tells.
_ATTRIBUTE = (
    "compute() reads `{}`, which update() sets and which is no state: a rank without data does "
    "not have it"
)
_BY_ORDER = r"KernelInceptionDistance|InceptionScore"
_CAUSES = {
    r"(Memorization.*)?FrechetInceptionDistance|FeatureShare": _ATTRIBUTE.format("orig_dtype"),
    r"RootMeanSquaredErrorUsingSlidingWindow": _ATTRIBUTE.format("rmse_map"),
    r"BERTScore": _ATTRIBUTE.format("ref_group_boundaries")
    + "; and it is that of the last batch, so that the single process applies it to batches that "
    "are not its own",
    r"NormalizedRootMeanSquaredError": "the metric joins the ranks' moments in a loop that "
    "overwrites the totals it still needs: wrong or out of bounds from the third rank on",
    _BY_ORDER: "the random subsets depend on the order of the images; those of another "
    "order than the ranks' are as good, but not the single process's",
    r"(MultiScale)?StructuralSimilarityIndexMeasure|VisualInformationFidelity": "a value a sample, "
    "in another order than the ranks'",
    r"ExtendedEditDistance": "compute() counts the items of a list state that is declared to be "
    "concatenated: a list of one joined tensor counts as one sentence, and a joined tensor cannot "
    "be stacked",
}
# What no sync can mend.
_IMPOSSIBLE = {
    r"Running(Mean|Sum)?": "it is the value of the last updates, and each rank has last updates "
    "of its own: which of all the updates came last is known to no rank",
    r"PerceptualPathLength": "it measures the last generator that it was given and has no state: "
    "a rank without one has nothing to measure",
}


def cause_of(kind: str, verdict: str) -> str:
    """Return why a class gives a wrong value or an error, or "" where nothing is known of it."""
    if verdict in ("wrong", "error") and not (verdict == "error" and re.fullmatch(_BY_ORDER, kind)):
        for pattern, text in (_CAUSES | _IMPOSSIBLE).items():
            if re.fullmatch(pattern, kind):
                return text
    return ""


def is_possible(kind: str) -> bool:
    """Whether a sync could give the single process's value of this class at all."""
    return not any(re.fullmatch(pattern, kind) for pattern in _IMPOSSIBLE)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Return how often each verdict was given."""
    tally = Counter(row.verdict for row in rows)
    return {verdict: tally[verdict] for verdict in VERDICTS}


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return rows by a key, in their order."""
    found: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def disagreements(rows: Iterable[Row]) -> list[str]:
    """Say where distmetrics' verdict on gloo is another than on threads."""
    ours = (row for row in rows if row.package == "distmetrics")
    lines = []
    for where, both in grouped(ours, lambda row: (row.name, row.world_size, row.layout)).items():
        if len({row.verdict for row in both}) > 1:
            said = (f"{row.transport} {row.verdict} {row.detail}".rstrip() for row in both)
            lines.append("{}, W = {}, {}: ".format(*where) + "; ".join(said))
    return lines


def write(
    rows: Sequence[Row], absent: Mapping[str, str], facts: Mapping[str, str], folder: Path
) -> None:
    """Write ``conformance.md``: ``absent``: class → why it was not run; ``facts``: of the run."""
    parts = [
        "# Conformance",
        _INTRODUCTION,
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        "## Totals",
        _totals(rows),
        "## Where distmetrics is not right",
        _exceptions(row for row in rows if row.package == "distmetrics"),
        "## Where torchmetrics' own sync is not right",
        _PEER,
        _exceptions(row for row in rows if row.package == "torchmetrics"),
        "## Threads and processes",
        _transports(rows),
        "## Not run",
        "\n".join(f"- `{name}`: {reason}" for name, reason in sorted(absent.items())) or "None.",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conformance.md").write_text("\n\n".join(parts) + "\n")


def _totals(rows: Iterable[Row]) -> str:
    by = grouped(rows, lambda row: (row.package, row.transport))
    lines = []
    for key, found in sorted(by.items(), reverse=True):
        kinds, names = ({row.kind for row in found}, {row.name for row in found})
        cells = [len(kinds), len(names), len(found), *counts(found).values()]
        lines.append([", ".join(key), *cells])
    return table(["", "classes", "constructions", "cases", *VERDICTS], lines)


def _exceptions(rows: Iterable[Row]) -> str:
    """List what is not ok, together what fails alike: a verdict in the same layouts for a cause."""
    failed = grouped((r for r in rows if r.verdict != "ok"), lambda row: (row.name, row.verdict))
    alike: defaultdict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for (_, verdict), found in sorted(failed.items()):
        layouts = Counter(row.layout for row in found)
        where = ", ".join(f"{layout} × {n}" for layout, n in layouts.items())
        alike[verdict, where, found[0].said, cause_of(found[0].kind, verdict)].append(found[0])
    lines = []
    for (verdict, where, _, cause), firsts in sorted(alike.items()):
        first, names = firsts[0], ", ".join(f"`{row.name}`" for row in firsts)
        example = f"W = {first.world_size}, {first.layout}: {first.detail.rstrip('. ')}"
        why = f" Cause: {cause}." if cause else ""
        lines.append(f"- **{verdict}** ({where}): {names}. {example}.{why}")
    return "\n".join(lines) or "Nowhere."


def _transports(rows: Sequence[Row]) -> str:
    apart = disagreements(rows)
    asked = [row for row in rows if row.package == "distmetrics" and row.transport == "gloo"]
    head = f"{len(asked)} cases of {len({row.kind for row in asked})} classes were also synced by "
    head += "distmetrics between processes; "
    if not apart:
        return head + "every verdict is that of the threads."
    return head + "the verdicts that differ:\n\n" + "\n".join(f"- {line}" for line in apart)


_PEER = """\
Most failures have one of two causes. A rank without data gathers a filler tensor of torchmetrics'
choice, whose dtype or number of dimensions is not that of the data: gloo aborts the process. And
states that are lists without a reduction are gathered item by item, so that ranks with different
numbers of updates call different numbers of collectives."""

_INTRODUCTION = """\
Is the synced value the one that a single process would have computed? For each class, world size
W and layout of batches over ranks, one metric object is updated with the batches of rank 0, then
those of rank 1, and so on; that is the expected value. A case is *ok* if every rank returns it:
integers equal, floats within 1e-5 relative or 1e-6 absolute, NaN equal to NaN, the same types,
shapes and keys, and bitwise the same on all ranks. Where the single process raises (most often:
no data at all), the same error on every rank is ok.

distmetrics runs on threads for every layout, and on gloo processes for a sample; torchmetrics'
own sync runs on gloo processes for some layouts. *hang*: some ranks wait for others that have
ended, or nobody moves until the time limit. *abort*: a process is killed by a signal."""

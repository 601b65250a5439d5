"""False claims about meshes: what a layout makes of them, for states of every kind.

    python -m benchmarks.layout_claims                     # writes results/layout_claims.*
    python -m benchmarks.layout_claims --examples 200      # fewer random ones, printed only

A job's ranks hold what the true roles of the axes say; the layout is made with the claimed ones.
The table claims each role wrongly for each axis of three meshes. The random part draws meshes, true
roles, claims and states. Ranks are threads, whose world decides deadlock.

Verdicts: "right", the value is the single process's; "named", every rank raises an error that names
an axis about which the claim is false; "not looked at", an owner is claimed where others have
values, of which the documentation says that no proof can see it; "by chance", so few bits are the
same on several ranks that it may be chance. All else is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric, MinMetric, SumMetric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import PearsonCorrCoef

import distmetrics as dm
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import outcomes
from distmetrics.testing.check import drawn

RESULTS = Path(__file__).parent / "results"
ROLES = ("shard", "same", "first", "last")
MESHES = (
    {"dp": 2, "tp": 2},
    {"dp": 2, "cp": 2, "tp": 2},
    {"pp": 2, "dp": 3, "tp": 2},
)
BAD = ("wrong", "hang")


class Own(Metric):
    """A metric with one state, which is reduced in some way."""

    full_state_update = False
    state: Tensor

    def __init__(self, default: Tensor, reduce: Any) -> None:
        super().__init__()
        self.add_state("state", default, dist_reduce_fx=reduce)

    def update(self, x: Tensor) -> None:
        """Add a number, or several."""
        change = torch.full_like(self.state, 0) + x.to(self.state.dtype)
        if self.state.dtype == torch.bool:
            self.state = self.state | change
        else:
            self.state = self.state + change

    def compute(self) -> Tensor:
        """Return the state."""
        return self.state


def _stacked(x: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(0)


class Kind(NamedTuple):
    """A kind of state.

    Attributes:
        make: makes the metric.
        feed: updates it by numbers between 0 and 1.
        few: whether all that a rank holds is so few bits that it may be another's by chance.
    """

    make: Callable[[], Metric]
    feed: Callable[[Any, Tensor], None]
    few: bool = True


def _scored(metric: Any, x: Tensor) -> None:
    metric.update(x, (x * 1000).long() % 2)


def _paired(metric: Any, x: Tensor) -> None:
    metric.update(x, x.flip(0) + x**2)


def _counted(metric: Any, x: Tensor) -> None:
    metric.update((x[: len(metric.state)] * 100).long())


def _plain(metric: Any, x: Tensor) -> None:
    metric.update(x)


def _nothing(metric: Any, x: Tensor) -> None:
    """Leave it as it is."""


KINDS = {
    "sum": Kind(SumMetric, _plain),
    "mean": Kind(MeanMetric, _plain),
    "min": Kind(MinMetric, _plain),
    "max": Kind(MaxMetric, _plain),
    "cat": Kind(CatMetric, _plain, few=False),
    "list": Kind(BinaryAUROC, _scored, few=False),
    "stacked": Kind(PearsonCorrCoef, _paired, few=False),
    "custom": Kind(lambda: Own(torch.zeros(2), _stacked), lambda metric, x: metric.update(x[:2])),
    "int": Kind(
        lambda: Own(torch.tensor(0), "sum"), lambda metric, x: metric.update((x[0] * 5).long())
    ),
    "counts": Kind(lambda: Own(torch.zeros(40, dtype=torch.int64), "sum"), _counted, few=False),
    "bool": Kind(
        lambda: Own(torch.tensor(False), "max"), lambda metric, x: metric.update(x[0] > 0.5)
    ),
    "empty": Kind(SumMetric, _nothing),
}


class Case(NamedTuple):
    """A mesh, what is true of it, what is claimed, and what its ranks hold."""

    sizes: Mapping[str, int]
    true: Mapping[str, str]
    claimed: Mapping[str, str]
    kind: str
    seed: int

    @property
    def false(self) -> list[str]:
        """Return the axes about which the claim is false; of one rank all claims are true."""
        return [
            axis
            for axis, size in self.sizes.items()
            if size > 1 and self.true[axis] != self.claimed[axis]
        ]


def fed(case: Case, shards: list[int]) -> Metric:
    """Return a metric that has seen some shards."""
    kind = KINDS[case.kind]
    metric = kind.make()
    for shard in shards:
        draw = random.Random(f"{case.seed}-{shard}")
        numbers = torch.tensor([draw.random() for _ in range(40)])
        kind.feed(metric, numbers)
    return metric


def on_rank(comm: Any, case: Case) -> Any:
    """Sync under the claim what a rank holds in truth."""
    true = Mesh.of(case.sizes, case.true)
    shard = true.along(comm.rank, true.axes("shard")).index(comm.rank)
    metric = fed(case, [shard] if true.owns(comm.rank) else [])
    ranks = dm.layout(case.sizes, comm=comm, **case.claimed)
    return dm.sync_and_compute(metric, comm=ranks)


def judge(case: Case) -> tuple[str, str]:
    """Return the verdict on a case, and what there is to say."""
    mesh = Mesh.of(case.sizes, case.true)
    shards = [*range(len(mesh.along(0, mesh.axes("shard"))))]
    expected = fed(case, shards).compute()
    ended = outcomes(len(mesh.ranks), on_rank, case)
    errors = [each.error for each in ended if each.error is not None]
    if any(isinstance(error, dm.DivergedError | dm.PeerLostError) for error in errors):
        return "hang", str(errors)
    if errors and len(errors) < len(ended):
        return "wrong", f"only some ranks raise: {errors}"
    if errors:
        texts = {str(error).partition("\n")[0] for error in errors}
        are_layouts = all(isinstance(error, dm.LayoutError) for error in errors)
        if are_layouts and len(texts) == 1:
            (text,) = texts
            return ("named" if any(f" {axis}" in text for axis in case.false) else "wrong"), text
        return _excuse(case, None), " | ".join(texts)
    if all(_equal(each.value, expected) for each in ended):
        return "right", ""
    values = [each.value for each in ended]
    if not all(_equal(value, values[0]) for value in values):
        return "wrong", f"ranks have different values: {values}"
    return _excuse(case, values[0]), f"{values[0]} for {expected}"


def _excuse(case: Case, value: Any) -> str:
    """Return why another value than the right one, or an error, is what the claim says.

    "wrong" where it is not what the ranks have that count by the claim, or must have been seen.
    """
    claimed_value = _as_claimed(case)
    if (value is None) != (claimed_value is None):
        return "wrong"
    if value is not None and not _equal(value, claimed_value):
        return "wrong"
    if any(case.claimed[axis] in ("first", "last") for axis in case.false):
        return "not looked at"
    claims = {(case.true[axis], case.claimed[axis]) for axis in case.false}
    if KINDS[case.kind].few and ("same", "shard") in claims:
        return "by chance"
    if case.kind in ("int", "bool") and ("shard", "same") in claims:
        return "by chance"
    return "wrong"


def _as_claimed(case: Case) -> Any:
    """Return the value of one process that has what counts by the claim, or None if it fails."""
    true, claimed = Mesh.of(case.sizes, case.true), Mesh.of(case.sizes, case.claimed)
    firsts = claimed.axes("same")
    shards = []
    for rank in claimed.ranks:
        place = claimed.place(rank)
        counts = claimed.owns(rank) and not any(place[axis] for axis in firsts)
        if counts and true.owns(rank):
            shards.append(true.along(rank, true.axes("shard")).index(rank))
    try:
        return fed(case, shards).compute()
    except ValueError:  # of no samples
        return None


def _equal(one: Any, other: Any) -> bool:
    first, second = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    if first.shape != second.shape:
        return False
    if first.ndim:  # rows of other orders of the ranks are the same rows
        first, second = first.sort().values, second.sort().values
    return bool(torch.isclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True).all())


def table() -> Iterator[Case]:
    """Yield each role wrongly claimed for each axis of three meshes."""
    for sizes in MESHES:
        usual = {axis: "same" if axis == "tp" else "shard" for axis in sizes}
        usual |= {"pp": "last"} if "pp" in sizes else {}
        for axis, kind in itertools.product(sizes, KINDS):
            for true, claimed in itertools.permutations(ROLES, 2):
                roles = usual | {axis: true}
                yield Case(sizes, roles, roles | {axis: claimed}, kind, seed=1)


@st.composite
def any_case(draw: Any) -> Case:
    """Draw a mesh of up to four axes and 16 ranks, and claims, of which some are true."""
    sizes: dict[str, int] = {}
    room = 16
    for name in ("alpha", "beta", "gamma", "delta")[: draw(st.integers(1, 4))]:
        sizes[name] = draw(st.sampled_from([size for size in (2, 3, 4, 1) if size <= room]))
        room //= sizes[name]
    true = {axis: draw(st.sampled_from(ROLES)) for axis in sizes}
    claimed = dict(true)
    for axis in draw(st.lists(st.sampled_from([*sizes]), max_size=3, unique=True)):
        claimed[axis] = draw(st.sampled_from(ROLES))
    kind = draw(st.sampled_from([*KINDS]))
    return Case(sizes, true, claimed, kind, draw(st.integers(0, 10**9)))


def tally(cases: list[Case]) -> tuple[Counter[str], list[dict[str, Any]], dict[str, Counter[str]]]:
    """Judge cases; return how many there are of each verdict, the bad ones, and all by claim."""
    counted: Counter[str] = Counter()
    bad = []
    by_claim: dict[str, Counter[str]] = {}
    for case in cases:
        word, detail = judge(case)
        if word == "right" and case.false:
            word = "harmless"
        counted[word] += 1
        claim = ", ".join(f"{case.true[axis]} as {case.claimed[axis]}" for axis in case.false)
        by_claim.setdefault(claim or "true", Counter())[word] += 1
        if word in BAD:
            bad.append({**case._asdict(), "verdict": word, "detail": detail})
            print(f"{word}: {case}: {detail[:200]}", flush=True)
    return counted, bad, by_claim


def rows(by_claim: Mapping[str, Counter[str]]) -> list[str]:
    """Return a table of verdicts by claim."""
    words = ["named", "harmless", "by chance", "not looked at", *BAD]
    lines = ["| in truth, as claimed | " + " | ".join(words) + " |", "|---|" + "---|" * len(words)]
    for claim, counts in sorted(by_claim.items()):
        lines.append(f"| {claim} | " + " | ".join(str(counts[word]) for word in words) + " |")
    return lines


def main() -> None:
    """Run, print, write JSON and a table."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--examples", type=int, default=10_000)
    ask.add_argument("--seed", type=int, default=0)
    args = ask.parse_args()
    warnings.simplefilter("ignore")
    start = time.monotonic()
    counted, bad, by_claim = tally([*table()])
    print(f"table, {sum(counted.values())} false claims: {dict(counted)}")
    lines = rows(by_claim)
    print("\n".join(lines))
    random_counts, random_bad, _ = tally(drawn(any_case(), args.examples, args.seed))
    print(f"random, {sum(random_counts.values())} claims: {dict(random_counts)}")
    if args.examples >= 10_000:
        result = {
            "torch": torch.__version__,
            "seed": args.seed,
            "seconds": round(time.monotonic() - start),
            "table": counted,
            "random": random_counts,
            "bad": bad + random_bad,
        }
        (RESULTS / "layout_claims.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "layout_claims.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""False claims about meshes: what a layout makes of them, for states of every kind.

    python -m benchmarks.layout_claims          # writes results/layout_claims.md

A job's ranks hold what the true roles of the axes say; the layout is made with the claimed ones.
The table claims each role wrongly for each axis of three meshes. The random part draws meshes, true
roles, claims and states. Ranks are threads, whose world decides deadlock.

Verdicts: "right", the value is the single process's; "named", every rank raises an error that names
an axis about which the claim is false; "not looked at", an owner is claimed where others have
values, of which the documentation says that no proof can see it; "by chance", so few bits are the
same on several ranks that it may be chance. All else is wrong.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric, MinMetric, SumMetric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import PearsonCorrCoef

import distmetrics as dm
from benchmarks.common import RESULTS, arguments, table
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import outcomes

ROLES = ("shard", "same", "first", "last")
MESHES = ({"dp": 2, "tp": 2}, {"dp": 2, "cp": 2, "tp": 2}, {"pp": 2, "dp": 3, "tp": 2})
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
        is_bool = self.state.dtype == torch.bool
        self.state = self.state | change if is_bool else self.state + change

    def compute(self) -> Tensor:
        """Return the state."""
        return self.state


def _stacked(x: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(0)


class Kind(NamedTuple):
    """A kind of state: ``fed`` makes the arguments of an update of numbers between 0 and 1.

    ``few``: all that a rank holds is so few bits that it may be another's by chance.
    """

    make: Callable[[], Metric]
    fed: Callable[[Tensor], tuple[Tensor, ...]] = lambda x: (x,)
    few: bool = True


KINDS = {
    "sum": Kind(SumMetric),
    "mean": Kind(MeanMetric),
    "min": Kind(MinMetric),
    "max": Kind(MaxMetric),
    "cat": Kind(CatMetric, few=False),
    "list": Kind(BinaryAUROC, lambda x: (x, (x * 1000).long() % 2), few=False),
    "stacked": Kind(PearsonCorrCoef, lambda x: (x, x.flip(0) + x**2), few=False),
    "custom": Kind(lambda: Own(torch.zeros(2), _stacked), lambda x: (x[:2],)),
    "int": Kind(lambda: Own(torch.tensor(0), "sum"), lambda x: ((x[0] * 5).long(),)),
    "counts": Kind(
        lambda: Own(torch.zeros(40, dtype=torch.int64), "sum"),
        lambda x: ((x * 100).long(),),
        few=False,
    ),
    "bool": Kind(lambda: Own(torch.tensor(False), "max"), lambda x: (x[0] > 0.5,)),
    "empty": Kind(SumMetric, lambda x: ()),  # is not updated
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
        axes = (axis for axis, size in self.sizes.items() if size > 1)
        return [axis for axis in axes if self.true[axis] != self.claimed[axis]]


def fed(case: Case, shards: list[int]) -> Metric:
    """Return a metric that has seen some shards."""
    kind = KINDS[case.kind]
    metric = kind.make()
    for shard in shards:
        draw = random.Random(f"{case.seed}-{shard}")
        arguments = kind.fed(torch.tensor([draw.random() for _ in range(40)]))
        if arguments:
            metric.update(*arguments)
    return metric


def shard_of(mesh: Mesh, rank: int) -> int:
    """Return which shard of the data a rank holds."""
    return mesh.along(rank, mesh.axes("shard")).index(rank)


def on_rank(comm: Any, case: Case) -> Any:
    """Sync under the claim what a rank holds in truth."""
    true = Mesh.of(case.sizes, case.true)
    metric = fed(case, [shard_of(true, comm.rank)] if true.owns(comm.rank) else [])
    ranks = dm.layout(case.sizes, comm=comm, **case.claimed)
    return dm.sync_and_compute(metric, comm=ranks)


def judge(case: Case) -> tuple[str, str]:
    """Return the verdict on a case, and what there is to say."""
    mesh = Mesh.of(case.sizes, case.true)
    expected = fed(case, [*range(len(mesh.along(0, mesh.axes("shard"))))]).compute()
    ended = outcomes(len(mesh.ranks), on_rank, case)
    errors = [each.error for each in ended if each.error is not None]
    if any(isinstance(error, dm.DivergedError | dm.PeerLostError) for error in errors):
        return "hang", str(errors)
    if errors and len(errors) < len(ended):
        return "wrong", f"only some ranks raise: {errors}"
    if errors:
        texts = {str(error).partition("\n")[0] for error in errors}
        said = " | ".join(texts)
        if len(texts) > 1 or not all(isinstance(error, dm.LayoutError) for error in errors):
            return _excuse(case, None), said
        return ("named" if any(f" {axis}" in said for axis in case.false) else "wrong"), said
    values = [each.value for each in ended]
    if all(_equal(value, expected) for value in values):
        return "right", ""
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
    shards = []
    for rank in claimed.ranks:
        place = claimed.place(rank)
        is_first = not any(place[axis] for axis in claimed.axes("same"))
        if claimed.owns(rank) and is_first and true.owns(rank):
            shards.append(shard_of(true, rank))
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


def all_false() -> Iterator[Case]:
    """Yield each role wrongly claimed for each axis of three meshes."""
    for sizes in MESHES:
        usual = {axis: "same" if axis == "tp" else "shard" for axis in sizes}
        usual |= {"pp": "last"} if "pp" in sizes else {}
        for axis, kind in itertools.product(sizes, KINDS):
            for true, claimed in itertools.permutations(ROLES, 2):
                roles = usual | {axis: true}
                yield Case(sizes, roles, roles | {axis: claimed}, kind, seed=1)


def any_case(draw: random.Random) -> Case:
    """Draw a mesh of up to four axes and 16 ranks, and claims, of which some are true."""
    sizes: dict[str, int] = {}
    room = 16
    for name in ("alpha", "beta", "gamma", "delta")[: draw.randint(1, 4)]:
        sizes[name] = draw.choice([size for size in (1, 2, 3, 4) if size <= room])
        room //= sizes[name]
    true = {axis: draw.choice(ROLES) for axis in sizes}
    changed = draw.sample([*sizes], draw.randint(0, min(3, len(sizes))))
    claimed = true | {axis: draw.choice(ROLES) for axis in changed}
    return Case(sizes, true, claimed, draw.choice([*KINDS]), draw.randint(0, 10**9))


def drawn(count: int, seed: int) -> Iterator[Case]:
    """Yield random cases."""
    draw = random.Random(seed)
    return (any_case(draw) for _ in range(count))


def tally(cases: Iterable[Case]) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Judge cases; print the bad ones, return how many there are of each verdict, and by claim."""
    counted: Counter[str] = Counter()
    by_claim: dict[str, Counter[str]] = {}
    for case in cases:
        word, detail = judge(case)
        if word == "right" and case.false:
            word = "harmless"
        counted[word] += 1
        claim = ", ".join(f"{case.true[axis]} as {case.claimed[axis]}" for axis in case.false)
        by_claim.setdefault(claim or "true", Counter())[word] += 1
        if word in BAD:
            print(f"{word}: {case}: {detail[:200]}", flush=True)
    return counted, by_claim


def main() -> None:
    """Run, print, write a table."""
    args = arguments(__doc__, examples=(10_000, 50))
    warnings.simplefilter("ignore")
    counted, by_claim = tally(all_false())
    words = ["named", "harmless", "by chance", "not looked at", *BAD]
    rows = [[claim, *(seen[word] for word in words)] for claim, seen in sorted(by_claim.items())]
    said = table(["in truth, as claimed", *words], rows)
    print(f"{counted.total()} false claims: {dict(counted)}\n{said}")
    counted, _ = tally(drawn(args.examples, seed=0))
    tallied = ", ".join(f"{count} {word}" for word, count in counted.most_common())
    said += f"\n\n{counted.total()} random meshes and claims, seed 0: {tallied}."
    print(said.splitlines()[-1])
    if args.is_whole:
        (RESULTS / "layout_claims.md").write_text(said + "\n")


if __name__ == "__main__":
    main()

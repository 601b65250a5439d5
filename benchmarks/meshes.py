"""Metrics of torchmetrics over meshes, against one process that saw every sample once.

    python -m benchmarks.meshes                      # all classes, writes results/meshes.json
    python -m benchmarks.meshes --only 'AUROC|F1'    # a part, printed only

The metrics and their data are those of ``benchmarks.conformance``. Each rank updates with the
batches of its shard; ranks that are said to hold the same have the same ones, and ranks without
values pass None. Needs the extra ``bench-conformance``.
"""

from __future__ import annotations

import itertools
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.common import parser, versions, write_json
from benchmarks.conformance.case import batches
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.ranks import Ended
from benchmarks.conformance.report import is_possible, judge
from distmetrics import layout, sync_and_compute
from distmetrics.testing import outcomes

DEALT = "ragged"


class Claim(NamedTuple):
    """A mesh and its roles."""

    sizes: dict[str, int]
    roles: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> Claim:
        """Read ``dp 2 shard, tp 2 same``."""
        parts = [part.split() for part in text.split(", ")]
        roles = {axis: int(role) if role.isdigit() else role for axis, _, role in parts}
        return cls({axis: int(size) for axis, size, _ in parts}, roles)

    @property
    def ranks(self) -> int:
        """Return how many there are."""
        return math.prod(self.sizes.values())

    @property
    def shards(self) -> int:
        """Return among how many ranks the data is shared."""
        return math.prod(n for axis, n in self.sizes.items() if self.roles[axis] == "shard")


MESHES = (
    "dp 2 shard, tp 2 same",
    "pp 2 last, dp 2 shard",
    "dp 2 shard, tp 2 same, pp 2 last",
    "dp 2 shard, cp 2 shard, tp 2 same",
    "dp 4 shard",
    "tp 4 same",
    "pp 4 last",
    "tp 2 same, dp 2 shard",
    "dp 2 first, tp 3 same",
    "dp 3 shard, pp 3 1",
    "dp_replicate 2 shard, dp_shard 2 shard, tp 2 same",
    "pp 2 first, dp 3 shard, tp 2 same",
    "dp 4 shard, tp 4 same",
    "pp 2 last, dp 2 shard, cp 2 shard, tp 2 same",
    "pp 4 last, dp 4 shard, tp 2 same",
    "pp 4 last, dp 4 shard, cp 2 shard, tp 2 same",
)


def attempt(fn: Any, *args: Any) -> Ended:
    """Return what a function gives, or the first line of its error."""
    try:
        return Ended("value", fn(*args))
    except Exception as error:  # noqa: BLE001  (a metric may raise anything; judged)
        return Ended("error", text=str(error).partition("\n")[0])


def synced(comm: Any, name: str, claim: Claim) -> Any:
    """Return a metric's value on one rank of a mesh."""
    ranks = layout(claim.sizes, comm=comm, **claim.roles)
    has_values = ranks.mesh.owns(comm.rank)
    metric = filled(name, [ranks.rank], claim.shards) if has_values else None
    return sync_and_compute(metric, comm=ranks)


def filled(name: str, chosen: Sequence[int], shards: int) -> Any:
    """Return a metric that has seen some shards."""
    metric = find(name).make()
    for shard in chosen:
        for batch in batches(find(name), DEALT, shards, shard):
            metric.update(*batch.args, **batch.kwargs)
    return metric


def alone(name: str, shards: int) -> Any:
    """Return the value of one process."""
    return filled(name, range(shards), shards).compute()


def verdict(name: str, claim: Claim) -> tuple[str, str]:
    """Return how a metric fares on a mesh: a word, and what there is to say."""
    warnings.simplefilter("ignore")  # most metrics warn of small samples
    ranks = []
    for each in outcomes(claim.ranks, synced, name, claim):
        how = "value" if each.error is None else "error"
        ranks.append(Ended(how, each.value, str(each.error).partition("\n")[0]))
    single = attempt(alone, name, claim.shards)
    if single.kind == "error":  # told by the ranks with values to the others
        raised = all(one.kind == "error" and single.text in one.text for one in ranks)
        return ("ok", "the same error") if raised else ("wrong", "no error")
    return judge(single, ranks)


def can_be_made(name: str) -> bool:
    """True if the packages that a metric needs are installed."""
    try:
        find(name).make()
    except (RuntimeError, ModuleNotFoundError) as error:
        print(f"not run: {name}: {error}".partition("\n")[0])
        return False
    return True


def main() -> None:
    """Run, print, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("--only", default="")
    args = ask.parse_args()
    warnings.simplefilter("ignore")
    names = [name for name, case in cases().items() if is_possible(case.kind)]
    names = [name for name in names if re.search(args.only, name) and can_be_made(name)]
    start, counted, bad = time.monotonic(), Counter[str](), []
    for name, text in itertools.product(names, MESHES):
        word, detail = verdict(name, Claim.of(text))
        counted[word] += 1
        if word != "ok":
            bad.append({"metric": name, "mesh": text, "verdict": word, "detail": detail})
            print(f"{word:6} {name}, {text}: {detail[:150]}", flush=True)
    print(f"{len(names)} metrics, {len(MESHES)} meshes: {dict(counted)}")
    if not args.only:
        known = {**versions("torchmetrics"), "seconds": round(time.monotonic() - start)}
        result = {**known, "metrics": len(names), "meshes": MESHES, "counts": counted, "bad": bad}
        write_json("meshes.json", result)


if __name__ == "__main__":
    main()

"""Metrics of torchmetrics over meshes, against one process that saw every sample once.

    python -m benchmarks.meshes                      # all classes, writes results/meshes.json
    python -m benchmarks.meshes --only 'AUROC|F1'    # a part, printed only
    python -m benchmarks.meshes --backend gloo --sample 40   # 4 and 8 processes, writes
                                                             # results/meshes_gloo.json

The metrics and their data are those of ``benchmarks.conformance``. Each rank updates with the
batches of its shard; ranks that are said to hold the same have the same ones, and ranks without
values pass None. Needs the extra ``bench-conformance``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import re
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchmetrics

from benchmarks.conformance.__main__ import spread
from benchmarks.conformance.case import batches
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.causes import is_possible
from benchmarks.conformance.ranks import Ended
from benchmarks.conformance.verdict import judge
from distmetrics import layout, sync_and_compute
from distmetrics.testing.worlds import RunWorld, worlds

RESULTS = Path(__file__).parent / "results"
DEALT = "ragged"


class Claim(NamedTuple):
    """A mesh and its roles."""

    sizes: dict[str, int]
    roles: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> Claim:
        """Read ``dp 2 shard, tp 2 same``."""
        sizes: dict[str, int] = {}
        roles: dict[str, Any] = {}
        for part in text.split(", "):
            axis, size, role = part.split()
            sizes[axis] = int(size)
            roles[axis] = int(role) if role.isdigit() else role
        return cls(sizes, roles)

    @property
    def ranks(self) -> int:
        """Return how many there are."""
        return math.prod(self.sizes.values())


SMALL = (
    "dp 2 shard, tp 2 same",
    "pp 2 last, dp 2 shard",
    "dp 2 shard, tp 2 same, pp 2 last",
    "dp 2 shard, cp 2 shard, tp 2 same",
)
MESHES = (
    *SMALL,
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


def on_rank(comm: Any, name: str, claim: Claim, shards: int) -> Any:
    """Return a metric's value on one rank of a mesh."""
    warnings.simplefilter("ignore")  # most metrics warn of small samples
    ranks = layout(claim.sizes, comm=comm, **claim.roles)
    if not ranks.mesh.owns(comm.rank):
        return sync_and_compute(None, comm=ranks)
    return sync_and_compute(filled(name, [ranks.rank], shards), comm=ranks)


def filled(name: str, chosen: Sequence[int], shards: int) -> Any:
    """Return a metric that has seen some shards."""
    metric = find(name).make()
    for shard in chosen:
        for batch in batches(find(name), DEALT, shards, shard):
            metric.update(*batch.args, **batch.kwargs)
    return metric


def can_be_made(name: str) -> bool:
    """True if the packages that a metric needs are installed."""
    try:
        find(name).make()
    except (RuntimeError, ModuleNotFoundError) as error:
        print(f"not run: {name}: {error}".partition("\n")[0])
        return False
    return True


def verdict(name: str, text: str, run_world: RunWorld) -> tuple[str, str]:
    """Return how a metric fares on a mesh: a word, and what there is to say."""
    claim = Claim.of(text)
    shards = math.prod(n for axis, n in claim.sizes.items() if claim.roles[axis] == "shard")
    try:
        single = Ended("value", filled(name, range(shards), shards).compute())
    except Exception as error:  # noqa: BLE001  (a metric may raise anything)
        single = Ended("error", text=str(error).partition("\n")[0])
    ended = []
    job = partial(on_rank, name=name, claim=claim, shards=shards)
    for each in run_world(claim.ranks, job):
        text = str(each.error).partition("\n")[0]
        ended.append(
            Ended("value", each.value) if each.error is None else Ended("error", text=text)
        )
    if single.kind == "error":  # told by the ranks with values to the others
        raised = all(one.kind == "error" and single.text in one.text for one in ended)
        return ("ok", "the same error") if raised else ("wrong", "no error")
    return judge(single, ended)


def main() -> None:
    """Run, print, write JSON."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--only", default="")
    ask.add_argument("--backend", choices=["threads", "gloo"], default="threads")
    ask.add_argument("--sample", type=int, help="how many classes, evenly over all")
    args = ask.parse_args()
    warnings.simplefilter("ignore")
    chosen = [case for case in cases().values() if is_possible(case.kind)]
    names = [each.name for each in chosen if re.search(args.only, each.name)]
    names = [name for name in names if can_be_made(name)]
    if args.sample:
        names = [name for name in names if name in spread(names, args.sample)]
    meshes = SMALL if args.backend == "gloo" else MESHES
    start = time.monotonic()
    rows = []
    # The first job of 8 processes, which import everything, takes long.
    with worlds(args.backend, limit=300) as run_world:
        for name, text in itertools.product(names, meshes):
            word, detail = verdict(name, text, run_world)
            rows.append({"metric": name, "mesh": text, "verdict": word, "detail": detail})
            if word != "ok":
                print(f"{word:6} {name}, {text}: {detail[:150]}", flush=True)
    counted = Counter(row["verdict"] for row in rows)
    print(f"{len(names)} metrics, {len(meshes)} meshes: {dict(counted)}")
    of_all = not args.only and args.backend == "threads" and not args.sample
    of_gloo = args.backend == "gloo" and args.sample and not args.only
    if of_all or of_gloo:
        facts = {
            "torch": torch.__version__,
            "torchmetrics": torchmetrics.__version__,
            "python": platform.python_version(),
            "seconds": round(time.monotonic() - start),
        }
        bad = [row for row in rows if row["verdict"] != "ok"]
        result = {**facts, "metrics": len(names), "meshes": meshes, "counts": counted, "bad": bad}
        path = RESULTS / ("meshes_gloo.json" if of_gloo else "meshes.json")
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

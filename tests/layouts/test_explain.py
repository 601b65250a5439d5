"""What is said of a sync over a layout beforehand is what it then does."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torchmetrics.classification import MulticlassConfusionMatrix

import distmetrics as dm
from distmetrics.metrics.plan import Cost
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator


class Recording(RecordingCommunicator):
    """Writes down the calls of its subgroups too, and of how many ranks they are."""

    def __init__(self, inner: Any, calls: Any = None) -> None:
        super().__init__(inner)
        self.sizes: list[tuple[str, int, int]] = [] if calls is None else calls

    def subgroup(self, ranks: Any) -> Recording:
        return Recording(self.inner.subgroup(ranks), self.sizes)  # type: ignore[attr-defined]

    def pass_on(self, op: str, make: Any, sent: Any, alone: Any) -> Any:
        self.sizes.append((op, sum(x.nbytes for x in sent), self.world_size))
        return make(*sent)


def metric(seed: int, classes: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    made = MulticlassConfusionMatrix(classes)
    made.update(*torch.randint(classes, (2, 50), generator=generator))
    return made


def transcript(comm: Any, sizes: Any, roles: Any, classes: int) -> Any:
    recording = Recording(comm)
    over = dm.layout(sizes, comm=recording, **roles)
    recording.sizes.clear()  # of making it
    mine = metric(over.rank, classes)
    said = dm.explain(mine, layout=over)
    # The result is one number: it fits into the frame in which it is handed over.
    total = dm.from_function(lambda state: state["n"].sum(), reduce={"n": "sum"})
    total.update(n=mine.confmat)
    dm.sync_and_compute(total, comm=over)
    received = 0
    for op, nbytes, size in recording.sizes:
        received += (size - 1) * nbytes if op == "all_gather" else -(-2 * (size - 1) * nbytes // size)
    return over.mesh.owns(comm.rank), Cost(len(recording.sizes), received), said.cost, said.handed


ROLES = ["shard", "same", "first", "last"]


@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 3}, {"pp": 2, "dp": 1}], ids=str)
def test_rounds_and_bytes_are_what_is_then_seen(sizes: dict[str, int]) -> None:
    """Of states that ride along, and of some that take a round of their own."""
    for classes, chosen in itertools.product((3, 100), itertools.product(ROLES, repeat=len(sizes))):
        roles = dict(zip(sizes, chosen, strict=True))
        for owns, seen, total, handed in run(math.prod(sizes.values()), transcript, sizes, roles, classes):
            assert seen == (total if owns else handed), roles


TEXT = """\
sync of 1 metric over 16384 ranks, 64 shards, bytes as received by each rank
  dp 64  other samples: reduced over
  tp 8   the same samples: counted once, not 8 times, and proved to be the same
  pp 32  only coordinate 31 has values: what the others pass is not looked at
a rank with values, of 512: 4 collectives, 16.5 MiB
  2 collectives, 16.0 MiB, among 64 shards
  1 collective, 64 bytes, for the proof, among 512 ranks
  1 collective, 496.0 KiB, to hand results over to 31 ranks;
    a second where results take more than 12.0 KiB
a rank without, of 15872: 1 collective, 496.0 KiB
among the shards alone, state by state, as torchmetrics does it: """


def test_on_paper() -> None:
    explained = dm.explain(metric(0, 1000), layout={"dp": 64, "tp": 8, "pp": 32})
    assert str(explained).startswith(TEXT)
    assert explained.cost.rounds == 4


def test_the_layout_in_force_is_explained() -> None:
    def work(comm: Any) -> None:
        with dm.use(dm.layout.of({"dp": 2, "tp": 2}, comm=comm)):
            assert "tp 2  the same samples" in str(dm.explain(metric(0, 3)))

    run(4, work)

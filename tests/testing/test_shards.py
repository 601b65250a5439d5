"""How batches are dealt: nothing is lost, and every shape that must be tried is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distmetrics.testing.law_runner import shrunk
from hypothesis import find, given
from hypothesis import strategies as st

from distmetrics.testing.batches import Batch, as_batch, count
from distmetrics.testing.shards import deal, low_precision, padded, partitions, shapes

BATCHES = [as_batch((torch.arange(n) + 10 * n,)) for n in (3, 1, 2, 4)]


def samples(shards: Any) -> list[int]:
    return sorted(x for shard in shards for batch in shard for x in batch.args[0].tolist())


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_every_batch_is_dealt_once(ranks: list[int]) -> None:
    """To the rank that was said, in order."""
    shards = deal(BATCHES, ranks, 4)
    for rank, shard in enumerate(shards):
        assert [id(b) for b in shard] == [id(b) for b, r in zip(BATCHES, ranks, strict=True) if r == rank]


@pytest.mark.parametrize("n", range(1, 9))
def test_the_shapes_that_are_always_tried(n: int) -> None:
    """Each holds all batches; ranks without data are among them, first and last; no shape comes twice."""
    batches = [Batch((i,)) for i in range(n)]
    found = shapes(batches, (2, 3))
    assert all(sorted(b.args[0] for shard in shards for b in shard) == list(range(n)) for shards in found.values())
    assert any(not shards[0] for shards in found.values())
    assert any(not shards[-1] for shards in found.values())
    assert {2, 3} <= {len(shards) for shards in found.values()}
    keys = {tuple(tuple(b.args[0] for b in shard) for shard in shards) for shards in found.values()}
    assert len(keys) == len(found)
    doubling = next(shards for label, shards in found.items() if label == "doubling") if n > 3 else None
    if doubling is not None:
        assert [len(shard) for shard in doubling][:2] == [1, 2]


@given(partitions(BATCHES, (1, 2, 3)))
def test_drawn_partitions_lose_no_sample(shards: Any) -> None:
    """Whatever is cut and left empty."""
    assert samples(shards) == samples([BATCHES])
    assert 1 <= len(shards) <= 3


def test_drawn_partitions_have_all_that_is_promised() -> None:
    """Empty ranks, empty batches, batches in two parts."""
    strategy = partitions(BATCHES, (2, 3))
    assert find(strategy, lambda shards: any(not shard for shard in shards))
    assert find(strategy, lambda shards: any(count(b) == 0 for shard in shards for b in shard))
    assert find(strategy, lambda shards: sum(map(len, shards)) > len(BATCHES))


def test_a_failing_partition_shrinks() -> None:
    """To the fewest ranks that it takes."""
    smallest = find(partitions(BATCHES, (1, 2, 3)), lambda shards: sum(bool(shard) for shard in shards) >= 2)
    assert len(smallest) == 2


def test_padding_repeats_the_first_samples() -> None:
    """As torch's own sampler does."""
    from torch.utils.data import DistributedSampler

    batches = [
        {"x": torch.tensor([5, 6, 7]), "indices": torch.tensor([0, 1, 2])},
        {"x": torch.tensor([8, 9]), "indices": torch.tensor([3, 4])},
    ]
    for world in (1, 2, 3, 4):
        shards = padded(batches, world)
        for rank, (batch,) in enumerate(shards):
            expected = list(DistributedSampler(range(5), world, rank, shuffle=False))  # type: ignore[arg-type]
            assert batch.kwargs["indices"].tolist() == expected


def test_padding_needs_indices() -> None:
    """Else nothing could tell a repeated sample."""
    with pytest.raises(ValueError, match="an argument indices="):
        padded([{"x": torch.zeros(3)}], 2)


def test_low_precision_leaves_integers() -> None:
    """And turns every floating tensor."""
    (batch,) = low_precision([(torch.ones(2), torch.ones(2, dtype=torch.int64))])
    assert [x.dtype for x in batch.args] == [torch.bfloat16, torch.int64]


def test_a_case_shrinks_to_the_sample_that_matters() -> None:
    """One rank, one batch, one sample of ten."""
    found = shrunk((tuple(BATCHES), tuple(BATCHES), ()), lambda shards: 42 in samples(shards))
    assert [[batch.args[0].tolist() for batch in shard] for shard in found] == [[[42]]]


def test_shrinking_gives_up_in_time() -> None:
    """After so many tries, with the smallest so far."""
    tries = []
    shrunk((tuple(BATCHES),), lambda shards: bool(tries.append(1)), tries=3)
    assert len(tries) == 3

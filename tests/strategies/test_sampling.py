"""Every sample once in evaluation, equal steps in training, and nothing else of a loader changed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from distmetrics.data.sharding import set_epoch
from distmetrics.errors import InputError
from distmetrics.strategies import EvaluationSampler, TrainingSampler
from distmetrics.strategies.sampling import shard
from tests.run.models import Streamed

worlds = st.integers(1, 9)


def parts(kind, source, world_size, **options):
    samplers = [kind(source, world_size, rank, **options) for rank in range(world_size)]
    dealt = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(part) for part in dealt]
    return dealt


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


@given(st.integers(0, 60), worlds, st.integers(1, 5))
def test_how_samples_are_dealt_out(count, world_size, batch_size):
    dealt = parts(EvaluationSampler, range(count), world_size)
    assert joined(dealt) == list(range(count))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    dealt = parts(TrainingSampler, range(count), world_size)
    assert len(set(map(len, dealt))) == 1
    assert set(joined(dealt)) == set(range(count))
    assert 0 <= sum(map(len, dealt)) - count < world_size
    for start in range(0, len(dealt[0]), batch_size):  # the ranks' n-th batches are one large one
        whole = range(start * world_size, (start + batch_size) * world_size)
        together = joined(rank[start : start + batch_size] for rank in dealt)
        assert whole.stop > count or sorted(together) == list(whole)
    whole = joined(parts(TrainingSampler, range(count), world_size, drop_last=True))
    assert len(set(whole)) == len(whole) == count // world_size * world_size


@given(st.integers(1, 60), worlds, st.sampled_from([EvaluationSampler, TrainingSampler]))
def test_a_shuffled_order_is_one_for_all_ranks_and_of_its_epoch(count, world_size, kind):
    before = torch.get_rng_state()
    samplers = [kind(RandomSampler(range(count)), world_size, rank) for rank in range(world_size)]

    def dealt(epoch):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        return [list(sampler) for sampler in samplers]

    assert set(joined(dealt(1))) == set(range(count))
    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2) or count < 30
    assert torch.equal(torch.get_rng_state(), before)


class Huge:
    def __len__(self):
        return 10**12


def test_what_is_no_rank_is_refused_and_no_order_is_listed():
    with pytest.raises(InputError, match="no rank 2 in a world of 2"):
        EvaluationSampler(range(3), 2, 2)
    sampler = EvaluationSampler(SequentialSampler(Huge()), 10**6, 5)
    assert (len(sampler), next(iter(sampler))) == (10**6, 5 * 10**6)


class Tagged(DataLoader):
    tag = None


def test_a_loader_keeps_everything_but_its_sampler():
    options = {"batch_size": 3, "num_workers": 2, "prefetch_factor": 3, "timeout": 5}
    options |= {"generator": torch.Generator(), "collate_fn": list}
    loader = Tagged(range(8), shuffle=True, **options)
    loader.tag = "mine"
    part = shard(loader, world_size=2, rank=1, train=True)
    assert (type(part), part.tag, len(part)) == (Tagged, "mine", 2)
    assert {name: getattr(part, name) for name in options} == options
    set_epoch(part, 4)
    assert part.sampler.epoch == 4
    assert type(loader.sampler) is RandomSampler
    set_epoch([1, 2], 4)  # nothing to tell
    dealt = DataLoader(range(6), sampler=TrainingSampler(range(6), 2, 0))
    assert shard(dealt, 2, 0, train=True) is dealt


WEIGHTED = WeightedRandomSampler([0.0, 1.0, 0.0], 7)
LAST = {"batch_size": 4, "drop_last": True}
DEALT = DistributedSampler(range(5), 2, 0, shuffle=False)


@pytest.mark.parametrize(
    ("options", "count", "evaluated", "trained"),
    [
        # drop_last in evaluation leaves out what one process would
        (LAST, 11, [[[0, 1, 2, 3]], [[4, 5, 6, 7]]], [[[0, 2, 4, 6]], [[1, 3, 5, 7]]]),
        ({"batch_sampler": [[0, 3], [1], [2, 4]]}, 5, [[[0, 3]], [[1], [2, 4]]], [[[0, 3], [2, 4]], [[1], [0, 3]]]),
        ({"batch_size": None}, 3, [[0], [1, 2]], [[0, 2], [1, 0]]),
        ({"batch_sampler": BatchSampler(WEIGHTED, 2, True)}, 3, [[[1, 1], [1]]] * 2, [[[1, 1]]] * 2),
        # what a DistributedSampler deals out is looked through in evaluation
        ({"sampler": DEALT}, 5, [[[0], [1]], [[2], [3], [4]]], [[[0], [2], [4]]] * 2),
    ],
)
def test_what_each_rank_is_served(options, count, evaluated, trained):
    collate = {} if options == {"batch_size": None} else {"collate_fn": list}
    loader = DataLoader(list(range(count)), **options, **collate)
    for train, wanted in ((False, evaluated), (True, trained)):
        assert [list(shard(loader, world_size=2, rank=rank, train=train)) for rank in range(2)] == wanted


def test_what_has_no_order_is_dealt_out_by_batches_in_evaluation_alone():
    loader = Streamed([0, 1, 2, 3])
    served = [list(shard(loader, 3, rank, train=False)) for rank in range(3)]
    assert served == [[0, 3], [1], [2]]
    with pytest.warns(UserWarning, match="Streamed"):
        assert shard(loader, world_size=2, rank=0, train=True) is loader

"""Every sample once in evaluation, equal steps in training, and nothing else about a loader changed."""

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
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from distmetrics.data.sharding import set_epoch
from distmetrics.errors import InputError
from distmetrics.strategies import EvaluationSampler, TrainingSampler
from distmetrics.strategies.sampling import shard

counts = st.integers(0, 60)
worlds = st.integers(1, 9)


def parts(kind, source, world_size, **options):
    return [list(kind(source, world_size, rank, **options)) for rank in range(world_size)]


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


@given(counts, worlds)
def test_evaluation_deals_out_every_sample_once_in_order(count, world_size):
    dealt = parts(EvaluationSampler, range(count), world_size)
    assert joined(dealt) == list(range(count))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert [len(EvaluationSampler(range(count), world_size, rank)) for rank in range(world_size)] == list(
        map(len, dealt)
    )


@given(counts, worlds)
def test_training_deals_out_equal_parts_that_cover_everything(count, world_size):
    dealt = parts(TrainingSampler, range(count), world_size)
    assert len(set(map(len, dealt))) == 1
    assert set(joined(dealt)) == set(range(count))
    assert 0 <= sum(map(len, dealt)) - count < world_size
    assert len(TrainingSampler(range(count), world_size, 0)) == len(dealt[0])


@given(counts, worlds)
def test_training_with_drop_last_repeats_nothing(count, world_size):
    dealt = joined(parts(TrainingSampler, range(count), world_size, drop_last=True))
    assert len(set(dealt)) == len(dealt) == count // world_size * world_size


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4))
def test_the_ranks_nth_batches_are_one_large_batch(count, batch_size, world_size):
    dealt = parts(TrainingSampler, range(count), world_size)
    steps = -(-len(dealt[0]) // batch_size)
    for step in range(count // (batch_size * world_size)):
        together = joined(rank[step * batch_size : (step + 1) * batch_size] for rank in dealt)
        assert sorted(together) == list(range(step * batch_size * world_size, (step + 1) * batch_size * world_size))
    assert steps * batch_size * world_size >= count


@given(st.integers(1, 40), worlds, st.integers(0, 5), st.sampled_from([EvaluationSampler, TrainingSampler]))
def test_shuffling_is_the_same_on_every_rank_and_leaves_the_generator_alone(count, world_size, epoch, kind):
    before = torch.get_rng_state()
    dealt = []
    for rank in range(world_size):
        torch.rand(rank)  # the ranks' generators are in different places
        sampler = kind(RandomSampler(range(count)), world_size, rank, seed=3)
        sampler.set_epoch(epoch)
        dealt += list(sampler)
    assert set(dealt) == set(range(count))
    torch.set_rng_state(before)
    list(kind(RandomSampler(range(count)), 1, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_shuffle_differently_and_repeatably():
    sampler = TrainingSampler(RandomSampler(range(50)), 2, 0)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first != second


def test_training_keeps_the_order_and_drop_last_of_a_batch_sampler_that_is_passed():
    batches = BatchSampler(WeightedRandomSampler([0.0, 1.0, 0.0], 7), 2, True)
    parts = [shard(DataLoader(range(3), batch_sampler=batches), world_size=2, rank=r, train=True) for r in range(2)]
    assert [[batch.tolist() for batch in part] for part in parts] == [[[1, 1]]] * 2


def test_an_order_that_weights_draw_is_dealt_out():
    source = WeightedRandomSampler([0.0, 1.0, 0.0], 10)
    assert parts(EvaluationSampler, source, 3) == [[1] * 3, [1] * 3, [1] * 4]


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(InputError, match="no rank 2 in a world of 2"):
        EvaluationSampler(range(3), 2, 2)


def collate(items):
    return list(items)


class Tagged(DataLoader):
    def __init__(self, tag, dataset):
        super().__init__(dataset, batch_size=3, collate_fn=collate)
        self.tag = tag


def served(loader, world_size, *, train=False, **options):
    return [list(shard(loader, world_size=world_size, rank=rank, train=train, **options)) for rank in range(world_size)]


def test_a_loader_keeps_everything_but_its_sampler():
    loader = Tagged("mine", list("abcdefgh"))
    part = shard(loader, world_size=2, rank=1, train=False)
    assert (type(part), part.tag, part.batch_size, part.collate_fn) == (Tagged, "mine", 3, collate)
    assert list(part) == [["e", "f", "g"], ["h"]]
    assert list(loader) == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    assert len(part) == 2


def test_workers_generator_and_the_rest_are_kept():
    generator = torch.Generator()
    loader = DataLoader(range(8), num_workers=2, prefetch_factor=3, generator=generator, timeout=5, shuffle=True)
    part = shard(loader, world_size=2, rank=0, train=True)
    assert (part.num_workers, part.prefetch_factor, part.timeout) == (2, 3, 5)
    assert part.generator is generator


def test_drop_last_is_kept_in_training():
    loader = DataLoader(list(range(11)), batch_size=2, drop_last=True, collate_fn=collate)
    assert served(loader, 2, train=True) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_drop_last_in_evaluation_leaves_out_what_one_process_would():
    loader = DataLoader(list(range(11)), batch_size=4, drop_last=True, collate_fn=collate)
    assert served(loader, 2) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


def test_a_custom_batch_sampler_is_dealt_out_by_batches():
    batches = [[0, 3], [1], [2, 4, 5]]
    loader = DataLoader(list(range(6)), batch_sampler=batches, collate_fn=collate)
    assert served(loader, 2) == [[[0, 3]], [[1], [2, 4, 5]]]
    assert served(loader, 2, train=True) == [[[0, 3], [2, 4, 5]], [[1], [0, 3]]]


def test_a_loader_without_batching_is_dealt_out_by_samples():
    loader = DataLoader(list("abc"), batch_size=None)
    assert served(loader, 2) == [["a"], ["b", "c"]]


def test_epochs_reach_samplers_of_both_kinds():
    for loader in (
        DataLoader(range(6), shuffle=True),
        DataLoader(range(6), batch_sampler=BatchSampler(RandomSampler(range(6)), 2, False)),
        DataLoader(range(6), batch_sampler=[[0]]),
    ):
        part = shard(loader, world_size=2, rank=0, train=True)
        set_epoch(part, 4)
        dealt = part.sampler if isinstance(part.sampler, TrainingSampler) else part.batch_sampler
        assert dealt.epoch == 4
    set_epoch([1, 2], 4)  # nothing to tell


def test_samplers_that_deal_out_already_are_left_alone():
    dealt = DataLoader(range(6), sampler=TrainingSampler(range(6), 2, 0))
    assert shard(dealt, world_size=2, rank=0, train=True) is dealt
    theirs = DataLoader(range(6), sampler=DistributedSampler(range(6), 2, 0))
    assert shard(theirs, world_size=2, rank=0, train=True) is theirs


def test_a_distributed_sampler_is_looked_through_in_evaluation():
    theirs = DataLoader(range(5), sampler=DistributedSampler(range(5), 2, 0, shuffle=False), collate_fn=collate)
    assert served(theirs, 2) == [[[0], [1]], [[2], [3], [4]]]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(("loader", "what"), [(DataLoader(Stream()), "IterableDataset"), ([1, 2], "list")])
def test_what_can_not_be_dealt_out_is_passed_on_with_a_warning(loader, what):
    with pytest.warns(UserWarning, match=what):
        assert shard(loader, world_size=2, rank=0, train=True) is loader


def test_data_without_an_order_is_dealt_out_by_batches_in_evaluation():
    assert served(DataLoader(Stream(), batch_size=None), 3) == [[0, 3], [1], [2]]
    assert served([1, 2], 3) == [[1], [2], []]


def test_a_data_set_with_a_sequential_sampler_is_not_listed():
    class Huge:
        def __len__(self):
            return 10**12

    sampler = EvaluationSampler(SequentialSampler(Huge()), 10**6, 5)
    assert len(sampler) == 10**6
    assert next(iter(sampler)) == 5 * 10**6

"""How many samples loaders repeat, against what the real loaders give when they are read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Subset

import distmetrics
from distmetrics.data import check, exact
from distmetrics.data.exact import part_of
from distmetrics.data.unwrap import unwrap
from distmetrics.testing import run

WORLDS = (1, 2, 3, 4)
COUNTS = (1, 2, 3, 5, 8, 11, 12, 16, 17)
SIZES = (1, 2, 4, 6)


class Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


def counted(loaders: list[Any]) -> tuple[int, int]:
    """Return how many samples the ranks' loaders give, and how many of them twice."""
    samples = [int(sample) for loader in loaders for batch in loader for sample in torch.as_tensor(batch).reshape(-1)]
    return len(samples), len(samples) - len(set(samples))


def test_the_sampler_of_torch() -> None:
    flags = itertools.product((False, True), repeat=2)
    for world, count, size, (drop_last, sampler_drops) in itertools.product(WORLDS, COUNTS, (None, *SIZES), flags):
        if sampler_drops and count < world:
            continue  # the sampler itself fails
        loaders = []
        for rank in range(world):
            sampler = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=sampler_drops)
            options = {} if size is None else {"drop_last": drop_last}
            loaders.append(DataLoader(range(count), batch_size=size, sampler=sampler, **options))
        assert check(loaders[0])[:2] == counted(loaders), (world, count, size)


def test_samplers_of_lightning() -> None:
    """Those around any sampler repeat, and those for predictions don't."""
    made = pytest.importorskip("lightning.fabric.utilities.distributed")
    no_repeats = pytest.importorskip("lightning.pytorch.overrides.distributed")
    for world, count in itertools.product(WORLDS, COUNTS[WORLDS[-1] - 1 :]):
        for kind in (made.DistributedSamplerWrapper, no_repeats.UnrepeatedDistributedSamplerWrapper):
            order = torch.utils.data.SequentialSampler(range(count))
            samplers = [kind(order, num_replicas=world, rank=rank, shuffle=False) for rank in range(world)]
            loaders = [DataLoader(range(count), batch_size=2, sampler=each) for each in samplers]
            assert check(loaders[0])[:2] == counted(loaders)
            assert not check(loaders[0]).is_drawn


def test_shards_of_accelerate() -> None:
    """By whole batches and by parts of them, with and without a last batch, even and not."""
    made = pytest.importorskip("accelerate.data_loader")
    flags = itertools.product((False, True), repeat=3)
    cases = itertools.product(WORLDS[1:], COUNTS, SIZES, flags)
    for world, count, size, (split, even, drop_last) in cases:
        if split and size % world:
            continue
        loaders = []
        for rank in range(world):
            batches = BatchSampler(torch.utils.data.SequentialSampler(range(count)), size, drop_last)
            shard = made.BatchSamplerShard(batches, world, rank, split, even)
            loaders.append(DataLoader(range(count), batch_sampler=shard))
        found, real = check(loaders[0]), counted(loaders)
        assert found.repeated == real[1], (world, count, size, split, even, drop_last)
        if found.world_size or real[1]:
            assert (found[:2], found.world_size) == (real, world)
            assert {found.batches} == {len([*each]) for each in loaders}

    first = [DistributedSampler(range(8), 2, rank, shuffle=False) for rank in range(2)]
    loaders = [
        DataLoader(range(8), batch_sampler=made.BatchSamplerShard(BatchSampler(first[rank], 3, False), 2, rank))
        for rank in range(2)
    ]  # is filled up with the first samples of the rank's own part: nothing is known of these
    assert (counted(loaders)[1], check(loaders[0]).dealt) == (0, 0)
    whole, state = DataLoader(range(5), batch_size=8), SimpleNamespace(num_processes=2)
    dispatched = SimpleNamespace(base_dataloader=whole, slice_fn=len, state=state, submesh_tp=object())
    assert check(dispatched).dealt == 0  # ranks may hold the same
    dispatched.submesh_tp = None
    assert check(dispatched)[:2] == (6, 1)


def prepared(comm: distmetrics.Communicator) -> list[tuple[str, tuple[int, int], Any]]:
    """Read loaders as Accelerate and Fabric prepare them; return what each gives and what is said of it."""
    os.environ.update(RANK=str(comm.rank), LOCAL_RANK=str(comm.rank), WORLD_SIZE=str(comm.world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # the group is there already
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    results = []
    modes: list[dict[str, Any]] = [{}, {"even_batches": False}, {"dispatch_batches": True}]
    modes.append({"dispatch_batches": True, "split_batches": True})
    modes.append({"split_batches": True})
    for mode, count, size in itertools.product(modes, (1, 2, 5, 12, 13), (2, 6)):
        if mode.get("split_batches") and size % comm.world_size:
            continue
        config = DataLoaderConfiguration(**mode)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        for data, drop_last in itertools.product((torch.arange(count), Stream(count)), (False, True)):
            if drop_last and (count < size * comm.world_size or isinstance(data, Stream)):
                continue
            whole: DataLoader[Any] = DataLoader(data, batch_size=size, drop_last=drop_last)  # type: ignore[arg-type]
            loader = accelerator.prepare_data_loader(whole)
            batches = [*loader]
            mine = torch.cat([torch.empty(0, dtype=torch.long), *batches])
            samples = distmetrics.all_gather_cat(mine, comm=comm).tolist()
            real = (len(samples), len(samples) - len(set(samples)))
            case = f"{mode} {count} {size} {type(data).__name__} {drop_last}"
            found = check(loader)
            assert found.batches == len(batches) or not found.repeated, (case, found, len(batches))
            results.append((case, real, tuple(found)))
    return results


@pytest.mark.gloo
@pytest.mark.timeout(240)
def test_loaders_that_accelerate_has_prepared() -> None:
    """In a world of two; worlds of other sizes are those of the shards above."""
    pytest.importorskip("accelerate")
    for results in run(2, prepared, backend="gloo"):
        for case, real, (dealt, repeated, ranks, is_drawn, _) in results:
            assert repeated == real[1], (case, real, dealt, repeated)
            assert dealt in (real[0], 0), (case, real, dealt)
            assert ranks in (2, 0)
            assert not is_drawn
        assert sum(real[1] > 0 for _, real, _ in results) > 20


class Own(DistributedSampler[int]):
    """Deals in its own way: nothing is said of it, since it may repeat nothing."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 5, self.num_replicas))


def test_what_repeats_nothing() -> None:
    """A loader of one process, ours, and one over a part of the data that the user has cut himself."""
    whole = DataLoader(range(5), batch_size=2)
    parts = [part_of(unwrap(whole), 2, 1, equal_batches=equal) for equal in (False, True)]
    cut, own = DataLoader(Subset(range(5), [0, 2])), DataLoader(range(5), sampler=Own(range(5), 2, 0))
    for loader in (whole, exact(whole), *parts, cut, own, object()):
        assert check(loader).repeated == 0
    assert check(own).dealt == 0

"""What ``SyncMetrics`` changes in a trainer of Lightning's for as long as it runs.

Two methods of single objects are replaced: the one that puts a sampler into a loader, and the one
that adds a number to those that are logged. Nothing is imported from Lightning.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.reduce import mean
from distmetrics.comm.base import Communicator, innermost
from distmetrics.comm.current import whole_of
from distmetrics.data.counted_rows import being_read
from distmetrics.data.dealing import ROUNDS
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import RankLoader
from distmetrics.errors import InputError


class Replaced:
    """Methods of single objects that others stand in for.

    Attributes:
        filler: the batch that goes through the module only fills up.
    """

    def __init__(self) -> None:
        self.filler = False
        self._names: list[tuple[Any, str]] = []

    @staticmethod
    def by_another(trainer: Any) -> bool:
        """True if a trainer's methods have been replaced already."""
        return "_prepare_dataloader" in vars(trainer._data_connector)

    def replace(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """Let ``method`` stand in for a method of one object."""
        setattr(owner, name, method)
        self._names.append((owner, name))

    def put_back(self) -> None:
        """Give every object its own method back."""
        while self._names:
            delattr(*self._names.pop())


def make_exact(trainer: Any, comm: Communicator) -> Replaced:
    """Replace what makes loaders repeat samples, and counts of samples round."""
    replaced = Replaced()
    if whole_of(comm).world_size == 1:
        return replaced
    _deal_exactly(trainer, comm, replaced)
    fit = trainer.fit_loop.epoch_loop
    _Weighed(fit._results, replaced, None)
    for loop in (fit.val_loop, trainer.validate_loop, trainer.test_loop):
        _Weighed(loop._results, replaced, comm)
    return replaced


def _deal_exactly(trainer: Any, comm: Communicator, replaced: Replaced) -> None:
    """Let the trainer take exact loaders for evaluation."""
    connector = trainer._data_connector
    prepare = connector._prepare_dataloader

    def prepare_exactly(dataloader: Any, shuffle: bool, mode: Any) -> Any:
        if not mode.evaluating:
            return prepare(dataloader, shuffle=shuffle, mode=mode)
        if _is_ours_to_deal(trainer, dataloader, comm):
            part = exact_by(dataloader, comm, ROUNDS, equal_batches=True)
            dealer = getattr(part, "dealer", None)
            needs_no_filler = dealer is not None and dealer.is_even()
            return part.loader if needs_no_filler else part
        loader = prepare(dataloader, shuffle=shuffle, mode=mode)
        _refuse_empty_ranks(trainer, loader, whole_of(comm))
        return loader

    replaced.replace(connector, "_prepare_dataloader", prepare_exactly)


def _is_ours_to_deal(trainer: Any, loader: Any, comm: Communicator) -> bool:
    """True if the trainer is to deal a loader out, and every rank is to get a part of its own."""
    connector = trainer._accelerator_connector
    if not connector.use_distributed_sampler or not connector.is_distributed:
        return False
    # Ranks that share a model's layers read the same data: who they are, only a layout says.
    shares = trainer.distributed_sampler_kwargs["num_replicas"]
    if shares not in (comm.world_size, whole_of(comm).world_size):
        return False
    if isinstance(loader, RankLoader):
        return True
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _length(loader: Any) -> int | None:
    """Return how many batches a loader has, or None if it can't know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _refuse_empty_ranks(trainer: Any, loader: Any, comm: Communicator) -> None:
    """Refuse a loader without batches on some ranks: they would skip what the others wait in."""
    holders = (trainer.lightning_module, trainer.datamodule)
    name = "allow_zero_length_dataloader_with_multiple_devices"
    if any(getattr(holder, name, False) for holder in holders):
        return
    lengths = gather_objects(_length(loader), _read_length, comm, "SyncMetrics")
    if 0 in lengths and set(lengths) != {0}:
        raise InputError(
            "SyncMetrics: a loader has no batches on some ranks, and Lightning would leave them "
            "out of the evaluation that the others wait in",
            per_rank={rank: f"{length} batches" for rank, length in enumerate(lengths)},
            do="let Trainer(use_distributed_sampler=True) deal the data out, or return "
            "distmetrics.data.exact(loader, equal_batches=True).",
            rank=comm.rank,
        )


def _read_length(length: Any) -> int | None:
    """Return what a peer has told of its length; raise ValueError or TypeError for no number."""
    return None if length is None else int(length)


def refuse_combined(loop: Any, comm: Communicator) -> None:
    """Refuse steps that can't be told which of their batches only fill up."""
    reads_itself = hasattr(loop._data_fetcher, "iterator_wrapper")
    if comm.world_size == 1 or (loop._is_sequential and not reads_itself):
        return
    loaders = loop._combined_loader.flattened
    fills = any(isinstance(loader, RankLoader) for loader in loaders)
    if any(gather_objects(fills, bool, comm, "SyncMetrics")):
        raise InputError(
            "SyncMetrics: some ranks need a batch that only fills up, and a step that "
            + ("takes dataloader_iter" if reads_itself else "takes batches of several loaders")
            + " can't be told which that is",
            do="choose a batch size with which every rank has as many batches; or deal the data "
            "out yourself, with Trainer(use_distributed_sampler=False).",
            rank=comm.rank,
        )


def fills_up(loop: Any, batch_idx: int, dataloader_idx: int) -> bool:
    """True if a batch of a loop's loader is there only so that all ranks have as many."""
    loader = loop._combined_loader.flattened[dataloader_idx]
    return isinstance(loader, RankLoader) and loader.filler == batch_idx


@contextmanager
def counted(module: nn.Module, *, filler: bool) -> Iterator[None]:
    """Let :func:`fresh` know of the batch; put back what metrics were if it only fills up."""
    metrics = [part for part in module.modules() if filler and hasattr(part, "_defaults")]
    before = [dict(vars(metric)) for metric in metrics]
    # at once: metrics of a collection may share their states
    states = copy.deepcopy([{name: old[name] for name in old["_defaults"]} for old in before])
    try:
        with being_read(0 if filler else None):
            yield
    finally:
        for metric, old, state in zip(metrics, before, states, strict=True):
            vars(metric).clear()
            vars(metric).update(old | state)


class _Weighed:
    """Adds numbers to those that a loop logs, with exact weights.

    Lightning halves the number of samples on two ranks as an integer: 597 samples are 298 a rank.

    Args:
        results: the numbers that the loop logs.
        replaced: knows whether a batch counts.
        comm: of those that log in each step of an evaluation, or a layout; None in training, where
            Lightning gives all ranks batches of the same size.
    """

    def __init__(self, results: Any, replaced: Replaced, comm: Communicator | None) -> None:
        self._results = results
        self._replaced = replaced
        self._comm = comm
        self._add = results.update_metrics
        replaced.replace(results, "update_metrics", self.update)

    def update(self, key: str, value: Any, batch_size: int) -> None:
        """Stand in for a method of Lightning's, which adds the value of one batch."""
        if self._results[key].is_tensor:
            _reduce_over(self._comm, self._results[key].meta.sync)
        result = self._results[key]
        if not result.is_tensor:
            self._add(key, value, batch_size)
            return
        if self._only_fills_up():
            nothing = result._defaults["value"].item()
            value = torch.full_like(value, nothing, dtype=result.value.dtype)
            batch_size = 0
        if not result.meta.is_mean_reduction:
            self._add(key, value, batch_size)
            return
        count = result.cumulated_batch_size
        wide = torch.float32 if count.device.type == "mps" else torch.float64
        result.cumulated_batch_size = count.to(wide)
        self._add_to_mean(key, value, batch_size)

    def _only_fills_up(self) -> bool:
        """True in the step of a batch that no number may see."""
        in_step = self._results.batch is not None
        return self._comm is not None and in_step and self._replaced.filler

    def _add_to_mean(self, key: str, value: Any, batch_size: int) -> None:
        """Add a value to a mean; in a step that all ranks log, the mean of all is that step's."""
        meta = self._results[key].meta
        sync = meta.sync
        by_all = sync.should and sync.group is None and not sync.rank_zero_only
        if self._comm is None or not meta.on_step or not by_all:
            self._add(key, value, batch_size)
            return
        sync.should = False
        try:
            self._add(key, value, batch_size)
        finally:
            sync.should = True
            _reduce_over(self._comm, sync)
        result = self._results[key]
        result._forward_cache = mean(result._forward_cache, weight=batch_size, comm=self._comm)
        if not meta.on_epoch:
            result.value = result._forward_cache


def _reduce_over(comm: Communicator | None, sync: Any) -> None:
    """Let Lightning reduce a logged number over a layout's shards.

    A sum over all ranks would count several times what several of them hold. Where it reduces is
    also a part of what it compares when the number is logged again, so only the function changes.
    """
    if comm is None or whole_of(comm) is comm or not sync.should:
        return
    if sync.group is not None or sync.rank_zero_only:
        return
    shards: Any = innermost(comm)

    def among_shards(value: Any, *_: Any, **__: Any) -> Any:
        if shards.world_size == 1:
            return value
        return sync.fn(value, group=shards._group, reduce_op=sync.op)

    sync._fn = among_shards

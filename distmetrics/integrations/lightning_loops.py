"""What ``SyncMetrics`` changes in a trainer of Lightning's for as long as it runs.

Three methods of single objects are replaced: the one that puts a sampler into a loader, the one
that adds a number to those that are logged (in ``lightning_numbers``), and the one that takes what
was logged when a loader of an evaluation has ended. Nothing is imported from Lightning.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import RankLoader, being_read
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
        return "_store_dataloader_outputs" in vars(trainer.validate_loop)

    def replace(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """Let ``method`` stand in for a method of one object."""
        setattr(owner, name, method)
        self._names.append((owner, name))

    def put_back(self) -> None:
        """Give every object its own method back."""
        while self._names:
            delattr(*self._names.pop())


def at_end_of_loaders(trainer: Any, replaced: Replaced, end: Callable[[], None]) -> None:
    """Call ``end`` when a loader of an evaluation has ended, before anything is computed."""
    for loop in evaluation_loops(trainer):
        store = loop._store_dataloader_outputs

        def store_after(store: Callable[[], None] = store) -> None:
            end()
            store()

        replaced.replace(loop, "_store_dataloader_outputs", store_after)


def evaluation_loops(trainer: Any) -> tuple[Any, ...]:
    """Return the loops that validate and test."""
    return trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop


def deal_exactly(trainer: Any, replaced: Replaced, comm: Communicator) -> None:
    """Let the trainer take exact loaders for evaluation."""
    connector = trainer._data_connector
    prepare = connector._prepare_dataloader

    def prepare_exactly(dataloader: Any, shuffle: bool, mode: Any) -> Any:
        if not mode.evaluating:
            return prepare(dataloader, shuffle=shuffle, mode=mode)
        if _is_ours_to_deal(trainer, dataloader, comm):
            part = exact_by(dataloader, comm, in_rounds=True, equal_batches=True)
            return part if part.needs_filler() else part.loader
        loader = prepare(dataloader, shuffle=shuffle, mode=mode)
        _refuse_empty_ranks(trainer, loader, comm.whole)
        return loader

    replaced.replace(connector, "_prepare_dataloader", prepare_exactly)


def _is_ours_to_deal(trainer: Any, loader: Any, comm: Communicator) -> bool:
    """True if the trainer is to deal a loader out, and every rank is to get a part of its own."""
    if not trainer._accelerator_connector.use_distributed_sampler or not is_dealt(trainer, comm):
        return False
    if isinstance(loader, RankLoader):
        return True
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def is_dealt(trainer: Any, comm: Communicator) -> bool:
    """True if each rank, or shard of a layout, is to have samples of its own.

    Ranks that share a model's layers read the same data: who they are, only a layout says.
    """
    if not trainer._accelerator_connector.is_distributed:
        return False
    shares = (trainer.distributed_sampler_kwargs or {}).get("num_replicas")
    return shares in (comm.world_size, comm.whole.world_size)


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
    lengths = gather_objects(_length(loader), _read_length, "SyncMetrics", comm=comm)
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
    if any(gather_objects(fills, bool, "SyncMetrics", comm=comm)):
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
    if not isinstance(loader, RankLoader) or loader.filler is None:
        return False
    return batch_idx >= loader.filler


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

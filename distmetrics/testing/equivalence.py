"""A user's own module and data on every number of ranks get the numbers of a single process."""

import copy
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler

from distmetrics.comm.communicator import Communicator
from distmetrics.comm.verdict import settle
from distmetrics.data.sharding import clone, has_order
from distmetrics.errors import InputError, InputTypeError
from distmetrics.launch.spawn import launch
from distmetrics.run.seed import keep
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.registry import resolve
from distmetrics.strategies.sampling import shard
from distmetrics.strategies.tensors import to_host
from distmetrics.testing.equality import relative
from distmetrics.train import DataModule, Module, Trainer

_WEIGHT = "weight "  # before the names of weights in a record


@dataclass(frozen=True)
class _FitCase:
    """One run: what is trained, on what, by whom.

    Attributes:
        module: a module, or a function that makes one.
        data: loaders, a data module, or a function that makes them.
        strategy: the trainer's, by name or as an object.
        flags: the trainer's others.
    """

    module: Any
    data: Any
    strategy: str | Strategy
    world_size: int
    seed: int
    flags: Mapping[str, Any]

    def __str__(self) -> str:
        name = self.strategy if isinstance(self.strategy, str) else self.strategy.name
        return f"strategy={name!r}, world size {self.world_size}"


# The values that a run leaves behind, and the names of those that are each rank's own.
_Record = tuple[dict[str, Tensor], set[str]]


def assert_same_as_single(
    module: Module | Callable[[], Module],
    data: Any,
    *,
    strategies: Sequence[str | Strategy] = ("ddp",),
    world_sizes: Sequence[int] = (2,),
    seed: int = 0,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    **flags: Any,
) -> None:
    """Train and validate a module under each strategy and world size; compare all with one process.

    Every run has the same global batch: a loader's batch size is that of the single process, and
    each of W ranks takes a W-th of it. The values logged for epochs, the result of ``validate``
    after the fit, and the weights are compared. Dropout and ``BatchNorm`` differ between ranks, so
    such modules are not the same.

    Args:
        module: what to train, or a function that makes it; each run gets a module of its own.
        data: ``(train, val)``, a train loader, a data module, or a function that makes one of
            these.
        strategies: names or objects, as for the trainer. Each rank is a process, also where a
            strategy would run the script again.
        world_sizes: numbers of ranks; each must divide the training loader's batch size.
        seed: of the modules' weights and the order of the samples.
        rtol: relative tolerance of all values.
        atol: absolute tolerance of the weights.
        flags: of :class:`~distmetrics.train.Trainer`; default ``max_epochs=1``,
            ``accelerator="cpu"``, and no progress bar.

    Raises:
        AssertionError: values differ; lists strategy, world size, name and difference of each.
        InputError: the data can't be dealt out evenly, so that the runs could not be the same.

    >>> from distmetrics.train import Module
    >>> class Line(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(1, 1)
    ...     def training_step(self, batch, batch_idx):
    ...         loss = ((self.layer(batch) - 2 * batch) ** 2).mean()
    ...         self.log("loss", loss, on_epoch=True)
    ...         return loss
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> data = torch.utils.data.DataLoader(torch.arange(8.0)[:, None], 4)
    >>> assert_same_as_single(Line(), data, strategies=["single"], world_sizes=[1])
    """
    flags = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False} | flags
    single = _FitCase(module, data, "single", 1, seed, flags)
    expected, _ = _run_here(single)
    lines = []
    for strategy, world_size in itertools.product(strategies, world_sizes):
        case = replace(single, strategy=strategy, world_size=world_size)
        got, local = _run(case)
        for name in sorted((got.keys() | expected.keys()) - local):
            equality = relative(rtol, atol if name.startswith(_WEIGHT) else 0.0)
            if difference := equality.difference(expected.get(name), got.get(name)):
                lines.append(f"  {case}: {name}: {difference}")
    if lines:
        raise AssertionError("\n".join(["not what a single process gets", *lines]))


def _run(case: _FitCase) -> _Record:
    """Run a case: here where the strategy starts its own ranks or needs none, else in processes."""
    accelerator = case.flags["accelerator"]
    strategy = copy.deepcopy(case.strategy)
    if not resolve(strategy, devices=case.world_size, accelerator=accelerator).joins:
        return _run_here(case)
    record: _Record = settle(launch(_run_on_rank, case.world_size, case))[0]
    return record


def _run_on_rank(comm: Communicator, case: _FitCase) -> _Record:
    """Be one rank of a world that is there already; the strategy takes it for a launcher's."""
    rank, world_size = str(comm.rank), str(comm.world_size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return _run_here(case)


@keep()
def _run_here(case: _FitCase) -> _Record:
    """Train and validate."""
    torch.manual_seed(case.seed)
    module, data = _new(case.module, Module), _data(case)
    strategy = copy.deepcopy(case.strategy)
    trainer = Trainer(strategy=strategy, devices=case.world_size, seed=case.seed, **case.flags)
    trainer.fit(module, datamodule=data)
    record = {name: torch.tensor(float(x)) for name, x in trainer.callback_metrics.items()}
    if data.val_dataloader() is not None:
        for result in trainer.validate(module, datamodule=data):
            record |= {f"validate: {name}": torch.tensor(x) for name, x in result.items()}
    weights = trainer.strategy.weights(module) if trainer.strategy.joins else module.state_dict()
    for name, weight in to_host(dict(weights)).items():
        record[_WEIGHT + name] = weight.clone()
    return record, set(trainer.local_metrics)


def _new(source: Any, kind: type = object) -> Any:
    """Return what a factory makes, or a copy of what is no factory."""
    is_factory = callable(source) and not isinstance(source, nn.Module)
    new = source() if is_factory else copy.deepcopy(source)
    if not isinstance(new, kind):
        raise InputTypeError(
            f"needs a {kind.__name__}, or a function that makes one, got a {type(new).__name__}"
        )
    return new


class _Loaders(DataModule):
    """Loaders as a data module."""

    def __init__(self, train: Any, val: Any = None) -> None:
        self._train, self._val = train, val

    def train_dataloader(self) -> Any:
        return self._train

    def val_dataloader(self) -> Any:
        return self._val


def _data(case: _FitCase) -> DataModule:
    """Return the user's data, of which each rank trains with a W-th of the batch."""
    data = _new(case.data)
    if not isinstance(data, DataModule):
        is_pair = isinstance(data, tuple) and len(data) == 2
        data = _Loaders(*data) if is_pair else _Loaders(data)
    data.train_dataloader = functools.partial(_part, data, case)  # goes to processes with the data
    loaded: DataModule = data
    return loaded


def _part(data: DataModule, case: _FitCase) -> Any:
    """Return a loader of a rank's part, in an order that does not depend on the world's size."""
    loader = _split(type(data).train_dataloader(data), case.world_size)
    if case.strategy != "single":
        return loader
    # As one rank's part in a world of one: the order is then drawn as in a larger world.
    return shard(loader, world_size=1, rank=0, train=True, seed=case.seed)


def _split(loader: Any, world_size: int) -> Any:
    """Return a loader with a W-th of the batch size.

    Raises:
        InputError: there is no batch size that could be divided, or a rank would repeat samples.
    """
    if not has_order(loader) or type(loader.batch_sampler) is not BatchSampler:
        raise InputError(
            "the training data must be a DataLoader with a batch_size, which each rank takes its "
            "part of"
        )
    whole, count = loader.batch_size, len(loader.sampler)
    if whole % world_size or (count % world_size and not loader.drop_last):
        raise InputError(
            f"{world_size} ranks can't share {count} samples in batches of {whole} evenly: some "
            "would count twice",
            do=f"take a batch size and a number of samples that {world_size} divides.",
        )
    part = whole // world_size
    batches = BatchSampler(loader.sampler, part, loader.drop_last)
    return clone(loader, batch_size=part, batch_sampler=batches)

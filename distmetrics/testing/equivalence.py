"""A user's own module and data, on every number of ranks: the numbers must be the single process's."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from distmetrics.comm.base import Communicator
from distmetrics.comm.outcome import settle
from distmetrics.errors import InputError, InputTypeError
from distmetrics.launch.processes import launch
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.registry import resolve
from distmetrics.strategies.sampling import shard
from distmetrics.train import DataModule, Module, Trainer


@dataclass(frozen=True)
class _Case:
    """One run: what is trained, on what, by whom.

    Attributes:
        module: a module, or a function that makes one.
        data: loaders, a data module, or a function that makes them.
        flags: the trainer's.
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
    each of W ranks takes a W-th of it. What is compared: every value that is logged for an epoch,
    what ``validate`` returns after the fit, and the weights. Steps that draw random numbers
    (dropout) and statistics of a batch (``BatchNorm``) differ between ranks by their nature.

    Args:
        module: what to train, or a function that makes it; each run gets a module of its own.
        data: ``(train, val)``, a train loader, a data module, or a function that makes one of
            these.
        strategies: of the trainer; each rank is a process, also where a strategy would run the
            script again.
        world_sizes: numbers of ranks; each must divide the training loader's batch size.
        seed: of the modules' weights and the order of the samples.
        rtol: relative tolerance.
        atol: absolute tolerance of the weights; near zero a relative one means nothing.
        flags: of :class:`~distmetrics.train.Trainer`; default ``max_epochs=1``.

    Raises:
        AssertionError: values differ; lists strategy, world size, name, expected and got of each.
        InputError: the data can't be shared out evenly, so that the runs could not be the same.

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
    >>> assert_same_as_single(Line(), DataLoader(torch.arange(8.0)[:, None], 4), strategies=["single"], world_sizes=[1])
    """
    flags = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False} | flags
    single = _Case(module, data, "single", 1, seed, flags)
    with _generators_kept():
        expected = _run(single)
    cases = [
        replace(single, strategy=name, world_size=count)
        for name in strategies
        for count in world_sizes
    ]
    differences = [
        f"  {case}: {line}"
        for case in cases
        for line in _differences(_found(case), expected, rtol=rtol, atol=atol)
    ]
    if differences:
        raise AssertionError("\n".join(["not what a single process gets", *differences]))


@dataclass(frozen=True)
class _Record:
    """What a run leaves behind; ``local`` are the names whose values are each rank's own."""

    values: dict[str, float]
    local: set[str]
    weights: dict[str, Tensor]


def _found(case: _Case) -> _Record:
    """Run a case: here where the strategy starts its own ranks or needs none, else in processes
    that we start.
    """
    strategy = (
        copy.deepcopy(case.strategy) if isinstance(case.strategy, Strategy) else case.strategy
    )
    bound = resolve(strategy, devices=case.world_size, accelerator=case.flags["accelerator"])
    if not bound.joins:
        with _generators_kept():
            return _run(case)
    record: _Record = settle(launch(_on_rank, case.world_size, case))[0]
    return record


def _on_rank(comm: Communicator, case: _Case) -> _Record:
    """Be one rank of a world that is there already; the strategy takes it for a launcher's."""
    rank, world_size = str(comm.rank), str(comm.world_size)
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return _run(case)


def _run(case: _Case) -> _Record:
    torch.manual_seed(case.seed)
    module = _made(case.module, Module)
    data = _rebatched(_made(case.data), case)
    strategy = (
        copy.deepcopy(case.strategy) if isinstance(case.strategy, Strategy) else case.strategy
    )
    trainer = Trainer(strategy=strategy, devices=case.world_size, seed=case.seed, **case.flags)
    trainer.fit(module, datamodule=data)
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if data.val_dataloader() is not None:
        results = trainer.validate(module, datamodule=data)
        values |= {
            f"validate: {name}": value for result in results for name, value in result.items()
        }
    weights = trainer.strategy.weights(module) if trainer.strategy.joins else module.state_dict()
    return _Record(
        values,
        set(trainer.local_metrics),
        {name: value.detach().cpu().clone() for name, value in weights.items()},
    )


def _made(thing: Any, kind: type = object) -> Any:
    """Return what a factory makes, or a copy of what is given."""
    is_factory = callable(thing) and not isinstance(thing, nn.Module)
    made = thing() if is_factory else copy.deepcopy(thing)
    if not isinstance(made, kind):
        raise InputTypeError(
            f"needs a {kind.__name__}, or a function that makes one, got a {type(made).__name__}"
        )
    return made


class _Rebatched(DataModule):
    """The user's data with a W-th of the batch, in an order that does not depend on W."""

    def __init__(self, data: DataModule, case: _Case) -> None:
        self._data = data
        self._case = case

    def prepare_data(self) -> None:
        self._data.prepare_data()

    def setup(self, stage: str) -> None:
        self._data.trainer = self.trainer
        self._data.setup(stage)

    def train_dataloader(self) -> Any:
        loader = _split(self._data.train_dataloader(), self._case.world_size)
        if self._case.strategy != "single":
            return loader
        # As one rank's part in a world of one: the order is then drawn as in a larger world.
        return shard(loader, world_size=1, rank=0, train=True, seed=self._case.seed)

    def val_dataloader(self) -> Any:
        return self._data.val_dataloader()


class _Loaders(DataModule):
    def __init__(self, train: Any, val: Any) -> None:
        self._train, self._val = train, val

    def train_dataloader(self) -> Any:
        return self._train

    def val_dataloader(self) -> Any:
        return self._val


def _rebatched(data: Any, case: _Case) -> _Rebatched:
    if isinstance(data, DataModule):
        return _Rebatched(data, case)
    train, val = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    return _Rebatched(_Loaders(train, val), case)


def _split(loader: Any, world_size: int) -> Any:
    """Return a loader with a W-th of the batch size.

    Raises:
        InputError: there is no batch size that could be divided, or a rank would repeat samples.
    """
    plain = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not plain or type(loader.batch_sampler) is not BatchSampler:
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
    clone = copy.copy(loader)
    batches = BatchSampler(loader.sampler, whole // world_size, loader.drop_last)
    for name, value in (("batch_size", whole // world_size), ("batch_sampler", batches)):
        object.__setattr__(clone, name, value)
    return clone


def _differences(found: _Record, expected: _Record, rtol: float, atol: float) -> Iterator[str]:
    for name in sorted((found.values.keys() | expected.values.keys()) - found.local):
        wanted, got = expected.values.get(name), found.values.get(name)
        if wanted is None or got is None:
            yield f"{name}: expected {_shown(wanted)}, got {_shown(got)}"
        elif not torch.isclose(
            torch.tensor(got), torch.tensor(wanted), rtol=rtol, atol=0.0, equal_nan=True
        ):
            yield f"{name}: expected {wanted!r}, got {got!r}"
    for name in sorted(found.weights.keys() | expected.weights.keys()):
        before, after = expected.weights.get(name), found.weights.get(name)
        if before is None or after is None or before.shape != after.shape:
            yield f"weight {name}: expected {_shape(before)}, got {_shape(after)}"
        elif not torch.allclose(after, before, rtol=rtol, atol=atol, equal_nan=True):
            worst = (after.double() - before.double()).abs().argmax()
            wanted, got = (weight.flatten()[worst].item() for weight in (before, after))
            yield f"weight {name}: expected {wanted:.8g}, got {got:.8g} at its worst"


def _shown(value: float | None) -> str:
    return "nothing logged" if value is None else repr(value)


def _shape(weight: Tensor | None) -> str:
    return "none" if weight is None else f"shape {list(weight.shape)}"


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the random generators of the test as they were."""
    python = random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)

"""Lightning: a callback with which every sample counts once, in metrics and in logged numbers.

Lightning computes a logged metric at the end of the epoch, and each metric then syncs itself, state
by state. ``SyncMetrics`` puts the state of all ranks into all metrics of the module at once, before
the first of them is computed, and local state back when the loop has logged them. It replaces three
methods of single objects for as long as a trainer runs: the one that puts a sampler into a loader,
the one that adds a number to those that are logged, and the one that takes what was logged when a
loader of an evaluation has ended. ``LogMetrics`` gives the trainer's loggers the rows of a log.
"""

import contextlib
import copy
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from distmetrics.collectives.ops import gather_objects, mean
from distmetrics.comm.communicator import Communicator, current, use
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import RankLoader, being_read
from distmetrics.errors import ConfigurationError, InputError, StateError, compose, optional
from distmetrics.layouts.communicator import layout as layout_of
from distmetrics.log.log import Log
from distmetrics.log.writers import numbers
from distmetrics.message import convert
from distmetrics.metrics.adapters import roots
from distmetrics.metrics.sync import synced

with optional("torchmetrics", "distmetrics.integrations.lightning"):
    from torchmetrics import MeanMetric, Metric
with optional("lightning", "distmetrics.integrations.lightning"):
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback  # type: ignore[assignment,unused-ignore]
    else:
        from lightning.pytorch import Callback  # type: ignore[assignment,unused-ignore]

__all__ = ["LogMetrics", "SyncMetrics"]

_ALIKE = 1e-4  # relative; smaller differences are not worth a warning
_ONCE = re.compile(r"on_(train|validation|test)(_epoch)?_(start|end)\.")  # hooks that see no batch


class SyncMetrics(Callback):  # type: ignore[misc,unused-ignore]
    """Counts every sample of an evaluation once, and syncs all metrics of the module together.

    Validation and test loaders are dealt out in rounds of one batch for each rank, as with
    ``use_distributed_sampler=True``, but no sample is repeated. Not dealt out: loaders under
    ``use_distributed_sampler=False``, training loaders, data without an order (an
    ``IterableDataset``), and prediction, where Lightning repeats nothing. A rank that would have
    one batch fewer than others gets a filler, which neither metrics nor logged numbers see.

    ``self.log("loss", loss)`` in a step, also of training, logs at the end of the epoch the mean
    over all batches of all ranks that have logged it, weighted by ``batch_size``, with
    ``sync_dist=True`` or without; another ``reduce_fx`` is over all batches as well. Not synced:
    the value of a single step without ``sync_dist=True``, and what is logged with
    ``rank_zero_only=True`` or in ``on_validation_epoch_end``. A warning, once for each name, tells
    of logged values of batches where the metric itself has another value, and in a fit of numbers
    logged in ``on_validation_epoch_end`` that differ between ranks.

    All metrics are synced at the end of every epoch of each stage, and of each evaluation loader,
    before Lightning computes what the steps have logged.

    A metric that is reset after it was logged, by Lightning or in ``on_validation_epoch_end``,
    stays reset; every other keeps its local state. Update metrics in the steps: an update in
    ``on_validation_epoch_end`` is an error.

    Args:
        metrics: names of the module's metrics, such as ``["val_f1", "val_auroc"]``; default all
            except those made with ``sync_on_compute=False``. Name them where a module keeps large
            lists for training that validation need not sync.
        allow_pickle: as for :func:`distmetrics.sync_and_compute`.
        layout: what ranks hold along the axes of a mesh, where not each has samples of its own:
            sizes by the usual names, such as ``{"dp": 2, "tp": 2}``; or a function that every rank
            calls, which returns a :class:`~distmetrics.layout` of all ranks. Loaders for
            evaluation are dealt out to its shards. Default the current communicator.

    Raises:
        StateError: ``metrics`` names no attribute that is a metric; a metric was updated between
            the sync and the logging (each on the rank where it is so).
        ConfigurationError: along an axis of the layout only one coordinate has values.
        InputError: some ranks have no batch of a loader that is not dealt out here; batches of
            several loaders are combined, and some are fillers (on every rank). All of these are
            raised while the trainer runs.

    >>> from distmetrics.integrations.lightning import SyncMetrics
    >>> from lightning.pytorch import Trainer
    >>> flags = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    >>> trainer = Trainer(callbacks=[SyncMetrics()], **flags)
    """

    def __init__(
        self,
        metrics: Sequence[str] | None = None,
        *,
        allow_pickle: bool = False,
        layout: Mapping[str, int] | Callable[[], Communicator] | None = None,
    ) -> None:
        self.layout = layout
        self.metrics = None if metrics is None else tuple(metrics)
        self.allow_pickle = allow_pickle
        self._block: contextlib.ExitStack | None = None
        self._counts: list[tuple[Metric, int]] = []
        self._run: _WatchedCall | None = None
        self._told: set[str] = set()  # names of numbers
        self._comm: Communicator | None = None  # of a run
        self._step = contextlib.ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let the trainer deal exactly until it is done, unless another callback has seen to it."""
        self._comm = _ranks(self.layout)
        if "_store_dataloader_outputs" not in vars(trainer.validate_loop):
            self._run = _WatchedCall(
                trainer, self._comm, self._told, partial(self._at_end, trainer)
            )

    def _put_back(self) -> None:
        """Leave the trainer as it was."""
        self._step.close()
        if self._run is not None:
            self._run.put_back()
        self._run = self._comm = None

    def _at_end(self, trainer: Any) -> None:
        """Sync at the end of a loader or of an epoch of training: what was logged is computed next.

        All callbacks of this class do so, and one of them sums up the numbers.
        """
        synced_here: list[Metric] = []
        for callback in trainer.callbacks:
            if isinstance(callback, SyncMetrics):
                callback._enter(trainer.lightning_module)
                synced_here += [metric for metric, _ in callback._counts]
        if self._run is not None:
            self._run.sum_up(synced_here)

    def _enter(self, module: nn.Module) -> None:
        """Put the state of all ranks in, unless it is."""
        if self._block is not None:
            return
        chosen = _chosen(module, self.metrics)
        metrics = [metric for each in chosen.values() for metric in outermost(each)]
        if metrics:
            self._block = contextlib.ExitStack()
            block = synced(chosen, allow_pickle=self.allow_pickle, name="epoch end")
            with use(self._comm or current()):
                self._block.enter_context(block)
            self._counts = [(metric, metric._update_count) for metric in metrics]

    def _leave(self, *, failed: bool = False) -> None:
        """Put local state back; metrics that were reset in between are reset."""
        if self._block is None:
            return
        block, self._block = self._block, None
        counts, self._counts = self._counts, []
        late = [metric for metric, count in counts if metric._update_count not in (0, count)]
        block.close()
        if late and not failed:
            raise StateError(
                f"SyncMetrics: {type(late[0]).__name__} was updated after the epoch's sync: no "
                "value has it",
                do="update metrics in the step, not in a hook after the last batch.",
            )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Put local state back, and refuse what can't be exact."""
        self._leave()
        if self._run is not None:
            _refuse_combined(trainer._evaluation_loop, (self._comm or current()).whole)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put local state back, and keep it where the batch only fills up."""
        self._leave()
        if self._run is not None:
            loader = trainer._evaluation_loop._combined_loader.flattened[dataloader_idx]
            first = loader.filler if isinstance(loader, RankLoader) else None
            filler = self._run.filler = first is not None and batch_idx >= first
            self._step.enter_context(counted(pl_module, filler=filler))

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Put back what metrics were, where the batch only filled up."""
        self._step.close()

    on_test_start = on_validation_start
    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Sync: what the epoch has logged is computed after this hook."""
        if self._run is not None:
            self._at_end(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Put local state back: the loop has logged, and goes on."""
        if self._run is not None:
            self._run.note_hooks()
        self._leave()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Put local state back: the loop has logged, and goes on."""
        self._leave()

    on_test_end = on_validation_end
    on_train_end = on_train_epoch_start

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put local state back."""
        self._put_back()
        self._leave(failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Put local state back."""
        self._put_back()
        self._leave()


def _ranks(layout: Mapping[str, int] | Callable[[], Communicator] | None) -> Communicator:
    """Return who evaluates; every rank must ask for it.

    Raises:
        ConfigurationError: some ranks are said to have no values, and all take the steps.
    """
    if layout is None:
        comm = current()
    else:
        comm = layout_of.of(layout) if isinstance(layout, Mapping) else layout()
    if isinstance(comm, layout_of) and comm.mesh.owned:
        raise ConfigurationError(
            "SyncMetrics: a trainer's steps run on every rank, and along the axis "
            f"{comm.mesh.owned[0]} only one coordinate has values",
            do="compute metrics in hooks of your own, with sync_and_compute(metrics, comm=layout).",
        )
    return comm


def _chosen(module: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    """Return what to sync, by name; by default all but metrics that do not sync on compute."""
    if names is None:
        known = {path: root for path, root, _ in roots(module)}
        return {path: root for path, root in known.items() if not _stays_local(root)}
    chosen: dict[str, Any] = {}
    for name in names:
        chosen[name] = getattr(module, name, None)
        if not isinstance(chosen[name], nn.Module):
            raise StateError(
                f"SyncMetrics: {type(module).__name__} has no metric {name!r}",
                do="name attributes that hold metrics; it has "
                f"{', '.join(dict(module.named_children())) or 'none'}.",
            )
    return chosen


def _stays_local(root: nn.Module) -> bool:
    metrics = list(outermost(root))
    return bool(metrics) and not any(metric.sync_on_compute for metric in metrics)


class LogMetrics(Callback):  # type: ignore[misc,unused-ignore]
    """Gives the trainer's loggers the rows of a log: values of all ranks, in one exchange a row.

    Log in ``training_step`` or another hook of training. Every ``log_every_n_steps``, when
    Lightning writes what ``self.log`` was given, the log is flushed, and all loggers get the row
    under Lightning's step. Its values are also in ``trainer.callback_metrics``, for
    ``ModelCheckpoint`` and ``EarlyStopping``. The last row is written at the end of the training.
    What was logged since the last row is in no checkpoint.

    Args:
        log: the log; it may have a layout, and writers of its own.

    >>> from distmetrics.integrations.lightning import LogMetrics
    >>> from lightning.pytorch import Trainer
    >>> log = Log()
    >>> flags = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    >>> trainer = Trainer(callbacks=[LogMetrics(log)], **flags)
    >>> log.mean("loss", 0.5, weight=8)
    """

    def __init__(self, log: Log) -> None:
        self._log = log  # Lightning has a "log" of its own for callbacks

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a row where Lightning does."""
        is_between = trainer.fit_loop._should_accumulate()
        if trainer._logger_connector.should_update_logs and not is_between:
            self._write(trainer, trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the rest."""
        self._write(trainer, max(0, trainer.fit_loop.epoch_loop._batches_that_stepped - 1))

    def _write(self, trainer: Any, step: int) -> None:
        row = numbers(self._log.flush(step))
        tensors = {name: torch.tensor(value, device="cpu") for name, value in row.items()}
        trainer.callback_metrics.update(tensors)
        for logger in trainer.loggers if row else ():  # they write on the first rank alone
            logger.log_metrics(row, step)
            logger.save()


# --- what a callback changes in a trainer ---


class _WatchedCall:
    """One run of a trainer: what the callback changes in it, and the numbers that it logs.

    For each number Lightning keeps a sum and its weight on each rank. When a loader of an
    evaluation or an epoch of training has ended, and before Lightning computes anything, the ranks
    tell each other what they keep, by name: a name that only some ranks have logged holds up
    nobody.
    """

    def __init__(
        self, trainer: Any, comm: Communicator, told: set[str], at_end: Callable[[], None]
    ) -> None:
        self._trainer, self._comm = trainer, comm
        self.filler = False  # the batch that goes through the module only fills up
        self._told = told  # names of which a warning was given, or that were found right
        self._metrics: list[Metric] | None = None
        self._suspects: dict[str, _Suspect] = {}
        self._at_end: dict[str, float] = {}  # what hooks of the last evaluation logged by name
        self._replaced: list[tuple[Any, str]] = []
        epochs, connector = trainer.fit_loop.epoch_loop, trainer._data_connector
        self._weigh(epochs._results, None)
        for loop in (epochs.val_loop, trainer.validate_loop, trainer.test_loop):
            self._weigh(loop._results, comm)
            after = partial(_after, loop._store_dataloader_outputs, at_end)
            self._replace(loop, "_store_dataloader_outputs", after)
        if comm.whole.world_size > 1:
            prepare = partial(self._prepare, connector._prepare_dataloader)
            self._replace(connector, "_prepare_dataloader", prepare)

    def _weigh(self, results: Any, comm: Communicator | None) -> None:
        """Let a loop count samples exactly in what it logs."""
        add = partial(self._add, results.update_metrics, results, comm)
        self._replace(results, "update_metrics", add)

    def _replace(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """Let ``method`` stand in for a method of one object."""
        setattr(owner, name, method)
        self._replaced.append((owner, name))

    def put_back(self) -> None:
        """Give every object its own method back."""
        while self._replaced:
            delattr(*self._replaced.pop())

    @property
    def _has_shares(self) -> bool:
        """True if each rank, or shard of a layout, is to have samples of its own.

        Ranks that share a model's layers read the same data: who they are, only a layout says.
        """
        if not self._trainer._accelerator_connector.is_distributed:
            return False
        shares = (self._trainer.distributed_sampler_kwargs or {}).get("num_replicas")
        return shares in (self._comm.world_size, self._comm.whole.world_size)

    def _prepare(self, prepare: Any, dataloader: Any, shuffle: bool, mode: Any) -> Any:
        """Return the loader that the trainer takes: an exact one, in evaluations."""
        if not mode.evaluating:
            return prepare(dataloader, shuffle=shuffle, mode=mode)
        deals = self._trainer._accelerator_connector.use_distributed_sampler and self._has_shares
        has_order = isinstance(dataloader, DataLoader)
        has_order = has_order and not isinstance(dataloader.dataset, IterableDataset)
        if deals and (has_order or isinstance(dataloader, RankLoader)):
            part = exact_by(dataloader, self._comm, in_rounds=True, equal_batches=True)
            return part if part.needs_filler() else part.loader
        loader = prepare(dataloader, shuffle=shuffle, mode=mode)
        _refuse_empty_ranks(loader, self._comm.whole)
        return loader

    def _add(
        self,
        add: Callable[..., None],
        results: Any,
        comm: Communicator | None,
        key: str,
        value: Any,
        batch_size: int,
    ) -> None:
        """Add the value of one batch to what a loop logs, as Lightning does, with exact weights.

        Lightning halves the number of samples on two ranks as an integer: 597 are 298 a rank.
        ``comm``: of those that log in each step of an evaluation; None in training, where Lightning
        gives all ranks batches of the same size.
        """
        result = results[key]
        if not result.is_tensor:
            add(key, value, batch_size)
            return
        meta, sync = result.meta, result.meta.sync
        by_all = sync.should and sync.group is None and not sync.rank_zero_only
        if comm is not None and by_all:
            _reduce_over(comm, sync)
        if comm is not None and self.filler and results.batch is not None:  # not in a hook
            nothing = result._defaults["value"].item()
            value = torch.full_like(value, nothing, dtype=result.value.dtype)
            batch_size = 0
        elif meta.on_epoch:
            self._note(key, value)
        if meta.is_mean_reduction:
            count = result.cumulated_batch_size
            wide = torch.float32 if count.device.type == "mps" else torch.float64
            result.cumulated_batch_size = count.to(wide)
        if comm is None or not (meta.is_mean_reduction and meta.on_step and by_all):
            add(key, value, batch_size)
            return
        sync.should = False
        try:
            add(key, value, batch_size)
        finally:
            sync.should = True
            _reduce_over(comm, sync)
        # All ranks log this step: its value is the mean of all.
        result._forward_cache = mean(result._forward_cache, weight=batch_size, comm=comm)
        if not meta.on_epoch:
            result.value = result._forward_cache

    def _note(self, key: str, value: Any) -> None:
        """Compare a number that a step logs with what metrics returned for this batch."""
        if self._metrics is None:
            # A mean of numbers, weighted by batches, is what Lightning logs by itself.
            metrics = outermost(self._trainer.lightning_module)
            self._metrics = [one for one in metrics if not isinstance(one, MeanMetric)]
        if key not in self._told and not _ONCE.match(key):
            self._suspects.setdefault(key, _Suspect()).compare(value, self._metrics)

    def note_hooks(self) -> None:
        """Keep what hooks of an evaluation have logged and Lightning does not sync."""
        self._at_end = {
            key: float(result.compute())
            for key, result in _reduced(self._trainer._results)
            if _ONCE.match(key) and not result.meta.sync.should
        }

    def sum_up(self, synced_here: Iterable[Metric]) -> None:
        """Let numbers of steps have their value over all ranks that have logged them.

        ``synced_here`` are the metrics that hold the state of all ranks.
        """
        if self._comm.whole.world_size > 1 and not self._has_shares:
            return
        reduced = _reduced(self._trainer._results)
        logged = {key: result for key, result in reduced if not _ONCE.match(key)}
        sums = {key: _Sum.of(result) for key, result in logged.items()}
        told = {key: tuple(one) for key, one in sums.items()}, self._at_end
        # Ranks of a shard log the same.
        ranks = gather_objects(told, _read, "logged numbers", comm=self._comm.transport)
        for key, result in logged.items():
            sums[key] = sums[key].of_all(theirs[key] for theirs, _ in ranks if key in theirs)
            result._computed = torch.full_like(result.value, sums[key].number)
        self._tell_of_hooks([at_end for _, at_end in ranks])
        self._at_end = {}
        self._tell_of_suspects(sums, {id(metric) for metric in synced_here})

    def _tell_of_hooks(self, at_end: list[dict[str, float]]) -> None:
        """Warn of numbers of which each rank has logged its own."""
        for key, first in at_end[0].items():
            values = {rank: theirs[key] for rank, theirs in enumerate(at_end) if key in theirs}
            if key in self._told or all(_alike(value, first) for value in values.values()):
                continue
            hook, _, name = key.partition(".")
            self._warn(
                key,
                f"each rank has logged a {name!r} of its own in {hook}",
                f"log a metric, self.log({name!r}, metric); or, for a mean, say sync_dist=True and "
                "batch_size=, of how many samples it is.",
                {rank: f"{value:.6g}" for rank, value in values.items()},
            )

    def _tell_of_suspects(self, sums: dict[str, "_Sum"], synced_here: set[int]) -> None:
        """Warn of metrics whose value is not what is made of their values of batches."""
        for key, here in sums.items():
            suspect = self._suspects.get(key)
            if suspect is None or key in self._told:
                continue
            suspect.end_epoch(here)
            metrics = [metric for metric in suspect.metrics if id(metric) in synced_here]
            rights = [float(metric.compute()) for metric in metrics]
            if not rights or not all(_alike(right, rights[0]) for right in rights):
                continue  # none, or it could be either
            logged, right = here.of_all(suspect.parts).number, rights[0]
            if not _alike(logged, right):
                meta, parts = self._trainer._results[key].meta, self._trainer.lightning_module
                path = next(path for path, part in parts.named_modules() if part is metrics[0])
                self._warn(
                    key,
                    f"{meta.name!r} is the {meta.reduce_fx.__name__} of the values of batches, "
                    f"{logged:.6g}; {type(metrics[0]).__name__} of the same samples is {right:.6g}",
                    f"log the metric, self.log({meta.name!r}, self.{path}); sync_dist=True would "
                    "not help.",
                    {},
                )
            elif not self._trainer.sanity_checking:  # which sees few samples
                self._told.add(key)

    def _warn(self, key: str, what: str, do: str, ranks: Mapping[int, str]) -> None:
        self._told.add(key)
        if self._trainer.is_global_zero:
            warnings.warn(compose(f"SyncMetrics: {what}", ranks, do=do), stacklevel=2)


def _after(store: Callable[[], None], end: Callable[[], None]) -> None:
    """Call ``end`` when a loader of an evaluation has ended, before anything is computed."""
    end()
    store()


def _refuse_empty_ranks(loader: Any, comm: Communicator) -> None:
    """Refuse a loader without batches on some ranks: they would skip what the others wait in."""
    try:
        length: int | None = len(loader)
    except (TypeError, NotImplementedError):
        length = None
    kind: Any = int | None
    lengths = gather_objects(length, partial(convert, kind=kind), "SyncMetrics", comm=comm)
    if 0 in lengths and set(lengths) != {0}:
        raise InputError(
            "SyncMetrics: a loader has no batches on some ranks, and Lightning would leave them "
            "out of the evaluation that the others wait in",
            per_rank={rank: f"{length} batches" for rank, length in enumerate(lengths)},
            do="let Trainer(use_distributed_sampler=True) deal the data out, or return "
            "distmetrics.data.exact(loader, equal_batches=True).",
            rank=comm.rank,
        )


def _refuse_combined(loop: Any, comm: Communicator) -> None:
    """Refuse steps that can't be told which of their batches only fill up."""
    reads_itself = hasattr(loop._data_fetcher, "iterator_wrapper")
    if comm.world_size == 1 or (loop._is_sequential and not reads_itself):
        return
    fills = any(isinstance(loader, RankLoader) for loader in loop._combined_loader.flattened)
    if any(gather_objects(fills, bool, "SyncMetrics", comm=comm)):
        raise InputError(
            "SyncMetrics: some ranks need a batch that only fills up, and a step that "
            + ("takes dataloader_iter" if reads_itself else "takes batches of several loaders")
            + " can't be told which that is",
            do="choose a batch size with which every rank has as many batches; or deal the data "
            "out yourself, with Trainer(use_distributed_sampler=False).",
            rank=comm.rank,
        )


@contextlib.contextmanager
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


class _Sum(NamedTuple):
    """What a rank keeps of a number: by which of torch's functions it is reduced, and its parts."""

    reduction: str
    value: float
    weight: float

    @classmethod
    def of(cls, result: Any) -> "_Sum":
        """Read what Lightning keeps."""
        weight = result.cumulated_batch_size if result.meta.is_mean_reduction else 1
        return cls(result.meta.reduce_fx.__name__, float(result.value), float(weight))

    def of_all(self, parts: Iterable["_Sum"]) -> "_Sum":
        """Return the sum of those that are reduced as this one is."""
        alike = [part for part in parts if part.reduction == self.reduction]
        values = torch.tensor([part.value for part in alike], dtype=torch.float64, device="cpu")
        reduce = torch.sum if self.reduction == "mean" else getattr(torch, self.reduction)
        weight = math.fsum(part.weight for part in alike)
        return _Sum(self.reduction, float(reduce(values)), weight)

    @property
    def number(self) -> float:
        """The number that is logged."""
        if self.reduction != "mean":
            return self.value
        return self.value / self.weight if self.weight else math.nan


class _Suspect:
    """A number that was what metrics returned, in every step since they were new or reset."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []  # those; they have seen no other batch
        self.parts: list[_Sum] = []  # what was logged since, of each epoch
        self._steps = 0
        self._is_at_start = True  # of an epoch

    def compare(self, value: Any, metrics: list[Metric]) -> None:
        """Leave those that returned ``value`` in this step; an epoch may start anew with others."""
        self._steps += 1
        self.metrics = self._returned(value, self.metrics)
        if self._is_at_start and not self.metrics:
            self._steps, self.parts = 1, []
            self.metrics = self._returned(value, metrics)
        self._is_at_start = False

    def end_epoch(self, logged: _Sum) -> None:
        """Keep what the epoch has logged."""
        self.parts.append(logged)
        self._is_at_start = True

    def _returned(self, value: Any, metrics: list[Metric]) -> list[Metric]:
        """Return those that returned a value; where counts differ already, none is fetched."""
        found: list[Metric] = []
        for metric in metrics:
            given: Any = metric._forward_cache
            if metric.update_count != self._steps or not isinstance(given, torch.Tensor):
                continue
            if given.numel() == 1 and torch.equal(given.squeeze().to(value), value):
                found.append(metric)
        return found


def _reduced(results: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that are to be reduced at the end, over all ranks where they have them."""
    for key, result in results.valid_items():
        meta = result.meta
        is_of_group = meta.sync.should and meta.sync.group is not None
        if result.is_tensor and meta.on_epoch and not is_of_group and not meta.sync.rank_zero_only:
            yield key, result


def _read(told: Any) -> tuple[dict[str, _Sum], dict[str, float]]:
    """Return what a peer has told. Raises if it is malformed."""
    read: tuple[dict[str, _Sum], dict[str, float]]
    read = convert(told, tuple[dict[str, _Sum], dict[str, float]])
    return read


def _alike(first: float, second: float) -> bool:
    both_nan = math.isnan(first) and math.isnan(second)
    return both_nan or math.isclose(first, second, rel_tol=_ALIKE, abs_tol=_ALIKE**2)


def _reduce_over(comm: Communicator, sync: Any) -> None:
    """Let Lightning reduce a logged number over a layout's shards.

    A sum over all ranks would count several times what several of them hold. Where it reduces is
    also a part of what it compares when the number is logged again, so only the function changes.
    """
    if comm.whole is comm:
        return
    shards: Any = comm.transport

    def among_shards(value: Any, *_: Any, **__: Any) -> Any:
        if shards.world_size == 1:
            return value
        return sync.fn(value, group=shards._group, reduce_op=sync.op)

    sync._fn = among_shards


def outermost(module: nn.Module) -> Iterator[Metric]:
    """Yield the metrics that are inside no other; a collection is none."""
    if isinstance(module, Metric):
        yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from outermost(child)

"""Numbers that a Lightning module logs, as one process would log them over all samples.

For each number that is logged, Lightning keeps a sum and its weight on each rank. When a loader of
an evaluation or an epoch of training has ended, and before Lightning computes anything, the ranks
tell each other what they keep, by name: a name that only some ranks have logged holds up nobody.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torchmetrics
from torch import nn
from torchmetrics import MeanMetric

from distmetrics.collectives.ops import gather_objects, mean
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import compose
from distmetrics.integrations.lightning_loops import Replaced, evaluation_loops

_ALIKE = 1e-4  # relative; smaller differences are not worth a warning
_ONCE = re.compile(r"on_(train|validation|test)(_epoch)?_(start|end)\.")  # hooks that see no batch


class Numbers:
    """The numbers that one run of a trainer logs.

    Args:
        replaced: knows whether a batch counts.
        comm: of all ranks, or a layout; None if they do not have samples of their own each.
        told: names of which a warning has been given, or that have been found right.
    """

    def __init__(self, replaced: Replaced, comm: Communicator | None, told: set[str]) -> None:
        self.replaced = replaced
        self._comm = comm
        self._told = told
        self._metrics: list[torchmetrics.Metric] | None = None
        self._suspects: dict[str, _Suspect] = {}
        self._at_end: dict[str, float] = {}  # what hooks of the last evaluation logged by name

    def note(self, key: str, value: Any, module: nn.Module) -> None:
        """Compare a number that a step logs with what metrics returned for this batch."""
        if self._metrics is None:
            # A mean of numbers, weighted by batches, is what Lightning logs by itself.
            metrics = (one for one in outermost(module) if not isinstance(one, MeanMetric))
            self._metrics = [*metrics]
        if key not in self._told and not _ONCE.match(key):
            self._suspects.setdefault(key, _Suspect()).compare(value, self._metrics)

    def note_hooks(self, results: Any) -> None:
        """Keep what hooks of an evaluation have logged and Lightning does not sync."""
        self._at_end = {
            key: float(result.compute())
            for key, result in _reduced(results)
            if _ONCE.match(key) and not result.meta.sync.should
        }

    def sum_up(self, trainer: Any, synced: Iterable[torchmetrics.Metric]) -> None:
        """Let numbers of steps have their value over all ranks that have logged them.

        Args:
            trainer: is at the end of a loader, or of an epoch of training.
            synced: metrics that hold the state of all ranks.
        """
        if self._comm is None:
            return
        logged = {key: one for key, one in _reduced(trainer._results) if not _ONCE.match(key)}
        sums = {key: _Sum.of(result) for key, result in logged.items()}
        told = ({key: tuple(one) for key, one in sums.items()}, self._at_end)
        # Ranks of a shard log the same.
        ranks = gather_objects(told, _read, "logged numbers", comm=self._comm.transport)
        for key, result in logged.items():
            sums[key] = sums[key].of_all(theirs[key] for theirs, _ in ranks if key in theirs)
            result._computed = torch.full_like(result.value, sums[key].number)
        self._tell_of_hooks(trainer, [at_end for _, at_end in ranks])
        self._at_end = {}
        self._tell_of_suspects(trainer, sums, {id(metric) for metric in synced})

    def _tell_of_hooks(self, trainer: Any, at_end: list[dict[str, float]]) -> None:
        """Warn of numbers of which each rank has logged its own."""
        for key, first in at_end[0].items():
            values = {rank: theirs[key] for rank, theirs in enumerate(at_end) if key in theirs}
            if key in self._told or all(_alike(value, first) for value in values.values()):
                continue
            hook, _, name = key.partition(".")
            self._told.add(key)
            _warn(
                trainer,
                f"each rank has logged a {name!r} of its own in {hook}",
                {rank: f"{value:.6g}" for rank, value in values.items()},
                f"log a metric, self.log({name!r}, metric); or, for a mean, say sync_dist=True and "
                "batch_size=, of how many samples it is.",
            )

    def _tell_of_suspects(self, trainer: Any, sums: dict[str, "_Sum"], synced: set[int]) -> None:
        """Warn of metrics whose value is not what is made of their values of batches."""
        for key, here in sums.items():
            suspect = self._suspects.get(key)
            if suspect is None or key in self._told:
                continue
            suspect.end_epoch(here)
            metrics = [metric for metric in suspect.metrics if id(metric) in synced]
            rights = [float(metric.compute()) for metric in metrics]
            if not rights or not all(_alike(right, rights[0]) for right in rights):
                continue  # none, or it could be either
            logged, right = here.of_all(suspect.parts).number, rights[0]
            is_alike = _alike(logged, right)
            if not is_alike or not trainer.sanity_checking:  # which sees few samples
                self._told.add(key)
            if not is_alike:
                _warn_of_values(trainer, trainer._results[key].meta, logged, metrics[0], right)


def _warn_of_values(
    trainer: Any, meta: Any, logged: float, metric: torchmetrics.Metric, right: float
) -> None:
    parts = trainer.lightning_module.named_modules()
    path = next(path for path, part in parts if part is metric)
    _warn(
        trainer,
        f"{meta.name!r} is the {meta.reduce_fx.__name__} of the values of batches, {logged:.6g}; "
        f"{type(metric).__name__} of the same samples is {right:.6g}",
        {},
        f"log the metric, self.log({meta.name!r}, self.{path}); sync_dist=True would not help.",
    )


def _warn(trainer: Any, what: str, ranks: dict[int, str], do: str) -> None:
    if trainer.is_global_zero:
        warnings.warn(compose(f"SyncMetrics: {what}", ranks, do=do), stacklevel=2)


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
    """A number that was what metrics returned, in every step since they were new or reset.

    Attributes:
        metrics: those; they have seen no other batch.
        parts: what was logged since, of each epoch.
    """

    def __init__(self) -> None:
        self.metrics: list[torchmetrics.Metric] = []
        self.parts: list[_Sum] = []
        self._steps = 0
        self._is_at_start = True  # of an epoch

    def compare(self, value: Any, metrics: list[torchmetrics.Metric]) -> None:
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

    def _returned(
        self, value: Any, metrics: list[torchmetrics.Metric]
    ) -> list[torchmetrics.Metric]:
        """Return those that returned a value; where counts differ already, none is fetched."""
        found: list[torchmetrics.Metric] = []
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
    """Return what a peer has told; raise ValueError or TypeError for anything else."""
    sums, at_end = told
    read = {
        str(key): _Sum(str(reduction), float(value), float(weight))
        for key, (reduction, value, weight) in sums.items()
    }
    return read, {str(key): float(value) for key, value in at_end.items()}


def _alike(first: float, second: float) -> bool:
    both_nan = math.isnan(first) and math.isnan(second)
    return both_nan or math.isclose(first, second, rel_tol=_ALIKE, abs_tol=_ALIKE**2)


def weigh(trainer: Any, numbers: Numbers, comm: Communicator) -> None:
    """Let the loops of a trainer count samples exactly."""
    _Weighed(trainer, trainer.fit_loop.epoch_loop._results, numbers, None)
    for loop in evaluation_loops(trainer):
        _Weighed(trainer, loop._results, numbers, comm)


class _Weighed:
    """Adds numbers to those that a loop logs, with exact weights.

    Lightning halves the number of samples on two ranks as an integer: 597 samples are 298 a rank.

    Args:
        trainer: runs the loop.
        results: the numbers that the loop logs.
        numbers: of the trainer's run.
        comm: of those that log in each step of an evaluation, or a layout; None in training, where
            Lightning gives all ranks batches of the same size.
    """

    def __init__(
        self, trainer: Any, results: Any, numbers: Numbers, comm: Communicator | None
    ) -> None:
        self._trainer = trainer
        self._results = results
        self._numbers = numbers
        self._comm = comm
        self._add = results.update_metrics
        numbers.replaced.replace(results, "update_metrics", self.update)

    def update(self, key: str, value: Any, batch_size: int) -> None:
        """Stand in for a method of Lightning's, which adds the value of one batch."""
        result = self._results[key]
        if not result.is_tensor:
            self._add(key, value, batch_size)
            return
        _reduce_over(self._comm, result.meta.sync)
        if self._only_fills_up():
            nothing = result._defaults["value"].item()
            value = torch.full_like(value, nothing, dtype=result.value.dtype)
            batch_size = 0
        elif result.meta.on_epoch:
            self._numbers.note(key, value, self._trainer.lightning_module)
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
        return self._comm is not None and in_step and self._numbers.replaced.filler

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
    if comm is None or comm.whole is comm or not sync.should:
        return
    if sync.group is not None or sync.rank_zero_only:
        return
    shards: Any = comm.transport

    def among_shards(value: Any, *_: Any, **__: Any) -> Any:
        if shards.world_size == 1:
            return value
        return sync.fn(value, group=shards._group, reduce_op=sync.op)

    sync._fn = among_shards


def outermost(module: nn.Module) -> Iterator[torchmetrics.Metric]:
    """Yield the metrics that are inside no other; a collection is none."""
    if isinstance(module, torchmetrics.Metric):
        yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from outermost(child)

"""Lightning: a callback with which every sample counts once, in metrics and in logged numbers.

Lightning computes a logged metric at the end of the epoch, and each metric then syncs itself, state
by state. The callback puts the state of all ranks into all metrics of the module at once, before
the first of them is computed, and local state back when the loop has logged them. What it changes
in the trainer so that loaders repeat nothing is in ``lightning_loops``; numbers that are logged are
in ``lightning_numbers``.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torchmetrics
from torch import nn

from distmetrics.comm.communicator import Communicator, current, use
from distmetrics.errors import ConfigurationError, StateError
from distmetrics.integrations.lightning_loops import (
    Replaced,
    at_end_of_loaders,
    counted,
    deal_exactly,
    fills_up,
    is_dealt,
    refuse_combined,
)
from distmetrics.integrations.lightning_numbers import Numbers, outermost, weigh
from distmetrics.layouts.communicator import layout as layout_of
from distmetrics.metrics.adapters import roots
from distmetrics.metrics.sync import synced

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback  # type: ignore[assignment,unused-ignore]
else:
    from lightning.pytorch import Callback  # type: ignore[assignment,unused-ignore]

__all__ = ["SyncMetrics"]


class SyncMetrics(Callback):  # type: ignore[misc,unused-ignore]
    """Counts every sample of an evaluation once, and syncs all metrics of the module together.

    Validation and test loaders are dealt out as ``use_distributed_sampler=True`` does it, round by
    round of one batch a rank, but no sample is repeated; with ``use_distributed_sampler=False``
    they stay as they are, as do training loaders, data without an order (an ``IterableDataset``),
    and prediction, where Lightning repeats nothing. Where a rank would have a batch less than
    others it gets one that only fills up: neither metrics nor logged numbers see it.

    ``self.log("loss", loss)`` in a step logs, at the end of the epoch, the mean over all batches of
    all ranks that have logged it, weighted by ``batch_size``, with ``sync_dist=True`` or without,
    in training too; ``reduce_fx`` of another kind is of all of them as well. Not synced: what a
    single step logs without ``sync_dist=True``, and what is logged with ``rank_zero_only=True`` or
    in ``on_validation_epoch_end``. A warning, once a name, tells of a metric's values of batches
    that were logged, if the metric itself has another value, and, in a fit, of numbers logged in
    ``on_validation_epoch_end`` that differ between ranks.

    All metrics are synced at the end of every epoch of each stage, and of each loader that
    evaluates, before Lightning computes what the steps have logged.

    A metric that is reset after it was logged, by Lightning or in ``on_validation_epoch_end``,
    stays reset; every other keeps its local state. Update metrics in the steps: an update in
    ``on_validation_epoch_end`` is too late, and an error.

    Args:
        metrics: names of the module's metrics, such as ``["val_f1", "val_auroc"]``; default all
            that it holds, but for those made with ``sync_on_compute=False``, whose local value is
            wanted. Name them where a module keeps large lists for training that validation need not
            sync.
        layout: what ranks hold along the axes of a mesh, where not each has samples of its own:
            sizes by the usual names, such as ``{"dp": 2, "tp": 2}``; or a function that every rank
            calls, which returns a :class:`~distmetrics.layout` of all ranks. Loaders for
            evaluation are dealt out to its shards. Default: all ranks do, or what is in force.

    Raises:
        StateError: the module has no attribute of such a name, or it is no metric; a metric was
            updated between the sync and the logging (each on the rank where it is so).
        ConfigurationError: along an axis of the layout only one coordinate has values.
        InputError: some ranks have no batch of a loader that is not dealt out here; batches of
            several loaders go together, and some only fill up (on every rank).

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
        self._counts: list[tuple[torchmetrics.Metric, int]] = []
        self._replaced: Replaced | None = None
        self._numbers: Numbers | None = None
        self._told: set[str] = set()  # names of numbers
        self._comm: Communicator | None = None  # of a run
        self._step = contextlib.ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let the trainer deal exactly until it is done, unless another callback has seen to it."""
        comm = self._comm = _ranks(self.layout)
        if Replaced.by_another(trainer):
            return
        self._replaced = replaced = Replaced()
        at_end_of_loaders(trainer, replaced, partial(self._at_end, trainer))
        is_alone = comm.whole.world_size == 1
        has_shares = is_alone or is_dealt(trainer, comm)
        self._numbers = Numbers(replaced, comm if has_shares else None, self._told)
        weigh(trainer, self._numbers, comm)
        if not is_alone:
            deal_exactly(trainer, replaced, comm)

    def _put_back(self) -> None:
        """Leave the trainer as it was."""
        self._step.close()
        if self._replaced is not None:
            self._replaced.put_back()
        self._replaced = self._numbers = self._comm = None

    def _at_end(self, trainer: Any) -> None:
        """Sync at the end of a loader or of an epoch of training: what was logged is computed next.

        All callbacks of this class do so, and one of them sums up the numbers.
        """
        synced_here: list[torchmetrics.Metric] = []
        for callback in trainer.callbacks:
            if isinstance(callback, SyncMetrics):
                callback._enter(trainer.lightning_module)
                synced_here += [metric for metric, _ in callback._counts]
        if self._numbers is not None:
            self._numbers.sum_up(trainer, synced_here)

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
        late = ""
        for metric, count in self._counts:
            if metric._update_count not in (0, count):
                late = late or type(metric).__name__
        self._counts = []
        block.close()
        if late and not failed:
            raise StateError(
                f"SyncMetrics: {late} was updated after the epoch's sync: no value has it",
                do="update metrics in the step, not in a hook after the last batch.",
            )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Put local state back, and refuse what can't be exact."""
        self._leave()
        if self._replaced is not None:
            refuse_combined(trainer._evaluation_loop, (self._comm or current()).whole)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put local state back, and keep it where the batch only fills up."""
        self._leave()
        if self._replaced is not None:
            filler = fills_up(trainer._evaluation_loop, batch_idx, dataloader_idx)
            self._replaced.filler = filler
            self._step.enter_context(counted(pl_module, filler=filler))

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Put back what metrics were, where the batch only filled up."""
        self._step.close()

    on_test_start = on_validation_start
    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Sync: what the epoch has logged is computed after this hook."""
        if self._replaced is not None:
            self._at_end(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Put local state back: the loop has logged, and goes on."""
        if self._numbers is not None:
            self._numbers.note_hooks(trainer._results)
        self._leave()

    on_test_end = on_validation_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put local state back."""
        self._put_back()
        self._leave(failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Put local state back."""
        self._put_back()
        self._leave()

    def _go_on(self, *_: Any, **__: Any) -> None:
        """Put local state back: the loop has logged, and goes on."""
        self._leave()

    on_train_epoch_start = on_train_end = _go_on


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

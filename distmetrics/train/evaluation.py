"""One evaluation, and one prediction: every sample once, whatever the number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from distmetrics.collectives.ops import all_gather_object
from distmetrics.train.config import Limit
from distmetrics.train.data import length, limited, move, no_batch
from distmetrics.train.logbook import LogBook, Stage
from distmetrics.train.run import Run
from distmetrics.train.signatures import check_step
from distmetrics.tree import map_leaves

_FLAGS = {
    "validation": "limit_val_batches",
    "test": "limit_test_batches",
    "predict": "limit_predict_batches",
}


class _Pass:
    """One way through the loaders of an evaluation.

    Args:
        run: whose module and hooks are called.
        name: "validation", "test" or "predict".
        loaders: this rank's.
        limit: a number of batches of each loader on this rank, a fraction, or None.
        log: where values go.
        silent: True calls no callback.
        keep: True keeps what the steps return, as ``outputs``, by loader.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        loaders: Sequence[Any],
        limit: Limit,
        *,
        log: LogBook | None = None,
        silent: bool = False,
        keep: bool = False,
    ) -> None:
        self.run, self.name, self.loaders = run, name, loaders
        self.log, self.silent, self.keep = log, silent, keep
        self.outputs: list[list[Any]] = [[] for _ in loaders]
        strategy, module, step = run.trainer.strategy, run.module, f"{name}_step"
        strategy.align(module)
        self.step = strategy.evaluator(module, step)
        self.step_end = getattr(module, f"{name}_step_end", None)
        check_step(module, run.trainer.callbacks, step, loaders=len(loaders))
        self.limits = [limited(loader, limit, _FLAGS[name]) for loader in loaders]

    def count(self) -> int | None:
        """Return the number of this rank's batches, None where it is not known."""
        total = 0
        for loader, limit in zip(self.loaders, self.limits, strict=True):
            count = length(loader, limit)
            if count is None:
                return None
            total += count
        return total

    def go(self) -> None:
        """Call the step with every batch of this rank, and the hooks around it."""
        for index, (loader, limit) in enumerate(zip(self.loaders, self.limits, strict=True)):
            for batch_idx, batch in enumerate(itertools.islice(loader, limit)):
                self._batch(batch, batch_idx, index)

    def check_batches(self, batches: Mapping[int, int]) -> None:
        """Refuse a loader that gave no rank a batch, on every rank.

        Raises:
            ConfigurationError: there is one.
        """
        for index, limit in enumerate(self.limits):
            number, which = (index, f" {index}") if len(self.loaders) > 1 else (-1, "")
            if limit != 0 and not batches.get(number):
                raise no_batch(f"{self.name} loader{which}")

    def _batch(self, batch: Any, batch_idx: int, loader: int) -> None:
        strategy, call = self.run.trainer.strategy, self.run.call
        batch = strategy.convert(move(batch, strategy.device))
        about = (batch, batch_idx, loader) if len(self.loaders) > 1 else (batch, batch_idx)
        if self.log is not None:
            self.log.begin_step(batch, loader)
        call(f"on_{self.name}_batch_start", *about, callbacks=not self.silent)
        with strategy.forward():
            outputs = self.step(*about)
            if self.step_end is not None:
                outputs = self.step_end(outputs)
        hook = f"on_{self.name}_batch_end"
        call(hook, outputs, *about, callbacks=False)
        if self.log is not None:
            self.log.end_step()
        call(hook, outputs, *about, module=False, callbacks=not self.silent)
        if self.log is not None:
            self.log.leave_batch()
        if self.keep:
            self.outputs[loader].append(outputs)


def evaluate(
    run: Run, stage: Stage, loaders: Sequence[Any], limit: Limit, *, record: bool = True
) -> list[dict[str, float]]:
    """Evaluate the module on each loader; return one dict of the logged values for each.

    Args:
        run: whose module is evaluated.
        stage: "validate" or "test".
        loaders: this rank's; other ranks may have other numbers of batches.
        limit: a number of batches of each loader on this rank, a fraction, or None.
        record: False forgets what is logged, and calls no callback.
    """
    name = "validation" if stage == "validate" else "test"
    log = new_log(run, stage, loaders=len(loaders))
    epoch_end = getattr(run.module, f"{name}_epoch_end", None)
    keep = epoch_end is not None
    each = _Pass(run, name, loaders, limit, log=log, silent=not record, keep=keep)
    with evaluating(run.module), run.logging(log, each.count()):
        run.call(f"on_{name}_start", callbacks=record)
        run.call(f"on_{name}_epoch_start", callbacks=record)
        each.go()
        if epoch_end is not None:
            epoch_end(each.outputs if len(loaders) > 1 else each.outputs[0])
        run.call(f"on_{name}_epoch_end", callbacks=False)
        if record:
            logged = log.close()
            each.check_batches(logged.batches)
    if not record:
        log.discard()
        run.call(f"on_{name}_end", callbacks=False)
        return []
    run.note_epoch(log, logged, stage)
    run.call(f"on_{name}_epoch_end", module=False)
    run.call(f"on_{name}_end")
    return [
        {
            key.label: float(value)
            for key, value in logged.values.items()
            if key.loader in (-1, index)
        }
        for index in range(len(loaders))
    ]


def new_log(run: Run, stage: Stage, *, loaders: int = 1) -> LogBook:
    """Return the log of an epoch that begins."""
    trainer = run.trainer
    strict = trainer.config.require_same_names
    return LogBook(stage, trainer.strategy.comm(), run.module, loaders=loaders, strict=strict)


def predict(
    run: Run, loaders: Sequence[Any], limit: Limit, *, keep: bool
) -> list[list[Any]] | None:
    """Return what ``predict_step`` returned on all ranks, a list a loader, in the data's order.

    Raises:
        InputTypeError: a prediction can't be sent (on every rank).
    """
    each = _Pass(run, "predict", loaders, limit, keep=keep)
    with evaluating(run.module), run.logging(None, each.count()):
        run.call("on_predict_start")
        run.call("on_predict_epoch_start")
        each.go()
        run.call("on_predict_epoch_end")
        run.call("on_predict_end")
    if not keep:
        return None
    own = map_leaves(on_cpu, each.outputs)
    comm = run.trainer.strategy.comm()
    if comm.world_size == 1:  # predictions that can't be sent are fine here
        return own
    ranks = all_gather_object(own, comm=comm, name="predictions")
    return [list(itertools.chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)]


def on_cpu(leaf: Any) -> Any:
    """Return a tensor without its graph, on the CPU; anything else as it is."""
    return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluate without gradients inside the block; each submodule is then in its mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training

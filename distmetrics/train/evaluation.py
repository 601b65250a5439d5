"""One evaluation, and one prediction: every sample once, whatever the number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from distmetrics.collectives.ops import all_gather_object
from distmetrics.train.batches import length, limited, move, no_batch
from distmetrics.train.config import Limit
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

    Attributes:
        limits: the number of batches of each loader, None for all.
    """

    def __init__(self, run: Run, name: str, loaders: Sequence[Any], limit: Limit) -> None:
        self.run, self.name, self.loaders = run, name, loaders
        self.strategy, step = run.trainer.strategy, f"{name}_step"
        self.strategy.align(run.module)
        self.step = self.strategy.evaluator(run.module, step)
        self.step_end = getattr(run.module, f"{name}_step_end", None)
        check_step(run.module, run.trainer.callbacks, step, loaders=len(loaders))
        self.limits = [limited(loader, limit, _FLAGS[name]) for loader in loaders]

    def count(self) -> int | None:
        """Return the number of this rank's batches, None where it is not known."""
        counts = map(length, self.loaders, self.limits)
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(self.loaders) else None

    def outputs(self, *, keep: bool, record: bool = True) -> list[list[Any]]:
        """Return what the steps return for every batch, by loader; ``keep`` False keeps nothing.

        ``record`` False calls no callback.
        """
        outputs: list[list[Any]] = [[] for _ in self.loaders]
        for index, (loader, limit) in enumerate(zip(self.loaders, self.limits, strict=True)):
            for batch_idx, batch in enumerate(itertools.islice(loader, limit)):
                output = self._output(batch, batch_idx, index, record=record)
                if keep:
                    outputs[index].append(output)
        return outputs

    def _output(self, batch: Any, batch_idx: int, loader: int, *, record: bool) -> Any:
        """Call the step with a batch, and the hooks around it."""
        log, call = self.run.trainer.log, self.run.call
        batch = self.strategy.convert(move(batch, self.strategy.device))
        about = (batch, batch_idx, loader) if len(self.loaders) > 1 else (batch, batch_idx)
        if log is not None:
            log.begin_step(batch, loader)
        call(f"on_{self.name}_batch_start", *about, callbacks=record)
        with self.strategy.forward():
            output = self.step(*about)
            if self.step_end is not None:
                output = self.step_end(output)
        hook = f"on_{self.name}_batch_end"
        call(hook, output, *about, callbacks=False)
        if log is not None:
            log.end_step()
        call(hook, output, *about, module=False, callbacks=record)
        if log is not None:
            log.leave_batch()
        return output

    def check_batches(self, batches: Mapping[int, int]) -> None:
        """Refuse a loader that gave no rank a batch, on every rank.

        Raises:
            ConfigurationError: there is one.
        """
        for index, limit in enumerate(self.limits):
            number, which = (index, f" {index}") if len(self.loaders) > 1 else (-1, "")
            if limit != 0 and not batches.get(number):
                raise no_batch(f"{self.name} loader{which}")


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
    each = _Pass(run, name, loaders, limit)
    with evaluating(run.module), run.logging(log, each.count()):
        run.call(f"on_{name}_start", callbacks=record)
        run.call(f"on_{name}_epoch_start", callbacks=record)
        outputs = each.outputs(keep=epoch_end is not None, record=record)
        if epoch_end is not None:
            epoch_end(outputs if len(loaders) > 1 else outputs[0])
        run.call(f"on_{name}_epoch_end", callbacks=False)
        if not record:
            log.discard()
            run.call(f"on_{name}_end", callbacks=False)
            return []
        logged = log.close()
        each.check_batches(logged.batches)
    run.note_epoch(log, logged, stage)
    run.call(f"on_{name}_epoch_end", module=False)
    run.call(f"on_{name}_end")
    results: list[dict[str, float]] = [{} for _ in loaders]
    for key in [key for key in logged.values if key not in logged.aliases]:
        for result in results if key.loader < 0 else [results[key.loader]]:
            result[key.label] = float(logged.values[key])
    return results


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
    each = _Pass(run, "predict", loaders, limit)
    with evaluating(run.module), run.logging(None, each.count()):
        run.call("on_predict_start")
        run.call("on_predict_epoch_start")
        own = each.outputs(keep=keep)
        run.call("on_predict_epoch_end")
        run.call("on_predict_end")
    if not keep:
        return None
    own = map_leaves(on_cpu, own)
    comm = run.trainer.strategy.comm()
    if comm.world_size == 1:  # a prediction that can't be sent is fine here
        return own
    ranks = all_gather_object(own, comm=comm, name="predictions")
    return [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


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

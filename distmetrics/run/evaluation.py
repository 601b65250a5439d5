"""One evaluation, and one prediction: every sample once, whatever the number of ranks."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from distmetrics.message import reading
from distmetrics.run.batches import length, limited, no_batch
from distmetrics.run.config import Limit
from distmetrics.run.context import gathered, note_epoch
from distmetrics.run.logbook import LogBook, Stage, loader_suffix
from distmetrics.run.module import check_step
from distmetrics.run.run import Run
from distmetrics.strategies.base import Entry
from distmetrics.strategies.tensors import to_host
from distmetrics.tree import move

_FLAGS = {
    "validation": "limit_val_batches",
    "test": "limit_test_batches",
    "predict": "limit_predict_batches",
}


@contextmanager
def _pass(
    run: Run,
    name: str,
    loaders: Sequence[Any],
    log: LogBook | None,
    *,
    keep: bool,
) -> Iterator[list[list[Any]]]:
    """Go through loaders and call steps and hooks; the block is the end of the epoch.

    Args:
        run: whose module and hooks are called.
        name: "validation", "test" or "predict".
        loaders: this rank's.
        log: where values go that steps log, if they may.
        keep: True yields what the steps return for every batch, by loader; False keeps nothing.
    """
    module, call, strategy = run.module, run.call, run.trainer.strategy
    record, limit = not run.trainer.sanity_checking, _limit(run, name)
    strategy.align(module)
    step = strategy.evaluation_call(Entry(module))
    step_end = getattr(module, f"{name}_step_end", None)
    check_step(module, run.trainer.callbacks, f"{name}_step", loaders=len(loaders))
    limits = [limited(loader, limit, _FLAGS[name]) for loader in loaders]
    counts = list(map(length, loaders, limits))

    def output_of(batch: Any, *place: int) -> Any:
        about = (strategy.convert(move(batch, strategy.device)), *place)
        if log is not None:
            log.begin_step(about[0], *place[1:])
        call(f"on_{name}_batch_start", *about, callbacks=record)
        with strategy.forward():
            output = step((about, {}), f"{name}_step")
            if step_end is not None:
                output = step_end(output)
        call(f"on_{name}_batch_end", output, *about, callbacks=False)
        if log is not None:
            log.end_step()
        call(f"on_{name}_batch_end", output, *about, module=False, callbacks=record)
        if log is not None:
            log.leave_batch()
        return output

    total = None if None in counts else sum(filter(None, counts))
    with evaluating(module), run.logging(log, total):
        call(f"on_{name}_start", callbacks=record)
        call(f"on_{name}_epoch_start", callbacks=record)
        outputs: list[list[Any]] = [[] for _ in loaders]
        for index, loader in enumerate(loaders):
            which = (index,) if len(loaders) > 1 else ()
            # Past the wrapper, which counts epochs: the user's samplers keep theirs.
            for number, batch in enumerate(itertools.islice(loader.loader, limits[index])):
                output = output_of(batch, number, *which)
                if keep:
                    outputs[index].append(output)
        yield outputs


def _limit(run: Run, name: str) -> Limit:
    """Return how much of each loader to use on this rank, as the flags say."""
    config = run.trainer.config
    if run.trainer.sanity_checking:
        return None if config.num_sanity_val_steps < 0 else config.num_sanity_val_steps
    limit: Limit = getattr(config, _FLAGS[name])
    return limit


def evaluate(run: Run, stage: Stage, loaders: Sequence[Any]) -> list[dict[str, float]]:
    """Evaluate the module on each loader; return one dict of the logged values for each.

    A sanity check forgets what is logged, calls no callback, and returns nothing.

    Args:
        run: whose module is evaluated.
        stage: "validate" or "test".
        loaders: this rank's; other ranks may have other numbers of batches.
    """
    name = "validation" if stage == "validate" else "test"
    log = new_log(run, stage, loaders=len(loaders))
    epoch_end = getattr(run.module, f"{name}_epoch_end", None)
    keep = epoch_end is not None
    with _pass(run, name, loaders, log, keep=keep) as outputs:
        if epoch_end is not None:
            epoch_end(outputs if len(loaders) > 1 else outputs[0])
        run.call(f"on_{name}_epoch_end", callbacks=False)
        if run.trainer.sanity_checking:
            run.call(f"on_{name}_end", callbacks=False)
            return []
        logged = log.close()
        suffixes = [loader_suffix(index, len(loaders)) for index in range(len(loaders))]
        for index, suffix in enumerate(suffixes) if _limit(run, name) != 0 else ():
            if suffix not in logged.batches:
                raise no_batch(f"{name} loader {index}" if suffix else f"{name} loader")
    note_epoch(run.trainer, log, logged, stage)
    run.call(f"on_{name}_epoch_end", module=False)
    run.call(f"on_{name}_end")
    results: list[dict[str, float]] = [{} for _ in loaders]
    for label in [label for label in logged.values if label not in logged.aliases]:
        is_of_one = label.endswith(tuple(suffixes))
        for suffix, result in zip(suffixes, results, strict=True):
            if label.endswith(suffix) or not is_of_one:
                result[label] = logged.values[label]
    return results


def new_log(run: Run, stage: Stage, *, loaders: int = 1) -> LogBook:
    """Return the log of an epoch that begins."""
    strict = run.trainer.config.require_same_names
    pickles = run.trainer.config.allow_pickle
    return LogBook(
        stage, run.shards, run.module, loaders=loaders, strict=strict, allow_pickle=pickles
    )


def predict(run: Run, loaders: Sequence[Any], *, keep: bool) -> list[list[Any]] | None:
    """Return what ``predict_step`` returned on all ranks, a list a loader, in the data's order.

    Raises:
        InputTypeError: a prediction is no data, and the trainer's ``allow_pickle`` is False (on
            every rank).
    """
    with _pass(run, "predict", loaders, None, keep=keep) as own:
        run.call("on_predict_epoch_end")
        run.call("on_predict_end")
    if not keep:
        return None
    own = to_host(own)
    if run.shards.world_size == 1:  # a prediction that can't be sent is fine here
        return own
    ranks = gathered(run.trainer, own, "predictions", comm=run.shards)
    with reading("predictions"):
        by_loader = list(zip(*ranks, strict=True))
        return [list(itertools.chain(*parts)) for parts in by_loader]


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

"""What a checkpoint holds, and how a fit goes on from one as if nothing had happened."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn
from torch.utils.data import RandomSampler

from distmetrics._version import __version__
from distmetrics.errors import ConfigurationError
from distmetrics.train import seed
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.context import RunContext, gathered
from distmetrics.train.fit_state import EpochRng, FitState
from distmetrics.train.metric_state import load_states, merged, metric_states, metrics_in
from distmetrics.train.module import Module


def checkpoint(
    trainer: RunContext, module: Module, fit: FitState, *, alone: bool = False
) -> dict[str, Any]:
    """Return what a checkpoint holds, of plain types; every rank must call it.

    ``ranks`` has what each rank has of its own: random generators, metric states, the epoch's log
    so far, and between two steps of an update the gradients.

    Args:
        trainer: which runs the fit.
        module: which is trained.
        fit: what the fit works with.
        alone: True asks no other rank: for the one that is left.
    """
    strategy, optimizers = trainer.strategy, fit.optimizers
    own = _rank_state(module, fit)
    content: dict[str, Any] = {
        "distmetrics_version": __version__,
        "epoch": fit.progress.epoch,
        "global_step": fit.progress.global_step,
        "state_dict": strategy.weights(module),
        "optimizer_states": [strategy.optimizer_state(module, each) for each in optimizers],
        "optimizers": [type(each).__name__ for each in optimizers],
        "strategy_state": strategy.state(),
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in fit.schedules],
        "callbacks": {key: each.state_dict() for key, each in _by_key(trainer.callbacks).items()},
        "hyper_parameters": dict(module.hparams),
        "position": asdict(fit.progress),
        "batch_size": getattr(fit.train_loader, "batch_size", None),
        **trainer.values.state(),
        "ranks": [own] if alone else gathered(trainer, own, "checkpoint"),
    }
    if trainer.datamodule is not None:
        content["datamodule_hyper_parameters"] = dict(trainer.datamodule.hparams)
        content["datamodule"] = trainer.datamodule.state_dict()
    return content


def _rank_state(module: Module, fit: FitState) -> dict[str, Any]:
    at_start: EpochRng = {}, seed.generator_states(fit.train_loader)
    if fit.progress.is_within_epoch and fit.epoch_rng is not None:
        at_start = fit.epoch_rng
    return {
        "rng": seed.states(),
        "epoch_rng": at_start[0],
        "loader_rng": at_start[1],
        "val_loader_rng": [seed.generator_states(loader) for loader in fit.val_loaders],
        "metrics": metric_states(metrics_in(module)),
        "log": None if fit.log is None else fit.log.state(),
        "outputs": list(fit.outputs),
        "gradients": _gradients(module) if fit.progress.pending else {},
    }


def _gradients(module: nn.Module) -> dict[str, Any]:
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name: each.detach().cpu() for name, each in gradients.items() if each is not None}


def _by_key(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by what a checkpoint keeps their states under; equal keys are numbered."""
    by_key: dict[str, Callback] = {}
    for callback in callbacks:
        key, number = callback.state_key, 2
        while key in by_key:
            key, number = f"{callback.state_key}#{number}", number + 1
        by_key[key] = callback
    return by_key


def restore(trainer: RunContext, module: Module, fit: FitState, content: Mapping[str, Any]) -> None:
    """Put a checkpoint in place, after the strategy's set-up; every rank must call it.

    Raises:
        ConfigurationError: it was taken of another set-up.
    """
    _check_same_setup(fit, content)
    strategy = trainer.strategy
    strategy.load_weights(module, content["state_dict"])
    for optimizer, state in zip(fit.optimizers, content["optimizer_states"], strict=True):
        strategy.load_optimizer_state(module, optimizer, state)
    strategy.load_state(content["strategy_state"])
    for schedule, state in zip(fit.schedules, content["lr_schedulers"], strict=True):
        schedule.scheduler.load_state_dict(state)
    for key, callback in _by_key(trainer.callbacks).items():
        if content["callbacks"].get(key):  # one that was not there starts anew
            callback.load_state_dict(content["callbacks"][key])
    if trainer.datamodule is not None and content.get("datamodule"):
        trainer.datamodule.load_state_dict(content["datamodule"])
    trainer.values.load(content)
    _restore_progress(trainer, fit, content)
    _restore_rank(trainer, module, fit, content["ranks"])


def _check_same_setup(fit: FitState, content: Mapping[str, Any]) -> None:
    for what, mine in (("optimizer_states", fit.optimizers), ("lr_schedulers", fit.schedules)):
        count = len(content.get(what, ()))
        if count != len(mine):
            raise ConfigurationError(f"the checkpoint has {count} {what}, and the fit {len(mine)}")
    kinds = [type(each).__name__ for each in fit.optimizers]
    saved = content.get("optimizers", kinds)
    if saved != kinds:
        raise ConfigurationError(
            f"the checkpoint has the state of {', '.join(saved)}, and the fit steps "
            f"{', '.join(kinds)}",
            do="go on with the optimizers that it was taken of, or load its weights alone: "
            "Module.load_from_checkpoint.",
        )


def _restore_progress(trainer: RunContext, fit: FitState, content: Mapping[str, Any]) -> None:
    """Take up the position; in the middle of an epoch as that of as many samples."""
    progress = fit.progress
    counts = {name: content[name] for name in ("epoch", "global_step")}
    progress.load({**content["position"], **counts})
    if progress.epoch_is_over:
        progress.begin_epoch(progress.epoch + 1)
    before, after = len(content["ranks"]), trainer.world_size
    size, own = content["batch_size"] or 0, getattr(fit.train_loader, "batch_size", None) or 0
    is_same = before == after and (size == own or not size or not own)
    if progress.batches == 0 or is_same:
        return
    samples, step = progress.batches * before * size, own * after
    if not (samples and step) or samples % step or progress.pending:
        raise ConfigurationError(
            f"the checkpoint was taken on {before} ranks, in the middle of an epoch: after "
            f"{progress.batches} batches of {size} on each; {after} ranks with batches of {own} "
            "have no such place",
            do=f"use {before} ranks, a batch size with which {after} ranks take as many samples "
            "a step, or a checkpoint of the end of an epoch.",
        )
    if progress.validated_at == progress.batches:
        progress.validated_at = samples // step
    progress.batches = samples // step
    orders_differ = before != after and min(before, after) == 1 and _shuffles(fit.train_loader)
    if trainer.is_global_zero and orders_differ:
        warnings.warn(
            "the checkpoint was taken in the middle of an epoch on another number of ranks, and "
            "one process shuffles in another order than several: the rest of this epoch may "
            "repeat samples. Go on with as many ranks, or from the end of an epoch.",
            stacklevel=2,
        )


def _shuffles(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
    return isinstance(getattr(sampler, "source", sampler), RandomSampler)


def _restore_rank(
    trainer: RunContext, module: Module, fit: FitState, ranks: Sequence[Mapping[str, Any]]
) -> None:
    """Give this rank its own state, or with another number of ranks rank 0 the state of all."""
    rank, metrics = trainer.global_rank, metrics_in(module)
    own = ranks[rank] if rank < len(ranks) else ranks[0]
    for metric in metrics.values():
        metric.reset()
    if trainer.world_size == len(ranks):
        mine = [own]
        load_states(metrics, own["metrics"])
        parameters = dict(module.named_parameters())
        for name, gradient in own["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
    else:
        mine = list(ranks) if rank == 0 else []
        if rank == 0:
            load_states(metrics, merged(metrics, [state["metrics"] for state in ranks]))
    fit.outputs = [output for state in mine for output in state["outputs"]]
    for loader, states in zip(fit.val_loaders, own["val_loader_rng"], strict=False):
        seed.load_generators(loader, states)
    fit.resumed = {
        "logs": [state["log"] for state in mine if state["log"] is not None],
        "epoch_rng": own["epoch_rng"],
        "rng": own["rng"] if rank < len(ranks) else seed.states(),
        "loader_rng": own["loader_rng"],
    }

"""What a checkpoint holds, and how a fit goes on from one as if nothing had happened."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distmetrics._version import __version__
from distmetrics.collectives.ops import all_gather_object
from distmetrics.errors import ConfigurationError
from distmetrics.train import seed
from distmetrics.train.metric_state import load_states, merged, metric_states, metrics_in

if TYPE_CHECKING:
    from distmetrics.train.callbacks.base import Callback
    from distmetrics.train.loops import Run
    from distmetrics.train.state import TrainerState

_VALUES = ("callback_metrics", "logged_metrics")
_NAMES = ("local_metrics", "fresh_metrics", "validation_metrics")


def checkpoint(trainer: TrainerState, run: Run, *, alone: bool = False) -> dict[str, Any]:
    """Return what a checkpoint holds, of plain types; called on every rank, or on one ``alone``
    that is left.

    ``ranks`` has what each rank has of its own: random generators, metric states, the epoch's log
    so far, and between two steps of an update the gradients.
    """
    own = _rank_state(trainer, run)
    content: dict[str, Any] = {
        "distmetrics_version": __version__,
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "state_dict": trainer.strategy.weights(run.module),
        "optimizer_states": [
            trainer.strategy.optimizer_state(run.module, each) for each in run.optimizers
        ],
        "optimizers": [type(each).__name__ for each in run.optimizers],
        "strategy_state": trainer.strategy.state(),
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in run.schedules],
        "callbacks": callback_states(trainer.callbacks),
        "hyper_parameters": dict(run.module.hparams),
        "position": dataclasses.asdict(trainer.position),
        "batch_size": getattr(run.train_loader, "batch_size", None),
        "values": {name: _cpu(getattr(trainer, name)) for name in _VALUES},
        "names": {name: sorted(getattr(trainer, name)) for name in _NAMES},
        "ranks": [own]
        if alone
        else all_gather_object(own, comm=trainer.strategy.comm(), name="checkpoint"),
    }
    if trainer.datamodule is not None:
        content["datamodule_hyper_parameters"] = dict(trainer.datamodule.hparams)
        content["datamodule"] = trainer.datamodule.state_dict()
    trainer.call("on_save_checkpoint", content)
    return content


def _cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in values.items()}


def _rank_state(trainer: TrainerState, run: Run) -> dict[str, Any]:
    position = trainer.position
    within = position.batches > 0 and not position.epoch_is_over
    epoch_rng, loader_rng = (
        run.begun if within and run.begun else ({}, seed.generator_states(run.train_loader))
    )
    return {
        "rng": seed.states(),
        "epoch_rng": epoch_rng,
        "loader_rng": loader_rng,
        "val_loader_rng": [seed.generator_states(loader) for loader in run.val_loaders],
        "metrics": metric_states(metrics_in(run.module)),
        "log": None if run.log is None else run.log.state(),
        "outputs": list(run.outputs),
        "gradients": _gradients(run.module) if position.pending else {},
    }


def _gradients(module: nn.Module) -> dict[str, Any]:
    return {
        name: p.grad.detach().cpu() for name, p in module.named_parameters() if p.grad is not None
    }


def callback_states(callbacks: Iterable[Callback]) -> dict[str, Any]:
    """Return the states of callbacks by their keys; those of equal ones are numbered."""
    return {key: callback.state_dict() for key, callback in _keyed(callbacks).items()}


def load_callbacks(callbacks: Iterable[Callback], saved: Mapping[str, Any]) -> None:
    """Put back what :func:`callback_states` returned; a callback that was not there starts anew."""
    for key, callback in _keyed(callbacks).items():
        if saved.get(key):
            callback.load_state_dict(saved[key])


def _keyed(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    found: dict[str, Callback] = {}
    for callback in callbacks:
        key, number = callback.state_key, 2
        while key in found:
            key, number = f"{callback.state_key}#{number}", number + 1
        found[key] = callback
    return found


def restore(trainer: TrainerState, run: Run, content: dict[str, Any]) -> None:
    """Put a checkpoint in place, after the strategy's set-up; called on every rank.

    Raises:
        ConfigurationError: it was taken of another set-up.
    """
    trainer.call("on_load_checkpoint", content)
    for what, mine in (("optimizer_states", run.optimizers), ("lr_schedulers", run.schedules)):
        if len(content.get(what, ())) != len(mine):
            raise ConfigurationError(
                f"the checkpoint has {len(content.get(what, ()))} {what}, and the fit {len(mine)}"
            )
    kinds = [type(each).__name__ for each in run.optimizers]
    taken = content.get("optimizers", kinds)
    if taken != kinds:
        raise ConfigurationError(
            f"the checkpoint has the state of {', '.join(taken)}, and the fit steps "
            f"{', '.join(kinds)}",
            do="go on with the optimizers that it was taken of, or load its weights alone: "
            "Module.load_from_checkpoint.",
        )
    trainer.strategy.load_weights(run.module, content["state_dict"])
    for optimizer, state in zip(run.optimizers, content["optimizer_states"], strict=True):
        trainer.strategy.load_optimizer_state(run.module, optimizer, state)
    trainer.strategy.load_state(content["strategy_state"])
    for schedule, state in zip(run.schedules, content["lr_schedulers"], strict=True):
        schedule.scheduler.load_state_dict(state)
    load_callbacks(trainer.callbacks, content["callbacks"])
    if trainer.datamodule is not None and content.get("datamodule"):
        trainer.datamodule.load_state_dict(content["datamodule"])
    for name, values in content["values"].items():
        setattr(trainer, name, dict(values))
    for name, names in content["names"].items():
        setattr(trainer, name, set(names))
    trainer.current_epoch, trainer.global_step = content["epoch"], content["global_step"]
    _restore_position(trainer, run, content)
    _restore_rank(trainer, run, content["ranks"])


def _restore_position(trainer: TrainerState, run: Run, content: Mapping[str, Any]) -> None:
    position = trainer.position = type(trainer.position)(**content["position"])
    if position.epoch_is_over:
        trainer.current_epoch += 1
        trainer.position = type(position)()
        return
    before, after = len(content["ranks"]), trainer.world_size
    size, mine = content["batch_size"] or 0, getattr(run.train_loader, "batch_size", None) or 0
    if position.batches == 0 or (before == after and (size == mine or not size or not mine)):
        return
    samples = position.batches * before * size
    if not samples or not mine or samples % (mine * after) or position.pending:
        raise ConfigurationError(
            f"the checkpoint was taken on {before} ranks, in the middle of an epoch: after "
            f"{position.batches} batches "
            f"of {size} on each; {after} ranks with batches of {mine} have no such place",
            do=f"use {before} ranks, a batch size with which {after} ranks take as many samples "
            "a step, or a "
            "checkpoint of the end of an epoch.",
        )
    if position.validated_at == position.batches:
        position.validated_at = samples // (mine * after)
    position.batches = samples // (mine * after)
    if (
        trainer.is_global_zero
        and before != after
        and min(before, after) == 1
        and _shuffles(run.train_loader)
    ):
        warnings.warn(
            "the checkpoint was taken in the middle of an epoch on another number of ranks, and "
            "one process shuffles "
            "in another order than several: the rest of this epoch may repeat samples. Go on "
            "with as many ranks, or "
            "from the end of an epoch.",
            stacklevel=2,
        )


def _shuffles(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
    return isinstance(getattr(sampler, "source", sampler), torch.utils.data.RandomSampler)


def _restore_rank(trainer: TrainerState, run: Run, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Give this rank what is its own: its old state, or with another number of ranks rank 0 what
    all had.
    """
    comm, metrics = trainer.strategy.comm(), metrics_in(run.module)
    if comm.world_size == len(ranks):
        mine = [ranks[comm.rank]]
        load_states(metrics, mine[0]["metrics"])
    else:
        mine = list(ranks) if comm.rank == 0 else []
        for metric in metrics.values():
            metric.reset()
        if comm.rank == 0:
            load_states(metrics, merged(metrics, [state["metrics"] for state in ranks]))
    run.outputs = [output for state in mine for output in state["outputs"]]
    own = ranks[comm.rank] if comm.rank < len(ranks) else ranks[0]
    for loader, states in zip(run.val_loaders, own["val_loader_rng"], strict=False):
        seed.load_generators(loader, states)
    if comm.world_size == len(ranks):
        parameters = dict(run.module.named_parameters())
        for name, gradient in own["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
    run.resumed = {
        "logs": [state["log"] for state in mine if state["log"] is not None],
        "epoch_rng": own["epoch_rng"],
        "rng": own["rng"] if comm.rank < len(ranks) else seed.states(),
        "loader_rng": own["loader_rng"],
    }

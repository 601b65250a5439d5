"""Checkpoints of a fit: what they hold, how they are written, and how a fit goes on from one."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.utils.data import RandomSampler

from distmetrics._version import __version__
from distmetrics.collectives.ops import barrier
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import ConfigurationError, DivergedError, MismatchError, PeerLostError
from distmetrics.run import seed
from distmetrics.run.callbacks import Callback, ModelCheckpoint
from distmetrics.run.checkpoint_file import write
from distmetrics.run.context import LoopProgress, gathered
from distmetrics.run.fit import EpochRng, Fit
from distmetrics.run.metric_state import load_states, merged, metric_states, metrics_in
from distmetrics.run.run import Run


def write_checkpoint(run: Run, paths: Sequence[Path], drop: Sequence[Path]) -> None:
    """Write a checkpoint of the fit on rank 0, and remove files; every rank must call it."""
    content = checkpoint(run)
    if run.comm.rank == 0:
        for path in dict.fromkeys(paths):
            write(content, path)
        for path in drop:
            path.unlink(missing_ok=True)
    barrier(comm=run.comm, name="checkpoint")


def checkpoint(run: Run, *, alone: bool = False) -> dict[str, Any]:
    """Return what a checkpoint of the fit under way holds, with what hooks add.

    All of it is of plain types. ``ranks`` has what each rank has of its own: random generators,
    metric states, the epoch's log so far, and between two steps of an update the gradients.
    Every rank must call it; ``alone`` asks no other rank: for the one that is left.
    """
    fit: Fit = run.trainer.fit_state
    own = _rank_state(fit)
    content = _content(fit)
    content["ranks"] = [own] if alone else gathered(run.trainer, own, "checkpoint")
    run.call("on_save_checkpoint", content)
    return content


def _content(fit: Fit) -> dict[str, Any]:
    """Return what a checkpoint holds that is the same on every rank."""
    trainer, module = fit.trainer, fit.module
    callbacks = _by_key(trainer.callbacks)
    content = {
        "distmetrics_version": __version__,
        "epoch": fit.progress.epoch,
        "global_step": fit.progress.global_step,
        "state_dict": fit.model.state_dict(),
        "optimizer_states": [each.state_dict() for each in fit.optimizers],
        "optimizers": [type(each.optimizer).__name__ for each in fit.optimizers],
        "strategy_state": trainer.strategy.precision.state(),
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in fit.schedules],
        "callbacks": {key: each.state_dict() for key, each in callbacks.items()},
        "hyper_parameters": dict(module.hparams),
        "position": asdict(fit.progress),
        "batch_size": getattr(fit.train_loader, "batch_size", None),
        **trainer.values.state(),
    }
    data = trainer.datamodule
    if data is not None:
        content["datamodule_hyper_parameters"] = dict(data.hparams)
        content["datamodule"] = data.state_dict()
    return content


def _rank_state(fit: Fit) -> dict[str, Any]:
    at_start: EpochRng = {}, seed.generator_states(fit.train_loader)
    is_within_epoch = fit.progress.batches > 0 and not fit.progress.epoch_is_over
    if is_within_epoch and fit.epoch_rng is not None:
        at_start = fit.epoch_rng
    gradients = {}
    if fit.progress.pending:
        for name, parameter in fit.module.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.detach().cpu()
    return {
        "shard": fit.run.shards.rank,
        "rng": seed.states(),
        "epoch_rng": at_start[0],
        "loader_rng": at_start[1],
        "val_loader_rng": [seed.generator_states(loader) for loader in fit.val_loaders],
        "metrics": metric_states(metrics_in(fit.module)),
        "log": None if fit.log is None else fit.log.state(),
        "outputs": list(fit.outputs),
        "gradients": gradients,
        "weights": fit.runner.weights_of(fit.model),
    }


def _by_key(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by what a checkpoint keeps their states under; equal keys are numbered."""
    by_key = {}
    for callback in callbacks:
        key, number = callback.state_key, 2
        while key in by_key:
            key, number = f"{callback.state_key}#{number}", number + 1
        by_key[key] = callback
    return by_key


def restore(fit: Fit, content: Mapping[str, Any]) -> None:
    """Put a checkpoint in place, after the strategy's set-up; every rank must call it.

    Raises:
        ConfigurationError: it was taken of another set-up.
    """
    _check_same_setup(fit, content)
    trainer = fit.trainer
    fit.model.load_state_dict(content["state_dict"])
    for optimizer, state in zip(fit.optimizers, content["optimizer_states"], strict=True):
        optimizer.load_state_dict(state)
    strategy = trainer.strategy
    strategy.precision.load_state(content["strategy_state"])
    for schedule, state in zip(fit.schedules, content["lr_schedulers"], strict=True):
        schedule.scheduler.load_state_dict(state)
    for key, callback in _by_key(trainer.callbacks).items():
        state = content["callbacks"].get(key)
        if state:  # one that was not there starts anew
            callback.load_state_dict(state)
    if trainer.datamodule is not None and content.get("datamodule"):
        trainer.datamodule.load_state_dict(content["datamodule"])
    trainer.values.load(content)
    _restore_progress(fit, content)
    _restore_rank(fit, content["ranks"])


def _check_same_setup(fit: Fit, content: Mapping[str, Any]) -> None:
    for what, mine in (("optimizer_states", fit.optimizers), ("lr_schedulers", fit.schedules)):
        count = len(content.get(what, ()))
        if count != len(mine):
            raise ConfigurationError(f"the checkpoint has {count} {what}, and the fit {len(mine)}")
    kinds = [type(each.optimizer).__name__ for each in fit.optimizers]
    saved = content.get("optimizers", kinds)
    if saved != kinds:
        raise ConfigurationError(
            f"the checkpoint has the state of {', '.join(saved)}, and the fit steps "
            f"{', '.join(kinds)}",
            do="go on with the optimizers that it was taken of, or load its weights alone: "
            "Module.load_from_checkpoint.",
        )


def _restore_progress(fit: Fit, content: Mapping[str, Any]) -> None:
    """Restore the position; in the middle of an epoch by the samples seen."""
    trainer, progress = fit.trainer, fit.progress
    counts = {name: content[name] for name in ("epoch", "global_step")}
    progress.load({**content["position"], **counts})
    if progress.epoch_is_over:
        progress.begin_epoch(progress.epoch + 1)
    before = len(_one_a_shard(content["ranks"]))
    after = fit.run.shards.world_size
    size = content["batch_size"] or 0
    own = getattr(fit.train_loader, "batch_size", None) or 0
    is_same = before == after and (size == own or not size or not own)
    if progress.batches == 0 or is_same:
        return
    samples = progress.batches * before * size
    step = own * after
    is_a_place = samples and step and samples % step == 0
    if not is_a_place or progress.pending:
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


def _one_a_shard(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the states of ranks, of those with the same samples the first one's alone."""
    by_shard: dict[int, Mapping[str, Any]] = {}
    for rank, state in enumerate(ranks):
        by_shard.setdefault(state.get("shard", rank), state)
    return [by_shard[shard] for shard in sorted(by_shard)]


def _shuffles(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
    return isinstance(getattr(sampler, "source", sampler), RandomSampler)


def _restore_rank(fit: Fit, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Give this rank its own state, or with another number of ranks rank 0 the state of all."""
    run = fit.run
    rank, metrics = run.comm.rank, metrics_in(run.module)
    own = ranks[rank] if rank < len(ranks) else ranks[0]
    for metric in metrics.values():
        metric.reset()
    if run.comm.world_size == len(ranks):
        mine = [own]
        load_states(metrics, own["metrics"])
        parameters = dict(run.module.named_parameters())
        for name, gradient in own["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
        if own.get("weights") is not None:
            fit.runner.load_weights_of(fit.model, own["weights"])
    else:
        mine = _one_a_shard(ranks) if run.shards.rank == 0 else []
        if mine:
            load_states(metrics, merged(metrics, [state["metrics"] for state in mine]))
    fit.outputs = [output for state in mine for output in state["outputs"]]
    for loader, states in zip(fit.val_loaders, own["val_loader_rng"], strict=False):
        seed.load_generators(loader, states)
    fit.resumed = {
        "logs": [state["log"] for state in mine if state["log"] is not None],
        "epoch_rng": own["epoch_rng"],
        "rng": own["rng"] if rank < len(ranks) else seed.states(),
        "loader_rng": own["loader_rng"],
    }


def save_emergency_checkpoint(run: Run, error: BaseException) -> None:
    """Save a fit that has lost ranks, on one that is left; what can't be saved is a warning.

    It is the lowest rank that the error is not about that saves, into the folder of a
    :class:`ModelCheckpoint`. A fit goes on from the file at the beginning of its epoch.
    """
    trainer = run.trainer
    lost: Any = error
    if isinstance(run.comm, GroupCommunicator) and isinstance(error, RuntimeError):
        lost = run.comm.blame(error)  # DDP's own connections do not name who is lost
    keepers = [each for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]
    is_fit = trainer.fit_state is not None and trainer.strategy.whole_on_each_rank
    is_lost = isinstance(lost, PeerLostError | DivergedError | MismatchError)
    if not (keepers and is_fit and is_lost):
        return
    rank, left = trainer.global_rank, set(range(trainer.world_size)) - set(lost.peers)
    if rank != min(left, default=0):
        return
    path = keepers[0].folder(trainer) / "rescued.ckpt"
    try:
        content = checkpoint(run, alone=True)
        content["position"] = asdict(LoopProgress(content["epoch"], content["global_step"]))
        own = content["ranks"][0]
        own.update(metrics={}, log=None, outputs=[], gradients={}, weights=None)
        write(content, path)
    except Exception as problem:  # noqa: BLE001  (whatever a hook raises: the first error goes on)
        warnings.warn(f"no last checkpoint is saved: {problem!r}", stacklevel=2)
    else:
        step = trainer.global_step
        error.add_note(f"rank {rank} has saved the weights after step {step}: {path}")

"""One call of the trainer on one rank: set up, do it, tear down."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distmetrics.arguments import FLAG, PATH, check
from distmetrics.collectives.ops import all_gather_object, any_true, barrier
from distmetrics.errors import ConfigurationError
from distmetrics.train import seed as random_state
from distmetrics.train.batches import check_not_empty
from distmetrics.train.callbacks.model_checkpoint import kept_checkpoint
from distmetrics.train.checkpoint import restore
from distmetrics.train.checkpoint_file import load_checkpoint
from distmetrics.train.config import TrainerConfig
from distmetrics.train.context import RunContext
from distmetrics.train.dataloaders import Call, Dataloaders, DataModule
from distmetrics.train.emergency_checkpoint import save_emergency_checkpoint
from distmetrics.train.evaluation import evaluate, predict
from distmetrics.train.fit_loop import FitLoop
from distmetrics.train.fit_setup import dealt, planned_fit
from distmetrics.train.fit_state import FitState
from distmetrics.train.logged_values import LoggedValues
from distmetrics.train.metric_state import load_states, metric_states, metrics_in
from distmetrics.train.module import Module
from distmetrics.train.progress import LoopProgress
from distmetrics.train.run import Run
from distmetrics.train.teardown import call_all

_TAKES = {
    "ckpt_path": PATH._replace(wanted="the path of a checkpoint, 'best' or 'last'").or_none(),
    "weights_only": FLAG,
    "return_predictions": FLAG,
}


@dataclass(frozen=True)
class Start:
    """How a call begins, and what it returns.

    Attributes:
        ckpt_path: the checkpoint to begin with: a file, "best", "last", or None.
        weights_only: True if that may hold nothing but tensors and plain values.
        return_predictions: True if predictions are returned.
    """

    ckpt_path: str | Path | None = None
    weights_only: bool = True
    return_predictions: bool = True

    def __post_init__(self) -> None:
        check("Trainer", vars(self), _TAKES)


@dataclass
class Session:
    """One call of the trainer on one rank.

    Attributes:
        run: whose module it is about, and who hears of it.
        data: the loaders, or where they come from.
        call: what to do.
        start: how it begins.
    """

    run: Run
    data: Dataloaders
    call: Call
    start: Start

    def conduct(self) -> Any:
        """Do what ``call`` says in this process, as one of the ranks."""
        trainer, module = self.run.trainer, self.run.module
        outer = module._trainer
        module._trainer = trainer
        status = "failed"
        try:
            _seed_all(trainer)
            with _algorithms(trainer.config):
                content = self._set_up()
                results = None
                if self.call == "fit":
                    self._fit(content)
                else:
                    results = self._evaluate(content)
            status = "success"
            return results
        except BaseException as error:
            save_emergency_checkpoint(self.run, error)
            hooks = [callback.on_exception for callback in trainer.callbacks]
            call_all([(hook, (trainer, module, error)) for hook in hooks], error)
            raise
        finally:
            try:
                self._tear_down(status)
            finally:
                if outer is not None and outer.run is not None and outer.run.module is module:
                    module._trainer = outer  # a fit of the other trainer goes on

    def _set_up(self) -> dict[str, Any] | None:
        """Prepare data and loggers, place the module, and read the checkpoint to begin with."""
        trainer, module, data = self.run.trainer, self.run.module, self.data.datamodule
        owners: list[Module | DataModule] = [module] if data is None else [data, module]
        trainer.datamodule = data
        if data is not None:
            data.trainer = trainer
        if trainer.strategy.local_rank == 0:
            for owner in owners:
                owner.prepare_data()
        barrier(comm=trainer.strategy.comm(), name="prepare_data")
        for owner in owners:
            owner.setup(self.call)
        for callback in trainer.callbacks:
            callback.setup(trainer, module, self.call)
        content = None
        if self.start.ckpt_path is not None:
            path = self._checkpoint_path(self.start.ckpt_path)
            if path is not None:
                content = load_checkpoint(path, weights_only=self.start.weights_only)
        _start_loggers(trainer, owners)
        trainer.strategy.place(module)
        return content

    def _checkpoint_path(self, wanted: str | Path) -> Path | None:
        """Return the checkpoint that ``ckpt_path`` means; rank 0 looks for the "best" or "last"."""
        trainer = self.run.trainer
        if wanted not in ("best", "last"):
            return Path(wanted)
        answer = kept_checkpoint(trainer, str(wanted)) if trainer.is_global_zero else (None, "")
        path, problem = all_gather_object(answer, comm=trainer.strategy.comm(), name="ckpt_path")[0]
        if path is None and (wanted == "best" or self.call != "fit"):
            raise ConfigurationError(f"ckpt_path={wanted!r}: {problem}", rank=trainer.global_rank)
        return None if path is None else Path(path)

    def _tear_down(self, status: str) -> None:
        trainer, module, data = self.run.trainer, self.run.module, self.data.datamodule
        calls: list[Any] = [
            (callback.teardown, (trainer, module, self.call)) for callback in trainer.callbacks
        ]
        calls.append((module.teardown, (self.call,)))
        loggers = trainer.loggers if trainer.is_global_zero else []
        calls += [(logger.finalize, (status,)) for logger in loggers]
        if data is not None:
            calls.append((data.teardown, (self.call,)))
        try:
            call_all(calls, sys.exception() if status == "failed" else None)
        finally:
            if data is not None:
                data.trainer = None
            trainer.log = trainer.fit_state = trainer.datamodule = None
            trainer.absent_ranks, trainer.num_batches = 0, None
            trainer.values.within_epochs, trainer.values.why_unvalidated = False, ""

    def _evaluate(self, content: dict[str, Any] | None) -> Any:
        run, call, trainer, config = self.run, self.call, self.run.trainer, self.run.trainer.config
        if content is not None:
            trainer.strategy.load_weights(run.module, content["state_dict"])
        loaders = dealt(trainer, self.data.of_call(call, run.module))
        if not loaders:
            raise self.data.nothing_for(call)
        what = "validation" if call == "validate" else call
        check_not_empty(loaders, what, trainer.strategy.comm())
        trainer.values.fresh_metrics.clear()
        trainer.values.validated = True
        if call == "predict":
            keep = self.start.return_predictions
            return predict(run, loaders, config.limit_predict_batches, keep=keep)
        if call == "validate":
            return evaluate(run, "validate", loaders, config.limit_val_batches)
        return evaluate(run, "test", loaders, config.limit_test_batches)

    def _fit(self, content: dict[str, Any] | None) -> None:
        run, trainer, config = self.run, self.run.trainer, self.run.trainer.config
        trainer.progress, trainer.values = LoopProgress(), LoggedValues()
        trainer.should_stop = False
        trainer.fit_state = fit = planned_fit(run, self.data)
        if content is not None:
            run.call("on_load_checkpoint", content)
            restore(trainer, run.module, fit, content)
        run.call("on_fit_start")
        if config.num_sanity_val_steps and fit.val_loaders and content is None:
            _check_sanity(run, fit)
        run.call("on_train_start")
        loop, progress = FitLoop(run, fit), fit.progress
        while not (config.is_reached(progress.epoch, progress.global_step) or trainer.should_stop):
            loop.run_epoch()
            _check_went_on(config, progress)
            progress.begin_epoch(progress.epoch + 1)
            for logger in trainer.loggers if trainer.is_global_zero else ():
                logger.save()
            comm = trainer.strategy.comm()
            trainer.should_stop = any_true(trainer.should_stop, comm=comm, name="should_stop")
        run.call("on_train_end")
        run.call("on_fit_end")


def _seed_all(trainer: RunContext) -> None:
    seed = trainer.config.seed
    if seed is None and trainer.strategy.isolated:  # new processes know nothing of seed_everything
        seed = random_state.of_environment()
    if seed is not None:
        random_state.set_all(seed + trainer.global_rank)


@contextmanager
def _algorithms(config: TrainerConfig) -> Iterator[None]:
    """Let torch be deterministic and look for anomalies inside the block, as the flags say."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=config.deterministic == "warn")
    try:
        with torch.autograd.set_detect_anomaly(True) if config.detect_anomaly else nullcontext():
            yield
    finally:
        if config.deterministic:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _start_loggers(trainer: RunContext, owners: Sequence[Module | DataModule]) -> None:
    """Let the loggers agree on what rank 0 has settled, and give them the hyperparameters."""
    if not trainer.loggers:
        return
    own = [logger.prepare() for logger in trainer.loggers] if trainer.is_global_zero else None
    settled = all_gather_object(own, comm=trainer.strategy.comm(), name="loggers")[0]
    params: dict[str, Any] = {}
    for owner in owners:
        if owner._log_hparams:
            params |= owner.hparams
    for logger, what in zip(trainer.loggers, settled, strict=True):
        logger.agree(what)
        if trainer.is_global_zero:
            logger.log_hyperparams(params)


def _check_sanity(run: Run, fit: FitState) -> None:
    """Run some batches of validation, and leave everything as it was."""
    trainer, steps = run.trainer, run.trainer.config.num_sanity_val_steps
    metrics = metrics_in(run.module)
    before = metric_states(metrics)
    trainer.sanity_checking = True
    try:
        with random_state.keep(*fit.val_loaders):
            limit = None if steps < 0 else steps
            evaluate(run, "validate", fit.val_loaders, limit, record=False)
    finally:
        trainer.sanity_checking = False
        load_states(metrics, before)


def _check_went_on(config: TrainerConfig, progress: LoopProgress) -> None:
    """Refuse to train without end: an epoch without a step means that none will come."""
    if config.max_epochs in (None, -1) and progress.global_step == 0:
        raise ConfigurationError(
            "max_steps was given, and an epoch took no step: no rank has a training batch, "
            "or training_step returned None",
            do="look at the training data, or say max_epochs=....",
        )

"""The trainer: flags, the loop, and what a run leaves behind."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from distmetrics.collectives.ops import any_true, barrier
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.strategies.base import Devices, Strategy, resolve
from distmetrics.strategies.devices import one_flag
from distmetrics.train.callbacks import Callback, ModelCheckpoint, ProgressBar
from distmetrics.train.data import DataModule, Limit
from distmetrics.train.logger import Logger
from distmetrics.train.loops import Run, evaluate, require, train_epoch
from distmetrics.train.module import Module
from distmetrics.train.optimizers import configured
from distmetrics.train.snapshot import Snapshot
from distmetrics.train.sources import Call, Sources
from distmetrics.train.state import TrainerState

__all__ = ["Trainer"]


class Trainer(TrainerState):
    """Trains and evaluates a :class:`Module`, on one device or many.

    Args:
        strategy: how the model is split over devices: a name such as "single", "dp", "ddp", "ddp_sharded" or
            "fsdp", a :class:`~distmetrics.strategies.base.Strategy`, or "auto": "ddp" under a launcher such
            as torchrun, else "single" for one device and "ddp_spawn" for several.
        devices: number of devices on this machine, a list of their numbers or such as "1, 4", or -1 for all;
            "auto" is the launcher's number of processes, else every GPU, else 1.
        accelerator: "cpu", "gpu", "cuda", "tpu", or "auto": GPUs where there are any.
        num_nodes: number of machines, on each of which a launcher starts the script.
        precision: 64, 32, 16 or "bf16", or as "16-mixed", "bf16-mixed", "64-true", "bf16-true".
        plugins: your own :class:`~distmetrics.launch.environment.ClusterEnvironment`, where none of those that
            are known fits.
        gpus: short for ``devices=gpus, accelerator="gpu"``.
        tpu_cores: short for ``devices=tpu_cores, accelerator="tpu"``.
        max_epochs: train for so many epochs.
        max_steps: train for so many optimizer steps; -1 is no limit.
        limit_train_batches: use so many batches of each epoch on each rank, or a fraction (a float up to
            1.0).
        limit_val_batches: likewise, of each validation loader on each rank.
        limit_test_batches: likewise, of each test loader on each rank.
        check_val_every_n_epoch: validate after every n-th epoch.
        num_sanity_val_steps: before training, run so many batches of validation and forget what they log.
        callbacks: called in their order, those that save checkpoints last.
        default_root_dir: where files go; default the current folder.
        enable_progress_bar: None shows it where rich is installed and standard error is a terminal.
        gradient_clip_val: clip the norm of the gradients to this.
        seed: of all random generators (plus the rank), and of the order of the training samples.
        use_distributed_sampler: deal out the samples of every loader to the ranks; False uses loaders as
            they are.

    Attributes:
        callback_metrics: the latest value of everything logged, as tensors on the CPU.
        logged_metrics: likewise, with ``name_step`` and ``name_epoch`` where a name is logged for both.
        local_metrics: the names whose values are this rank's own.
        fresh_metrics: the names logged for the latest epoch.
        current_epoch: epochs completed; in an epoch its number, from 0.
        global_step: optimizer steps taken.
        should_stop: set it, on any rank, to end training with the epoch.
    """

    def __init__(
        self,
        *,
        strategy: str | Strategy | type[Strategy] = "auto",
        devices: Devices = "auto",
        accelerator: str = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        plugins: Sequence[ClusterEnvironment] = (),
        gpus: Devices = None,
        tpu_cores: Devices = None,
        max_epochs: int | None = None,
        max_steps: int = -1,
        limit_train_batches: Limit = None,
        limit_val_batches: Limit = None,
        limit_test_batches: Limit = None,
        check_val_every_n_epoch: int = 1,
        num_sanity_val_steps: int = 0,
        callbacks: Sequence[Callback] = (),
        default_root_dir: str | Path | None = None,
        enable_progress_bar: bool | None = None,
        gradient_clip_val: float | None = None,
        seed: int | None = None,
        use_distributed_sampler: bool = True,
    ) -> None:
        devices, accelerator = one_flag(devices, accelerator, gpus=gpus, tpu_cores=tpu_cores)
        if check_val_every_n_epoch < 1:
            raise ConfigurationError(f"check_val_every_n_epoch must be positive, got {check_val_every_n_epoch}")
        super().__init__(
            resolve(
                strategy,
                devices=devices,
                accelerator=accelerator,
                num_nodes=num_nodes,
                precision=precision,
                plugins=plugins,
            ),
            _ordered(callbacks, enable_progress_bar),
        )
        self.max_epochs = max_epochs
        self.max_steps = max_steps
        self.limit_train_batches = limit_train_batches
        self.limit_val_batches = limit_val_batches
        self.limit_test_batches = limit_test_batches
        self.check_val_every_n_epoch = check_val_every_n_epoch
        self.num_sanity_val_steps = num_sanity_val_steps
        self.default_root_dir = Path.cwd() if default_root_dir is None else Path(default_root_dir)
        self.gradient_clip_val = gradient_clip_val
        self.seed = seed
        self.use_distributed_sampler = use_distributed_sampler

    def fit(
        self,
        module: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        *,
        datamodule: DataModule | None = None,
    ) -> None:
        """Train the module, from epoch 0, and validate it after each epoch if there is data for that.

        Args:
            module: what to train; afterwards it has the trained weights, whatever the strategy.
            train_dataloaders: a loader, or a data module. Its batch size is each rank's.
            val_dataloaders: a loader or a list of several.
            datamodule: the data, in the place of loaders.

        Raises:
            ConfigurationError: flags, module or data do not fit together.
            Exception: the error of the rank that failed first; the others are ended.
        """
        require(module, Module, "training_step", "configure_optimizers")
        if self.max_epochs is None and self.max_steps < 0:
            raise ConfigurationError("the trainer has no end\nDo:     say max_epochs=... or max_steps=....")
        self._launch("fit", module, Sources.of("fit", train_dataloaders, val_dataloaders, datamodule))

    def validate(
        self, module: Module, dataloaders: Any = None, *, datamodule: DataModule | None = None
    ) -> list[dict[str, float]]:
        """Evaluate the module by its ``validation_step``, every sample once.

        Args:
            module: what to evaluate.
            dataloaders: a loader, a list of several, or a data module.
            datamodule: the data, in the place of loaders.

        Returns: for each loader what was logged: the numbers of one process, on every rank.
        """
        require(module, Module, "validation_step")
        return self._launch("validate", module, Sources.of("validate", dataloaders, None, datamodule))

    def test(
        self, module: Module, dataloaders: Any = None, *, datamodule: DataModule | None = None
    ) -> list[dict[str, float]]:
        """Evaluate the module by its ``test_step``; as :meth:`validate`."""
        require(module, Module, "test_step")
        return self._launch("test", module, Sources.of("test", dataloaders, None, datamodule))

    def _launch(self, call: Call, module: Module, data: Sources) -> list[dict[str, float]]:
        outcome = self.strategy.launch(run_on_rank, self, module, data, call)
        if isinstance(outcome, Snapshot):
            outcome.restore(self, module)
            module._trainer = self
            return outcome.results
        return outcome

    def run_here(self, module: Module, data: Sources, call: Call) -> list[dict[str, float]]:
        """Do what ``call`` says in this process, as one of the ranks."""
        module._trainer, self._module = self, module
        if self.seed is not None:
            _seed(self.seed + self.global_rank)
        try:
            self._set_up(module, data, call)
            if call == "fit":
                self._fit(module, data)
                return []
            return self._evaluate(module, data, call)
        finally:
            for callback in self.callbacks:
                callback.teardown(self, module, call)
            if data.datamodule is not None:
                data.datamodule.trainer = None
            self._logger = self._module = self._run = None
            self.absent = 0

    def _set_up(self, module: Module, data: Sources, call: Call) -> None:
        for callback in self.callbacks:
            callback.setup(self, module, call)
        if data.datamodule is not None:
            data.datamodule.trainer = self
            if self.strategy.local_rank == 0:
                data.datamodule.prepare_data()
            barrier(comm=self.strategy.comm(), name="prepare_data")
            data.datamodule.setup(call)
        self.strategy.place(module)

    def _evaluate(self, module: Module, data: Sources, call: Call) -> list[dict[str, float]]:
        loaders = data.val(module) if call == "validate" else data.test(module)
        if not loaders:
            raise ConfigurationError(f"there is nothing to {call} on\nDo:     pass loaders or a data module.")
        self.fresh_metrics.clear()
        self.validated = True
        if call == "validate":
            return evaluate(self, module, "validate", self._dealt(loaders), self.limit_val_batches)
        return evaluate(self, module, "test", self._dealt(loaders), self.limit_test_batches)

    def _fit(self, module: Module, data: Sources) -> None:
        self._run = run = self._planned(module, data)
        self.current_epoch, self.global_step, self.should_stop = 0, 0, False
        self.call("on_fit_start")
        if self.num_sanity_val_steps and run.val_loaders:
            evaluate(self, module, "validate", run.val_loaders, self.num_sanity_val_steps, record=False)
        while not self._is_done:
            self.fresh_metrics.clear()
            due = (self.current_epoch + 1) % self.check_val_every_n_epoch == 0
            self.validated = due or not run.val_loaders
            logger = Logger("train", self.strategy.comm(), module)
            with self.logging(logger):
                self.call("on_train_epoch_start")
                train_epoch(self, run, logger)
                if due and run.val_loaders:
                    evaluate(self, module, "validate", run.val_loaders, self.limit_val_batches)
                self.call("on_train_epoch_end", callbacks=False)
                self.note_epoch(logger, logger.close())
            for schedule in run.schedules:
                if self.validated or schedule.monitor is None or schedule.monitor in self.fresh_metrics:
                    schedule.step("epoch", self.current_epoch + 1, self.callback_metrics)
            self.call("on_train_epoch_end", module=False)
            self._check_progress()
            self.current_epoch += 1
            self.should_stop = any_true(self.should_stop, comm=self.strategy.comm(), name="should_stop")
        self.call("on_fit_end")

    def _planned(self, module: Module, data: Sources) -> Run:
        optimizer, schedules = configured(module.configure_optimizers())
        step, optimizers = self.strategy.setup(module, [optimizer])
        optimizers[0].zero_grad(set_to_none=True)  # whatever was there before this fit
        (train_loader,) = self._dealt([data.train(module)], train=True)
        val_loaders = data.val(module) if self.limit_val_batches != 0 else []
        if val_loaders:
            require(module, Module, "validation_step")
        return Run(module, step, optimizers[0], train_loader, self._dealt(val_loaders), schedules)

    def _dealt(self, loaders: Sequence[Any], *, train: bool = False) -> list[Any]:
        if not self.use_distributed_sampler:
            return list(loaders)
        return [self.strategy.loader(loader, train=train, seed=self.seed or 0) for loader in loaders]

    @property
    def _is_done(self) -> bool:
        epochs_are_done = self.max_epochs is not None and self.current_epoch >= self.max_epochs
        return epochs_are_done or 0 <= self.max_steps <= self.global_step or self.should_stop

    def _check_progress(self) -> None:
        """Refuse to go on for ever: without ``max_epochs``, an epoch without a step means that none will come."""
        if self.max_epochs is None and self.global_step == 0:
            raise ConfigurationError(
                "max_steps was given, and an epoch took no step: no rank has a training batch, or training_step "
                "returned None\nDo:     look at the training data, or say max_epochs=...."
            )


def run_on_rank(trainer: Trainer, module: Module, data: Sources, call: Call) -> list[dict[str, float]] | Snapshot:
    """Run a call on one rank; where that works on copies, return all that must come home.

    The names of the arguments are shown to the user where one of them can't be pickled.
    """
    results = trainer.run_here(module, data, call)
    if not trainer.strategy.isolated:
        return results
    return Snapshot.take(trainer, module, results, weights=call == "fit")


def _ordered(callbacks: Sequence[Callback], progress_bar: bool | None) -> list[Callback]:
    """Return the callbacks with a progress bar where one is wanted; those that save come last and see the others."""
    found = list(callbacks)
    if ProgressBar.wanted(progress_bar) and not any(isinstance(callback, ProgressBar) for callback in found):
        found.append(ProgressBar())
    return sorted(found, key=lambda callback: isinstance(callback, ModelCheckpoint))


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")  # who has not imported it does not draw from it
    if numpy is not None:
        numpy.random.seed(seed % 2**32)

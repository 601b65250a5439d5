"""One call of the trainer on one rank: set up, do it, tidy up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from distmetrics.arguments import FLAG, PATH, check
from distmetrics.collectives.ops import all_gather_object, any_true, barrier
from distmetrics.errors import ConfigurationError
from distmetrics.train import seed as random_state
from distmetrics.train.callbacks import ModelCheckpoint
from distmetrics.train.data import DataModule, check_not_empty
from distmetrics.train.ending import call_all
from distmetrics.train.evaluation import evaluate, predict, require, warn_if_never
from distmetrics.train.files import load_checkpoint, newest
from distmetrics.train.loops import Position, Run, run_epoch
from distmetrics.train.metric_state import load_states, metric_states, metrics_in
from distmetrics.train.module import Module
from distmetrics.train.optimizers import configured
from distmetrics.train.rescue import rescue
from distmetrics.train.resume import restore
from distmetrics.train.signatures import overrides
from distmetrics.train.sources import Call, Sources
from distmetrics.train.state import TrainerState

if TYPE_CHECKING:
    from distmetrics.train.trainer import Trainer


@dataclass(frozen=True)
class Start:
    """How a call begins, and what it returns.

    Attributes:
        ckpt_path: the checkpoint to begin with: a file, "best", "last", or None.
        weights_only: whether that may hold nothing but tensors and plain values.
        keep: whether predictions are returned.
    """

    ckpt_path: str | Path | None = None
    weights_only: bool = True
    keep: bool = True

    def __post_init__(self) -> None:
        check("Trainer", vars(self) | {"return_predictions": self.keep}, _TAKES)


_TAKES = {
    "ckpt_path": PATH._replace(wanted="the path of a checkpoint, 'best' or 'last'").or_none(),
    "weights_only": FLAG,
    "return_predictions": FLAG,
}


class Session(TrainerState):
    """The part of a trainer that works, on one rank."""

    def run_here(self, module: Module, data: Sources, call: Call, start: Start) -> Any:
        """Do what ``call`` says in this process, as one of the ranks."""
        if self._module is not None:
            raise ConfigurationError(
                f"{call} inside a call of the same trainer",
                do="pass val_dataloaders to fit, or let another Trainer(strategy='single') do it.",
            )
        outer = module._trainer
        module._trainer, self._module = self._self, module
        self._seed_all()
        status = "failed"
        try:
            with self._algorithms():
                content = self._set_up(module, data, call, start)
                results = self._do(module, data, call, start, content)
            status = "success"
            return results
        except BaseException as error:
            rescue(self, self._run, error)
            call_all(
                [(each.on_exception, (self._self, module, error)) for each in self.callbacks], error
            )
            raise
        finally:
            try:
                self._tidy_up(module, data, call, status)
            finally:
                if (
                    outer is not None and outer._module is module
                ):  # a fit of the other trainer goes on
                    module._trainer = outer

    @property
    def _self(self) -> Trainer:
        return cast("Trainer", self)

    def _do(
        self,
        module: Module,
        data: Sources,
        call: Call,
        start: Start,
        content: dict[str, Any] | None,
    ) -> Any:
        if call == "fit":
            return self._fit(module, data, content)
        if content is not None:
            self.strategy.load_weights(module, content["state_dict"])
        return self._evaluate(module, data, call, start)

    def _seed_all(self) -> None:
        chosen = self.seed
        if (
            chosen is None and self.strategy.isolated
        ):  # a new process knows nothing of seed_everything
            chosen = random_state.of_environment()
        if chosen is not None:
            random_state.set_all(chosen + self.global_rank)

    @contextmanager
    def _algorithms(self) -> Iterator[None]:
        before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=self.deterministic == "warn")
        try:
            if self.detect_anomaly:
                with torch.autograd.set_detect_anomaly(True):
                    yield
            else:
                yield
        finally:
            if self.deterministic:
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    def _set_up(
        self, module: Module, data: Sources, call: Call, start: Start
    ) -> dict[str, Any] | None:
        """Prepare data and loggers, place the module, and read the checkpoint if one is asked for."""
        self.datamodule = data.datamodule
        owners: list[Module | DataModule] = (
            [module] if data.datamodule is None else [data.datamodule, module]
        )
        if data.datamodule is not None:
            data.datamodule.trainer = self._self
        if self.strategy.local_rank == 0:
            for owner in owners:
                owner.prepare_data()
        barrier(comm=self.strategy.comm(), name="prepare_data")
        for owner in owners:
            owner.setup(call)
        for callback in self.callbacks:
            callback.setup(self._self, module, call)
        path = self._path_of(start.ckpt_path, call)
        content = None if path is None else load_checkpoint(path, weights_only=start.weights_only)
        self._start_loggers(owners)
        self.strategy.place(module)
        return content

    def _start_loggers(self, owners: Sequence[Module | DataModule]) -> None:
        if not self.loggers:
            return
        mine = [logger.prepare() for logger in self.loggers] if self.is_global_zero else None
        settled = all_gather_object(mine, comm=self.strategy.comm(), name="loggers")[0]
        params = {
            name: value
            for owner in owners
            if owner._log_hparams
            for name, value in owner.hparams.items()
        }
        for logger, what in zip(self.loggers, settled, strict=True):
            logger.agree(what)
            if self.is_global_zero:
                logger.log_hyperparams(params)

    def _path_of(self, given: str | Path | None, call: Call) -> Path | None:
        """Find the checkpoint that ``ckpt_path`` means: rank 0 looks, so that all ranks take the
        same.
        """
        if given is None:
            return None
        if given not in ("best", "last"):
            return Path(given)
        found, problem = self._kept(str(given)) if self.is_global_zero else (None, "")
        found, problem = all_gather_object(
            (found, problem), comm=self.strategy.comm(), name="ckpt_path"
        )[0]
        if found is None and (given == "best" or call != "fit"):
            raise ConfigurationError(f"ckpt_path={given!r}: {problem}", rank=self.global_rank)
        return None if found is None else Path(found)

    def _kept(self, which: str) -> tuple[str | None, str]:
        """Return the path of the best or the last checkpoint, or why there is none."""
        keepers = [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]
        if not keepers:
            return None, "there is no ModelCheckpoint among the trainer's callbacks"
        if which == "best":
            keepers = sorted(keepers, key=lambda keeper: keeper.monitor is None)
            return keepers[0].best_model_path or None, "no checkpoint has been saved yet"
        folders = {keeper.folder(self): keeper for keeper in keepers}
        paths = [path for folder in folders if (path := newest(folder)) is not None]
        latest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
        return None if latest is None else str(
            latest
        ), f"there is none in {', '.join(map(str, folders))}"

    def _tidy_up(self, module: Module, data: Sources, call: Call, status: str) -> None:
        calls: list[Any] = [
            (callback.teardown, (self._self, module, call)) for callback in self.callbacks
        ]
        calls.append((module.teardown, (call,)))
        calls += [(logger.finalize, (status,)) for logger in self.loggers if self.is_global_zero]
        if data.datamodule is not None:
            calls.append((data.datamodule.teardown, (call,)))
        try:
            call_all(calls, sys.exception() if status == "failed" else None)
        finally:
            if data.datamodule is not None:
                data.datamodule.trainer = None
            self._logger = self._module = self._run = self._saves = self.datamodule = None
            self.absent = 0

    def _evaluate(self, module: Module, data: Sources, call: Call, start: Start) -> Any:
        find = {"validate": data.val, "test": data.test, "predict": data.predict}[call]
        loaders = self._dealt(find(module))
        if not loaders:
            raise data.nothing_for(call)
        check_not_empty(loaders, {"validate": "validation"}.get(call, call), self.strategy.comm())
        self.fresh_metrics.clear()
        self.validated = True
        if call == "predict":
            return predict(self._self, module, loaders, self.limit_predict_batches, keep=start.keep)
        if call == "validate":
            return evaluate(self._self, module, "validate", loaders, self.limit_val_batches)
        return evaluate(self._self, module, "test", loaders, self.limit_test_batches)

    def _fit(
        self, module: Module, data: Sources, content: dict[str, Any] | None
    ) -> list[dict[str, float]]:
        self._run = run = self._planned(module, data)
        self.current_epoch, self.global_step, self.should_stop = 0, 0, False
        self.position, self.is_resumed = Position(), content is not None
        self.callback_metrics, self.logged_metrics = {}, {}
        self.local_metrics, self.fresh_metrics, self.validation_metrics = set(), set(), set()
        if content is not None:
            restore(self, run, content)
        self.call("on_fit_start")
        if self.num_sanity_val_steps and run.val_loaders and content is None:
            self._check_sanity(run)
        self.call("on_train_start")
        while not self._is_done:
            run_epoch(self._self, run)
            self._check_progress()
            self.current_epoch += 1
            self.position = Position()
            for logger in self.loggers if self.is_global_zero else ():
                logger.save()
            self.should_stop = any_true(
                self.should_stop, comm=self.strategy.comm(), name="should_stop"
            )
        self.call("on_train_end")
        self.call("on_fit_end")
        return []

    def _check_sanity(self, run: Run) -> None:
        """Run some batches of validation, and leave everything as it was."""
        limit = None if self.num_sanity_val_steps < 0 else self.num_sanity_val_steps
        metrics = metrics_in(run.module)
        before = metric_states(metrics)
        self.sanity_checking = True
        try:
            with random_state.keep(*run.val_loaders):
                evaluate(self._self, run.module, "validate", run.val_loaders, limit, record=False)
        finally:
            self.sanity_checking = False
            load_states(metrics, before)

    def _planned(self, module: Module, data: Sources) -> Run:
        optimizers, schedules = configured(
            module.configure_optimizers(), module, automatic=module.automatic_optimization
        )
        self._check_manual(module)
        step, optimizers = self.strategy.setup(module, optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)  # whatever was there before this fit
        (train_loader,) = self._dealt([data.train(module)], train=True)
        val_loaders = self._dealt(data.val(module) if self.limit_val_batches != 0 else [])
        if (
            val_loaders
            and data.val_dataloaders is None
            and not overrides(module, Module, "validation_step")
        ):
            val_loaders = []  # a data module may have more than this module needs
        if val_loaders:
            require(module, Module, "validation_step")
            check_not_empty(val_loaders, "validation", self.strategy.comm())
        warn_if_never(self._self, val_loaders)
        return Run(module, step, optimizers, train_loader, val_loaders, schedules)

    def _check_manual(self, module: Module) -> None:
        trainer = self._self
        if not (module.automatic_optimization or self.strategy.manual):
            raise ConfigurationError(
                f"{type(module).__name__} does its own optimization, and "
                f"strategy={self.strategy.name!r} splits what "
                "it would step",
                do="say strategy='ddp' or 'ddp_sharded', or use one optimizer and leave it to the "
                "trainer.",
            )
        for name, default in (("accumulate_grad_batches", 1), ("gradient_clip_val", None)):
            value = getattr(trainer, name)
            if not module.automatic_optimization and value != default:
                raise ConfigurationError(
                    f"{name}={value}, and {type(module).__name__} does its own optimization",
                    do="do it in training_step, and drop the flag.",
                )

    def _dealt(self, loaders: Sequence[Any], *, train: bool = False) -> list[Any]:
        found = [random_state.seed_workers(loader, self.global_rank) for loader in loaders]
        if not self.use_distributed_sampler:
            return found
        seed = self.seed if self.seed is not None else random_state.of_environment() or 0
        return [self.strategy.loader(loader, train=train, seed=seed) for loader in found]

    @property
    def _is_done(self) -> bool:
        epochs_are_done = self.max_epochs is not None and 0 <= self.max_epochs <= self.current_epoch
        return epochs_are_done or 0 <= self.max_steps <= self.global_step or self.should_stop

    def _check_progress(self) -> None:
        """Refuse to go on for ever: without ``max_epochs``, an epoch without a step means that none
        will come.
        """
        if self.max_epochs in (None, -1) and self.global_step == 0:
            raise ConfigurationError(
                "max_steps was given, and an epoch took no step: no rank has a training batch, "
                "or training_step "
                "returned None",
                do="look at the training data, or say max_epochs=....",
            )

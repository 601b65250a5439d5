"""One call of the trainer: launched, then on each rank set up, done, and torn down."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from distmetrics.arguments import FLAG, check
from distmetrics.collectives.ops import barrier
from distmetrics.errors import ConfigurationError
from distmetrics.message import reading
from distmetrics.run import seed as random_state
from distmetrics.run.batches import check_not_empty
from distmetrics.run.callbacks import kept_checkpoint, print_results
from distmetrics.run.checkpoint import restore, save_emergency_checkpoint, write_checkpoint
from distmetrics.run.checkpoint_file import load_checkpoint
from distmetrics.run.config import TrainerConfig
from distmetrics.run.context import LoopProgress, RunContext, gathered
from distmetrics.run.data import DataModule, TrainerCall
from distmetrics.run.evaluation import evaluate, predict
from distmetrics.run.fit import Fit
from distmetrics.run.metric_states import load_states, metric_states, metrics_in
from distmetrics.run.module import Module, check_hooks, require
from distmetrics.run.run import Run
from distmetrics.run.values import LoggedValues
from distmetrics.strategies.tensors import to_host


def launch(trainer: RunContext, module: Module, call: TrainerCall) -> Any:
    """Do a call of the trainer on every rank; return its results."""
    check_hooks(module, trainer.callbacks, call.datamodule)
    strategy = trainer.strategy
    if strategy.isolated:  # what ranks settle does not come home: settle it here
        for logger in trainer.loggers:
            _ = logger.version
    outcome = strategy.launch(_run_on_rank, trainer, module, call)
    if not strategy.isolated:
        return outcome
    results, weights, states, *progress = outcome
    if weights is not None:
        strategy.precision.place(module)
        module.load_state_dict(weights)
    trainer.progress, trainer.values, trainer.should_stop = progress
    for callback, state in zip(trainer.callbacks, states, strict=True):
        callback.load_state_dict(state)
    module._trainer = trainer
    return results


def launch_evaluation(
    trainer: RunContext, module: Module, call: TrainerCall, *, verbose: bool | None
) -> list[dict[str, float]]:
    """Evaluate the module on every rank; return the results, and print them if that is wanted."""
    require(module, "validation_step" if call.kind == "validate" else "test_step")
    check("Trainer", locals(), {"verbose": FLAG.or_none()})
    results: list[dict[str, float]] = launch(trainer, module, call)
    if trainer.is_global_zero:
        print_results(call.kind, results, verbose)
    return results


def _run_on_rank(trainer: RunContext, module: Module, call: TrainerCall) -> Any:
    """Run a call on one rank; where that works on copies, return all that must come home, on CPU.

    The names of the arguments are shown to the user where one of them can't be pickled.
    """
    if trainer.run is not None:
        raise ConfigurationError(
            f"{call.kind} inside a call of the same trainer",
            do="pass val_dataloaders to fit, or let another Trainer(strategy='single') do it.",
        )
    strategy = trainer.strategy
    with trainer.runner.on_rank(owners=False):
        trainer.run = Run(trainer, module, write_checkpoint)
        try:
            results = _conduct(trainer.run, call)
        finally:
            trainer.run = None
        if not strategy.isolated:
            return results
        weights = dict(strategy.weights(module)) if call.kind == "fit" else None
    states = [callback.state_dict() for callback in trainer.callbacks]
    progress = trainer.progress, trainer.values, trainer.should_stop
    return to_host((results, weights, states, *progress))


def _conduct(run: Run, call: TrainerCall) -> Any:
    """Do what ``call`` says in this process, as one of the ranks."""
    trainer, module = run.trainer, run.module
    outer = module._trainer
    module._trainer = trainer
    status = "failed"
    try:
        _seed_all(trainer)
        with _algorithms(trainer.config):
            content = _set_up(run, call)
            results = (_fit if call.kind == "fit" else _evaluate)(run, call, content)
        status = "success"
        return results
    except BaseException as error:
        save_emergency_checkpoint(run, error)
        hooks = [callback.on_exception for callback in trainer.callbacks]
        _call_all([(hook, (trainer, module, error)) for hook in hooks], error)
        raise
    finally:
        try:
            _tear_down(run, call, status)
        finally:
            if outer is not None and outer.run is not None and outer.run.module is module:
                module._trainer = outer  # a fit of the other trainer goes on


def _owners(run: Run, call: TrainerCall) -> list[Module | DataModule]:
    """Return who has data to prepare."""
    return [run.module] if call.datamodule is None else [call.datamodule, run.module]


def _set_up(run: Run, call: TrainerCall) -> dict[str, Any] | None:
    """Prepare data and loggers, place the module, and read the checkpoint to begin with."""
    trainer, module, owners = run.trainer, run.module, _owners(run, call)
    trainer.datamodule = call.datamodule
    if call.datamodule is not None:
        call.datamodule.trainer = trainer
    if trainer.strategy.local_rank == 0:
        for owner in owners:
            owner.prepare_data()
    barrier(comm=run.comm, name="prepare_data")
    for owner in owners:
        owner.setup(call.kind)
    for callback in trainer.callbacks:
        callback.setup(trainer, module, call.kind)
    path = _checkpoint_path(run, call)
    content = None if path is None else load_checkpoint(path, weights_only=call.weights_only)
    _start_loggers(trainer, owners)
    trainer.strategy.place(module)
    return content


def _checkpoint_path(run: Run, call: TrainerCall) -> Path | None:
    """Return the checkpoint that ``ckpt_path`` means; rank 0 looks for the "best" or "last"."""
    trainer, wanted = run.trainer, call.ckpt_path
    if wanted not in ("best", "last"):
        return None if wanted is None else Path(wanted)
    answer = kept_checkpoint(trainer, str(wanted)) if trainer.is_global_zero else (None, "")
    answers = gathered(trainer, answer, "ckpt_path")
    with reading("a path of a checkpoint", 0):
        path, problem = answers[0]
        path = None if path is None else Path(str(path))
    if path is None and (wanted == "best" or call.kind != "fit"):
        raise ConfigurationError(f"ckpt_path={wanted!r}: {problem}", rank=trainer.global_rank)
    return path


def _tear_down(run: Run, call: TrainerCall, status: str) -> None:
    trainer, module, data = run.trainer, run.module, call.datamodule
    calls: list[Any] = [(each.teardown, (trainer, module, call.kind)) for each in trainer.callbacks]
    calls.append((module.teardown, (call.kind,)))
    loggers = trainer.loggers if trainer.is_global_zero else []
    calls += [(logger.finalize, (status,)) for logger in loggers]
    if data is not None:
        calls.append((data.teardown, (call.kind,)))
    try:
        _call_all(calls, sys.exception() if status == "failed" else None)
    finally:
        if data is not None:
            data.trainer = None
        trainer.log = trainer.fit_state = trainer.datamodule = None
        trainer.absent_ranks = 0
        trainer.num_batches = None
        trainer.values.within_epochs = False


def _call_all(
    calls: Iterable[tuple[Callable[..., object], tuple[object, ...]]],
    first: BaseException | None,
) -> None:
    """Make every call, also after one that raises; later errors become notes of the first.

    Args:
        calls: functions and their arguments.
        first: what ended the run, and goes on; None where it ended well.

    Raises:
        Exception: what the first of the calls that failed raised, if nothing had failed before.
    """
    noted = first
    for fn, args in calls:
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001  (raised below, or noted)
            if noted is None:
                noted = error
            elif error is not noted:
                text = "".join(traceback.format_exception(error, chain=False)).rstrip()
                name = getattr(fn, "__qualname__", fn)
                noted.add_note(f"{name} failed as well, after this:\n{text}")
    if first is None and noted is not None:
        raise noted


def _evaluate(run: Run, call: TrainerCall, content: dict[str, Any] | None) -> Any:
    trainer = run.trainer
    if content is not None:
        trainer.strategy.load_weights(run.module, content["state_dict"])
    loaders = run.dealt(call.loaders(run.module))
    check_not_empty(loaders, "validation" if call.kind == "validate" else call.kind, run.comm)
    trainer.values.fresh_metrics.clear()
    trainer.values.validated = True
    if call.kind == "predict":
        return predict(run, loaders, keep=call.return_predictions)
    return evaluate(run, "validate" if call.kind == "validate" else "test", loaders)


def _fit(run: Run, call: TrainerCall, content: dict[str, Any] | None) -> None:
    trainer = run.trainer
    trainer.progress, trainer.values = LoopProgress(), LoggedValues()
    trainer.should_stop = False
    trainer.fit_state = fit = Fit(run, call)
    if content is not None:
        run.call("on_load_checkpoint", content)
        restore(fit, content)
    run.call("on_fit_start")
    if trainer.config.num_sanity_val_steps and fit.val_loaders and content is None:
        _check_sanity(run, fit)
    run.call("on_train_start")
    fit.train()
    run.call("on_train_end")
    run.call("on_fit_end")


def _seed_all(trainer: RunContext) -> None:
    seed, of_environment = trainer.config.seed, random_state.of_environment()
    data_seed = seed if seed is not None else of_environment or 0
    trainer.runner.seed_data(data_seed, workers=random_state.seeds_workers())
    if seed is None and trainer.strategy.isolated:  # new processes know nothing of seed_everything
        seed = of_environment
    if seed is not None:
        random_state.set_all(seed + trainer.strategy.shards().rank)


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
    """Give the loggers the version that rank 0 has settled, and give them the hyperparameters."""
    if not trainer.loggers:
        return
    own = [logger.version for logger in trainer.loggers] if trainer.is_global_zero else None
    versions = gathered(trainer, own, "loggers")[0]
    with reading("its loggers' versions", 0):
        pairs = [*zip(trainer.loggers, versions, strict=True)]
    params: dict[str, Any] = {}
    for owner in owners:
        if owner._log_hparams:
            params |= owner.hparams
    for logger, version in pairs:
        logger.version = version
        if params and trainer.is_global_zero:
            logger.log_hyperparams(params)


def _check_sanity(run: Run, fit: Fit) -> None:
    """Run some batches of validation, and leave everything as it was."""
    trainer = run.trainer
    metrics = metrics_in(run.module)
    before = metric_states(metrics)
    trainer.sanity_checking = True
    try:
        with random_state.keep(*fit.val_loaders):
            evaluate(run, "validate", fit.val_loaders)
    finally:
        trainer.sanity_checking = False
        load_states(metrics, before)

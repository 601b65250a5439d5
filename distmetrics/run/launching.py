"""Launch a call of the trainer on every rank, and bring home what comes of it."""

from typing import Any

from distmetrics.arguments import FLAG, check
from distmetrics.errors import ConfigurationError
from distmetrics.run.callbacks import print_results
from distmetrics.run.context import RunContext
from distmetrics.run.data import Call
from distmetrics.run.module import Module, check_hooks, require
from distmetrics.run.run import Run
from distmetrics.run.session import conduct
from distmetrics.strategies.layouts import in_layout
from distmetrics.strategies.tensors import to_host


def launch(trainer: RunContext, module: Module, call: Call) -> Any:
    """Do a call of the trainer on every rank; return its results."""
    check_hooks(module, trainer.callbacks, call.datamodule)
    if trainer.strategy.isolated:  # what ranks settle does not come home: settle it here
        for logger in trainer.loggers:
            _ = logger.version
    outcome = trainer.strategy.launch(run_on_rank, trainer, module, call)
    if not trainer.strategy.isolated:
        return outcome
    results, weights, states, *progress = outcome
    if weights is not None:
        trainer.strategy.precision.place(module)
        module.load_state_dict(weights)
    trainer.progress, trainer.values, trainer.should_stop = progress
    for callback, state in zip(trainer.callbacks, states, strict=True):
        callback.load_state_dict(state)
    module._trainer = trainer
    return results


def launch_evaluation(
    trainer: RunContext,
    module: Module,
    call: Call,
    *,
    verbose: bool | None,
) -> list[dict[str, float]]:
    """Evaluate the module on every rank; return the results, and print them if that is wanted."""
    require(module, "validation_step" if call.kind == "validate" else "test_step")
    check("Trainer", locals(), {"verbose": FLAG.or_none()})
    results: list[dict[str, float]] = launch(trainer, module, call)
    if trainer.is_global_zero:
        print_results(call.kind, results, verbose)
    return results


def run_on_rank(trainer: RunContext, module: Module, call: Call) -> Any:
    """Run a call on one rank; where that works on copies, return all that must come home, on CPU.

    The names of the arguments are shown to the user where one of them can't be pickled.
    """
    if trainer.run is not None:
        raise ConfigurationError(
            f"{call.kind} inside a call of the same trainer",
            do="pass val_dataloaders to fit, or let another Trainer(strategy='single') do it.",
        )
    with in_layout(trainer.strategy, owners=False):
        trainer.run = run = Run(trainer, module)
        try:
            results = conduct(run, call)
        finally:
            trainer.run = None
    if not trainer.strategy.isolated:
        return results
    weights = dict(trainer.strategy.weights(module)) if call.kind == "fit" else None
    states = [callback.state_dict() for callback in trainer.callbacks]
    progress = trainer.progress, trainer.values, trainer.should_stop
    return to_host((results, weights, states, *progress))

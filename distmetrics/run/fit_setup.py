"""What a fit works with on this rank is put together here, and checked."""

import warnings
from collections.abc import Sequence
from typing import Any

from distmetrics.data.sharding import has_order
from distmetrics.errors import ConfigurationError
from distmetrics.run import seed as random_state
from distmetrics.run.batches import check_not_empty
from distmetrics.run.context import RunContext
from distmetrics.run.dataloaders import Call
from distmetrics.run.fit_state import FitState
from distmetrics.run.module import Module
from distmetrics.run.optimizers import configured
from distmetrics.run.run import Run
from distmetrics.run.signatures import overrides, require
from distmetrics.strategies.base import Entry


def planned_fit(run: Run, call: Call) -> FitState:
    """Return what the fit works with: optimizers, loaders, and the strategy's training step."""
    trainer, module = run.trainer, run.module
    optimizers, schedules = configured(
        module.configure_optimizers(), module, automatic=module.automatic_optimization
    )
    _check_manual(trainer, module)
    step = trainer.strategy.training_call(Entry(module), optimizers)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)  # whatever was there before this fit
    (train_loader,) = dealt(trainer, call.loaders(module), train=True)
    return FitState(
        module,
        trainer.strategy,
        trainer.progress,
        run.call,
        step,
        optimizers,
        schedules,
        train_loader,
        _val_loaders(run, call),
    )


def _val_loaders(run: Run, call: Call) -> list[Any]:
    """Return the loaders to validate on; none if there is nothing to validate by."""
    trainer, module = run.trainer, run.module
    config, values = trainer.config, trainer.values
    # A data module may have more than this module needs.
    is_wanted = call.val_dataloaders is not None or overrides(module, "validation_step")
    loaders = []
    if is_wanted and config.limit_val_batches != 0:
        loaders = dealt(trainer, call.loaders_to_validate(module))
    values.within_epochs = bool(loaders) and config.validates_within_epochs
    if loaders:
        require(module, "validation_step")
        check_not_empty(loaders, "validation", run.comm)
        _warn_if_never(trainer)
    return loaders


def _warn_if_never(trainer: RunContext) -> None:
    """Warn of a fit whose last epoch comes before its first validation."""
    last, every = trainer.config.max_epochs, trainer.config.check_val_every_n_epoch
    if trainer.is_global_zero and last is not None and 0 < last < every:
        warnings.warn(
            f"check_val_every_n_epoch={every} and max_epochs={last}: this fit never validates, "
            "and what watches a value of validation never acts. Say a smaller "
            "check_val_every_n_epoch, or limit_val_batches=0 where that is meant.",
            stacklevel=2,
        )


def _check_manual(trainer: RunContext, module: Module) -> None:
    """Refuse flags and strategies that don't go with a module's own optimization."""
    if module.automatic_optimization:
        return
    name, strategy = type(module).__name__, trainer.strategy
    if not strategy.manual:
        raise ConfigurationError(
            f"{name} does its own optimization, and strategy={strategy.name!r} splits what it "
            "would step",
            do="say strategy='ddp' or 'ddp_sharded', or use one optimizer and leave it to the "
            "trainer.",
        )
    for flag, default in (("accumulate_grad_batches", 1), ("gradient_clip_val", None)):
        value = getattr(trainer.config, flag)
        if value != default:
            raise ConfigurationError(
                f"{flag}={value}, and {name} does its own optimization",
                do="do it in training_step, and drop the flag.",
            )


def dealt(trainer: RunContext, loaders: Sequence[Any], *, train: bool = False) -> list[Any]:
    """Return loaders of this rank's part of the data."""
    dealt_out = list(loaders)
    if random_state.seeds_workers():
        rank = trainer.strategy.shards().rank
        for place, loader in enumerate(loaders):  # a stream is read alike by all ranks
            seeded_by = rank if train or has_order(loader) else 0
            dealt_out[place] = random_state.seed_workers(loader, seeded_by)
    if not trainer.config.use_distributed_sampler:
        return dealt_out
    seed = trainer.config.seed
    if seed is None:
        seed = random_state.of_environment() or 0
    return [trainer.strategy.loader(loader, train=train, seed=seed) for loader in dealt_out]

"""The trainer's flags: checked once, and never changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self, get_origin

from distmetrics.arguments import (
    FLAG,
    PATH,
    POSITIVE,
    POSITIVE_NUMBER,
    SEED,
    Takes,
    check,
    describe,
    whole,
)
from distmetrics.errors import ConfigurationError
from distmetrics.log.writers import CSVLogger, Logger


def at_least(least: int) -> Takes:
    """Return the rule for a whole number."""
    return Takes(lambda value: whole(value, least), f"a whole number from {least} on")


def check_fields(owner: Any, who: str = "") -> None:
    """Check a dataclass by the rules that the types of its fields are annotated with."""
    types: dict[str, Any] = {field.name: field.type for field in fields(owner)}
    annotated = {name: each for name, each in types.items() if get_origin(each) is Annotated}
    rules = {name: each.__metadata__[0] for name, each in annotated.items()}
    check(who or type(owner).__name__, vars(owner), rules)


_PART = Takes(
    lambda value: whole(value, 0) or (isinstance(value, float) and 0 <= value <= 1),
    "a number of batches, or a fraction between 0.0 and 1.0",
)
_INTERVAL = Takes(
    lambda value: _PART.fits(value) and value > 0,
    "a number of steps, or a fraction between 0.0 and 1.0",
)
_RUN = Takes(
    lambda value: isinstance(value, bool) or whole(value, 0), "True or a number of batches"
)
_DETERMINISTIC = Takes(
    lambda value: isinstance(value, bool) or value == "warn", "True, False or 'warn'"
)
Flag = Annotated[bool, FLAG]
Wanted = Annotated[bool | None, FLAG.or_none("None to leave it to the trainer")]
Positive = Annotated[int, POSITIVE]
Limit = Annotated[int | float | None, _PART.or_none("None for all")]


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The flags of :class:`~distmetrics.train.Trainer`, which explains them."""

    max_epochs: Annotated[int | None, at_least(-1).or_none()]
    max_steps: Annotated[int, at_least(-1)]
    limit_train_batches: Limit
    limit_val_batches: Limit
    limit_test_batches: Limit
    limit_predict_batches: Limit
    val_check_interval: Annotated[int | float, _INTERVAL]
    check_val_every_n_epoch: Positive
    num_sanity_val_steps: Annotated[int, at_least(-1)]
    accumulate_grad_batches: Positive
    gradient_clip_val: Annotated[float | None, POSITIVE_NUMBER.or_none()]
    log_every_n_steps: Positive
    default_root_dir: Annotated[Path, PATH.or_none("None for the current folder")]
    enable_progress_bar: Wanted
    enable_model_summary: Wanted
    enable_checkpointing: Wanted
    fast_dev_run: Annotated[bool | int, _RUN]
    seed: Annotated[int | None, SEED.or_none()]
    deterministic: Annotated[bool | str, _DETERMINISTIC]
    detect_anomaly: Flag
    terminate_on_nan: Flag
    require_same_names: Flag
    allow_pickle: Flag
    use_distributed_sampler: Flag

    def __post_init__(self) -> None:
        check_fields(self, "Trainer")

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> Self:
        """Return the flags among others; ``fast_dev_run`` is a few batches of everything."""
        config = cls(**{field.name: flags[field.name] for field in fields(cls)})
        config = replace(config, default_root_dir=Path(config.default_root_dir or Path.cwd()))
        if not config.fast_dev_run:
            return config
        count = int(config.fast_dev_run)
        return replace(
            config,
            limit_train_batches=count,
            limit_val_batches=count,
            limit_test_batches=count,
            limit_predict_batches=count,
            max_epochs=1,
            max_steps=count,
            val_check_interval=1.0,
            check_val_every_n_epoch=1,
            num_sanity_val_steps=0,
            accumulate_grad_batches=1,
        )

    @property
    def validates_within_epochs(self) -> bool:
        """True if an epoch may have several validations; an interval of 1 is after each step."""
        return self.val_check_interval != 1 or isinstance(self.val_check_interval, int)

    @property
    def has_end(self) -> bool:
        """True if there is a limit on training."""
        return self.max_epochs not in (None, -1) or self.max_steps >= 0

    def is_reached(self, epochs: int, steps: int) -> bool:
        """True if so many epochs or steps are all that is asked for."""
        all_epochs = self.max_epochs is not None and 0 <= self.max_epochs <= epochs
        return all_epochs or 0 <= self.max_steps <= steps


def listed(value: Any, kind: type, flag: str) -> list[Any]:
    """Return what a flag has, one object of ``kind`` or several, as a list."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, kind):
            raise ConfigurationError(
                f"{flag}= takes a {kind.__name__} or a list of such, got {describe(item)}",
                do=f"pass objects of {kind.__name__} or its subclasses.",
            )
    return items


def chosen_loggers(
    logger: Logger | Sequence[Logger] | bool | None, config: TrainerConfig
) -> list[Logger]:
    """Return the loggers: True is a ``CSVLogger`` in the trainer's folder."""
    if logger is True:
        logger = CSVLogger(config.default_root_dir)
    loggers = listed(logger or (), Logger, "logger")
    return [] if config.fast_dev_run else loggers


_LEAST = (
    "say EarlyStopping(..., patience=n), which stops after n epochs at the earliest, or set "
    "trainer.should_stop in a callback of your own."
)
# Flags of other trainers that there are none for here, and what to do instead.
OTHER_TRAINERS = {
    "min_epochs": _LEAST,
    "min_steps": _LEAST,
    "max_time": "set trainer.should_stop in a callback of your own when the time is over.",
    "reload_dataloaders_every_n_epochs": "change what the data set yields in "
    "on_train_epoch_start: loaders are asked for once a fit.",
    "gradient_clip_algorithm": "clip values in on_before_optimizer_step: gradient_clip_val=... "
    "clips the norm.",
    "overfit_batches": "say limit_train_batches=..., and the same loader for validation.",
    "profiler": "run torch.profiler around fit, or in a callback of your own.",
    "sync_batchnorm": "call nn.SyncBatchNorm.convert_sync_batchnorm(module) before fit.",
}

"""The trainer's flags: checked once, and never changed."""

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from distmetrics.arguments import FLAG, PATH, POSITIVE, POSITIVE_NUMBER, SEED, Takes, check, whole
from distmetrics.errors import ConfigurationError

Limit = int | float | None


def _is_part(value: Any, least: int) -> bool:
    """True if it is a whole number, or a fraction."""
    is_fraction = isinstance(value, float) and (0 < value <= 1 or least == value == 0)
    return whole(value, least) or is_fraction


_COUNT = Takes(lambda value: whole(value, -1), "a whole number, or -1 for no limit")
_LIMIT = Takes(
    lambda value: _is_part(value, 0), "a number of batches, or a fraction between 0.0 and 1.0"
).or_none("None for all")
_LIMITS = [f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")]
_SHOWN = FLAG.or_none("None to leave it to the trainer")
_RULES = {
    "max_epochs": _COUNT.or_none(),
    "max_steps": _COUNT,
    **dict.fromkeys(_LIMITS, _LIMIT),
    "val_check_interval": Takes(
        lambda value: _is_part(value, 1), "a number of steps, or a fraction between 0.0 and 1.0"
    ),
    "check_val_every_n_epoch": POSITIVE,
    "num_sanity_val_steps": _COUNT._replace(wanted="-1, 0 or positive"),
    "accumulate_grad_batches": POSITIVE,
    "gradient_clip_val": POSITIVE_NUMBER._replace(wanted="positive").or_none(),
    "log_every_n_steps": POSITIVE,
    "default_root_dir": PATH.or_none("None for the current folder"),
    "enable_progress_bar": _SHOWN,
    "enable_model_summary": _SHOWN,
    "enable_checkpointing": FLAG.or_none(),
    "fast_dev_run": Takes(
        lambda value: isinstance(value, bool) or whole(value, 0), "True or a number of batches"
    ),
    "seed": SEED.or_none(),
    "deterministic": Takes(
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "warn"),
        "True, False or 'warn'",
    ),
    "detect_anomaly": FLAG,
    "terminate_on_nan": FLAG,
    "require_same_names": FLAG,
    "allow_pickle": FLAG,
    "use_distributed_sampler": FLAG,
}


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The flags of :class:`~distmetrics.train.Trainer`, which explains them.

    Raises:
        ConfigurationError: a value that makes no sense.
    """

    max_epochs: int | None
    max_steps: int
    limit_train_batches: Limit
    limit_val_batches: Limit
    limit_test_batches: Limit
    limit_predict_batches: Limit
    val_check_interval: int | float
    check_val_every_n_epoch: int
    num_sanity_val_steps: int
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    log_every_n_steps: int
    default_root_dir: Path
    enable_progress_bar: bool | None
    enable_model_summary: bool | None
    enable_checkpointing: bool | None
    fast_dev_run: bool | int
    seed: int | None
    deterministic: bool | str
    detect_anomaly: bool
    terminate_on_nan: bool
    require_same_names: bool
    allow_pickle: bool
    use_distributed_sampler: bool

    def __post_init__(self) -> None:
        check("Trainer", vars(self), _RULES)

    def resolved(self) -> Self:
        """Return what the flags amount to: ``fast_dev_run`` is a few batches of everything."""
        config = replace(self, default_root_dir=Path(self.default_root_dir or Path.cwd()))
        if not self.fast_dev_run:
            return config
        count = int(self.fast_dev_run)
        limits: dict[str, Any] = dict.fromkeys(_LIMITS, count)
        return replace(
            config,
            **limits,
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
        interval = self.val_check_interval
        return not (isinstance(interval, float) and interval == 1.0)

    @property
    def has_end(self) -> bool:
        """True if there is a limit on training."""
        return self.max_epochs not in (None, -1) or self.max_steps >= 0

    def is_reached(self, epochs: int, steps: int) -> bool:
        """True if so many epochs or steps are all that is asked for."""
        all_epochs = self.max_epochs is not None and 0 <= self.max_epochs <= epochs
        return all_epochs or 0 <= self.max_steps <= steps


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
    "benchmark": "set torch.backends.cudnn.benchmark = True.",
    "inference_mode": "leave it out: evaluations run without gradients.",
}


def refuse_unknown(
    owner: type,
    flags: Iterable[str],
    others: Mapping[str, str] = OTHER_TRAINERS,
) -> None:
    """Refuse flags that ``owner`` does not take.

    Args:
        owner: a class with a parameter ``unknown``, which takes what its others do not.
        flags: names of such.
        others: what to do instead of flags of others.

    Raises:
        ConfigurationError: a flag of other trainers.
        TypeError: any other.
    """
    who = owner.__name__
    names = inspect.signature(owner).parameters.keys() - {"unknown"}
    for flag in flags:
        if flag in others:
            raise ConfigurationError(
                f"{who}({flag}=...) is a flag of other trainers, and there is none for it here",
                do=others[flag],
            )
        near = difflib.get_close_matches(flag, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{who} got an unexpected keyword argument {flag!r}{hint}")

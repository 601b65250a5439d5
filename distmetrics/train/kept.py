"""The flags that a trainer keeps under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.train.data import Limit


class KeptFlags:
    """The flags of :class:`~distmetrics.train.Trainer`, which explains them, that are attributes of
    it as they are.
    """

    default_root_dir: Path
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
    seed: int | None
    deterministic: bool | str
    detect_anomaly: bool
    terminate_on_nan: bool
    require_same_names: bool
    use_distributed_sampler: bool

    def keep(self, given: Mapping[str, Any]) -> None:
        """Take over the flags from among all arguments."""
        for name in KeptFlags.__annotations__:
            setattr(self, name, given[name])

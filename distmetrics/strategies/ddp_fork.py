"""DistributedDataParallel in processes forked from this one: also from a notebook's own cells."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.launchers import SpawnLaunch
from distmetrics.strategies.parallel import DataParallelStrategy

__all__ = ["DDPFork", "ForkLaunch"]

T = TypeVar("T")


class ForkLaunch(SpawnLaunch):
    """The ranks are forks of this process: a notebook's own classes are there, and nothing is imported anew."""

    start_method: ClassVar[str] = "fork"

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` in ``devices`` forks of this process; return rank 0's result.

        Raises:
            ConfigurationError: forks are not possible here, or would not work.
        """
        if sys.platform == "win32":
            raise ConfigurationError(f"strategy={self.name!r}: Windows can't fork\nDo:     say strategy='ddp_spawn'.")
        if self.device_type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                f"strategy={self.name!r}: this process has used the GPU already, and its forks could not\n"
                "Do:     run nothing on the GPU before, or say strategy='ddp_spawn'."
            )
        return super().launch(fn, *args)


class DDPFork(ForkLaunch, DataParallelStrategy):
    """As :class:`~distmetrics.strategies.ddp_spawn.DDPSpawn`, but forked: for notebooks.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name: ClassVar[str] = "ddp_fork"

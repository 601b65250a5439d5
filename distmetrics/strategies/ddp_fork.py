"""DistributedDataParallel in processes forked from this one: also from a notebook's own cells."""

import gc
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from distmetrics.errors import ConfigurationError
from distmetrics.launch.script import end_if_alone
from distmetrics.strategies.launchers import SpawnLaunch
from distmetrics.strategies.parallel import DataParallelStrategy

T = TypeVar("T")


class ForkLaunch(SpawnLaunch):
    """The ranks are forks of this process: they have a notebook's classes and import nothing."""

    start_method = "fork"

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` in ``devices`` forks of this process; return rank 0's result.

        Raises:
            ConfigurationError: forks are not possible here, or would not work.
        """
        if sys.platform == "win32":
            raise ConfigurationError(
                f"strategy={self.name!r}: Windows can't fork", do="say strategy='ddp_spawn'."
            )
        if self.device_type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                f"strategy={self.name!r}: this process has used the GPU already, and its forks "
                "could not",
                do="run nothing on the GPU before, or say strategy='ddp_spawn'.",
            )
        end_if_alone()
        if dist.is_initialized():
            raise ConfigurationError(
                f"strategy={self.name!r}: this process is rank {dist.get_rank()} of "
                f"{dist.get_world_size()} of a process group that is open, and its forks would "
                "begin inside of it",
                likely="a launcher has started this script, or an earlier strategy='ddp' with "
                "several devices has run it on every rank; or the script calls init_process_group.",
                do="say strategy='ddp', which uses the ranks that are there; end a group of your "
                "own by torch.distributed.destroy_process_group() before.",
                rank=dist.get_rank(),
            )
        # A fork that frees an old group would wait for threads that it does not have, and abort.
        gc.collect()
        return super().launch(fn, *args)


class DDPFork(ForkLaunch, DataParallelStrategy):
    """As :class:`~distmetrics.strategies.ddp_spawn.DDPSpawn`, but forked: for notebooks.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name = "ddp_fork"

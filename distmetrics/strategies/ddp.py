"""DistributedDataParallel with one run of the script a device: under torchrun, or started by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from distmetrics.launch.environment import detect
from distmetrics.launch.script import join
from distmetrics.launch.siblings import watch_rank_zero
from distmetrics.strategies.base import Devices
from distmetrics.strategies.parallel import DataParallelStrategy

__all__ = ["DDP"]

T = TypeVar("T")


class DDP(DataParallelStrategy):
    """One process a device, each a run of the whole script; gradients averaged over all.

    Under torchrun (or whatever sets its variables) every process joins. Otherwise this process is rank 0 and
    runs its own command line again for the other ranks; they come to the same call and join. The process
    group stays open until the script ends, so nothing needs to be pickled and everything that a step sets is
    there afterwards.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name: ClassVar[str] = "ddp"
    joins: ClassVar[bool] = True

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; under a launcher ``devices`` is the number of its local processes."""
        super().bind(devices, accelerator)
        environment = detect()
        if environment is not None and environment.launcher == "distmetrics":
            watch_rank_zero()  # as early as we can: rank 0 may end before this rank comes to a call

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job, over all machines."""
        environment = detect()
        return self.devices if environment is None else environment.world_size

    @property
    def local_rank(self) -> int:
        """This rank on its machine, as the launcher says."""
        environment = detect()
        return 0 if environment is None else environment.local_rank

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Join this script's world, which the first call makes, and call ``fn(*args)`` there."""
        with join(self.devices, self.backend).running():
            return fn(*args)

"""DistributedDataParallel with one run of the script a device, under torchrun or on its own."""

from distmetrics.strategies.launchers import ScriptLaunch
from distmetrics.strategies.parallel import DataParallelStrategy


class DDP(ScriptLaunch, DataParallelStrategy):
    """One process a device, each a run of the whole script; gradients averaged over all.

    Nothing needs to be pickled, and everything that a step sets is there afterwards.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name = "ddp"

"""DistributedDataParallel in processes that start with a call of the trainer and end with it."""

from distmetrics.strategies.launchers import SpawnLaunch
from distmetrics.strategies.parallel import DataParallelStrategy


class DDPSpawn(SpawnLaunch, DataParallelStrategy):
    """One process a device, started for each call and ended with it; gradients averaged over all.

    The script needs an ``if __name__ == "__main__":`` guard; see
    :class:`~distmetrics.strategies.launchers.SpawnLaunch` for what comes home.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name = "ddp_spawn"

"""Data parallel inside each machine, DistributedDataParallel across machines."""

from torch import nn

from distmetrics.strategies.base import Entry
from distmetrics.strategies.ddp import DDP
from distmetrics.strategies.dp import ReplicaStrategy, Replicated


class DDP2(ReplicaStrategy, DDP):
    """One process for each machine, with a replica for each device as in :class:`DP`.

    Gradients are averaged over the machines. The launcher starts one process on each machine
    (``torchrun --nnodes=2 --nproc-per-node=1``); ``devices`` is the number of its replicas. Each
    machine's batch is cut into parts for its devices. Metrics and ``*_step_end`` are as for
    :class:`DP`.

    Args:
        options: passed to ``DistributedDataParallel``.

    >>> runner = Runner(strategy=DDP2(), devices=1, accelerator="cpu")
    >>> runner.world_size, len(runner.strategy.device_ids)  # a rank, and its replicas
    (1, 1)
    """

    name = "ddp2"

    @property
    def processes(self) -> int:
        """Number of ranks on this machine, one unless the launcher starts more."""
        environment = self.environment()
        return 1 if environment is None else environment.local_world_size

    def inner(self, entry: Entry) -> nn.Module:
        """Return what DistributedDataParallel wraps: the call of this machine's replicas."""
        return Replicated(entry, self)

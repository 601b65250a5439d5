"""Strategies whose ranks are forks of the test's own process: nothing is imported anew, so they start fast."""

from __future__ import annotations

from distmetrics.strategies.ddp_fork import ForkLaunch
from distmetrics.strategies.ddp_sharded import ShardedUpdates
from distmetrics.strategies.fsdp import FullyShardedStrategy
from distmetrics.strategies.parallel import DataParallelStrategy


class ForkedSharded(ForkLaunch, ShardedUpdates, DataParallelStrategy):
    name = "forked_sharded"


class ForkedFSDP(ForkLaunch, FullyShardedStrategy):
    name = "forked_fsdp"

"""Strategies whose ranks are forks of the test's own process: nothing is imported anew, so they start fast."""

from __future__ import annotations

from distmetrics.strategies import FSDP, ShardedDDP
from distmetrics.strategies.launchers import Fork


class ForkedSharded(ShardedDDP):
    name = "forked_sharded"
    launcher = Fork()


class ForkedFSDP(FSDP):
    name = "forked_fsdp"
    launcher = Fork()

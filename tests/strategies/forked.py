"""A strategy whose ranks are forks of the test's own process: they start fast."""

from __future__ import annotations

from distmetrics.strategies import FSDP
from distmetrics.strategies.launchers import Fork


class ForkedFSDP(FSDP):
    name = "forked_fsdp"
    launcher = Fork()

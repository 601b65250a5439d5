"""Faults to inject: ways for one rank of a world to fail, each at one place and once.

Places are ``"update"`` and ``"compute"`` (the metric's
own methods), ``"manifest"`` and ``"data"`` (the first and the second round of a sync), the name of
a collective (``"all_reduce"``), or a number: 1 is the rank's first collective. Over a layout, ranks
are those of its whole mesh, and the making of it does not count.
"""

from distmetrics.testing.faults.communicator import FaultyCommunicator, injected
from distmetrics.testing.faults.fault import (
    Fault,
    RankKilled,
    delay,
    kill,
    raises,
    reshape,
    retype,
    skip,
    stop,
    swap,
)

__all__ = [
    "Fault",
    "FaultyCommunicator",
    "RankKilled",
    "delay",
    "injected",
    "kill",
    "raises",
    "reshape",
    "retype",
    "skip",
    "stop",
    "swap",
]

"""How a model is split over devices: what ``Trainer(strategy=...)`` and ``Runner`` take.

Each strategy is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distmetrics.strategies.base import Strategy
    from distmetrics.strategies.ddp import DDP
    from distmetrics.strategies.ddp2 import DDP2
    from distmetrics.strategies.ddp_fork import DDPFork
    from distmetrics.strategies.ddp_sharded import ShardedDDP, ShardedDDPSpawn
    from distmetrics.strategies.ddp_spawn import DDPSpawn
    from distmetrics.strategies.deepspeed import DeepSpeed
    from distmetrics.strategies.dp import DP
    from distmetrics.strategies.fsdp import FSDP, FSDPSpawn
    from distmetrics.strategies.registry import available, register
    from distmetrics.strategies.sampling import EvaluationSampler, TrainingSampler
    from distmetrics.strategies.single import Single
    from distmetrics.strategies.xla import XLA

__all__ = [
    "DDP",
    "DDP2",
    "DP",
    "FSDP",
    "XLA",
    "DDPFork",
    "DDPSpawn",
    "DeepSpeed",
    "EvaluationSampler",
    "FSDPSpawn",
    "ShardedDDP",
    "ShardedDDPSpawn",
    "Single",
    "Strategy",
    "TrainingSampler",
    "available",
    "register",
]

_MODULES = {
    "DDP": "ddp",
    "DDP2": "ddp2",
    "DDPFork": "ddp_fork",
    "DDPSpawn": "ddp_spawn",
    "DP": "dp",
    "DeepSpeed": "deepspeed",
    "EvaluationSampler": "sampling",
    "FSDP": "fsdp",
    "FSDPSpawn": "fsdp",
    "ShardedDDP": "ddp_sharded",
    "ShardedDDPSpawn": "ddp_sharded",
    "Single": "single",
    "Strategy": "base",
    "TrainingSampler": "sampling",
    "XLA": "xla",
    "available": "registry",
    "register": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

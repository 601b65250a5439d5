"""How a model is split over devices: what ``Trainer(strategy=...)`` and ``Runner`` take."""

from typing import TYPE_CHECKING, Any

from distmetrics.data.sharding import EvaluationSampler, TrainingSampler
from distmetrics.strategies.base import Single, Strategy
from distmetrics.strategies.ddp import DDP, DDPFork, DDPSpawn
from distmetrics.strategies.ddp2 import DDP2
from distmetrics.strategies.ddp_sharded import ShardedDDP, ShardedDDPSpawn
from distmetrics.strategies.deepspeed import DeepSpeed
from distmetrics.strategies.dp import DP
from distmetrics.strategies.registry import available, register
from distmetrics.strategies.xla import XLA

if TYPE_CHECKING:
    from distmetrics.strategies.fsdp import FSDP, FSDPSpawn

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


def __getattr__(name: str) -> Any:
    """Return a strategy that brings torch's FSDP along, which takes long to import."""
    if name not in ("FSDP", "FSDPSpawn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distmetrics.strategies import fsdp

    return getattr(fsdp, name)

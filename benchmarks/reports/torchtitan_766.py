"""A gradient norm whose squares torch has not added up yet."""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from distmetrics import grad_norm

THREAD = "pytorch/torchtitan#766"
DATE = "2025-01-01"
SYMPTOM = "the gradient norm under FSDP differs between ranks: it is of each rank's part"
RANKS, BACKEND = 2, "gloo"
GRADIENT = torch.tensor([3.0, 4.0, 12.0, 84.0])


def _weight() -> Any:
    """Return a parameter with its gradient, as ``fully_shard`` splits them."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    weight = torch.nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    weight.grad = distribute_tensor(GRADIENT, mesh, [Shard(0)])
    return weight


def naive(comm: Any) -> float:
    """Log the norm of what this rank holds: clipping returned it until torch added up squares."""
    return float(_weight().grad.to_local().norm())


def ours(comm: Any) -> float:
    """Ask for the norm of the model's gradients."""
    return float(grad_norm(_weight(), comm=comm))


def right() -> float:
    """Return the norm of the whole gradient."""
    return float(GRADIENT.norm())

"""Tensors of models and optimizers: listed, copied from rank 0, brought to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from distmetrics.collectives.ops import broadcast
from distmetrics.comm.base import Communicator
from distmetrics.tree import map_leaves

T = TypeVar("T")


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return an optimizer's parameters, in the order of its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def copy_from_rank_zero(tensors: Mapping[str, Tensor], what: str, comm: Communicator) -> None:
    """Copy rank 0's tensors into those of every rank, in place."""
    if not tensors or comm.world_size == 1:
        return
    with torch.no_grad():
        for name, value in broadcast(dict(tensors), name=what, comm=comm).items():
            tensors[name].copy_(value)


def to_host(tree: T) -> T:
    """Return a tree with its tensors on the CPU, without gradients."""
    return map_leaves(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, tree)

"""Tensors of models and optimizers: listed, brought to the host."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor
from torch.optim import Optimizer

from distmetrics.tree import map_leaves

T = TypeVar("T")


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return an optimizer's parameters, in the order of its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def to_host(tree: T) -> T:
    """Return a tree with its tensors on the CPU, without gradients."""
    return map_leaves(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, tree)

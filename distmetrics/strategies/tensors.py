"""Tensors of models, optimizers and batches: listed, moved, brought to the host."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.tree import map_leaves

T = TypeVar("T")
StateDict = Mapping[str, Any]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return an optimizer's parameters, in the order of its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def map_tensors(fn: Callable[[Tensor], Any], tree: T) -> T:
    """Return a tree with ``fn`` applied to its tensors; everything else stays."""
    if isinstance(tree, Tensor):  # a loss, say, in each step
        return fn(tree)  # type: ignore[no-any-return]
    return map_leaves(lambda leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def to_host(tree: T) -> T:
    """Return a tree with its tensors on the CPU, without gradients."""
    return map_tensors(lambda tensor: tensor.detach().cpu(), tree)


def check_steps_some(optimizer: Optimizer, module: nn.Module, do: str) -> None:
    """Refuse an optimizer that steps no parameter of the module; ``do`` is the advice."""
    own = set(module.parameters())
    if own.isdisjoint(parameters_of(optimizer)):
        raise ConfigurationError(
            f"the {type(optimizer).__name__} steps no parameter of the {type(module).__name__}: "
            "nothing would be learned",
            likely="it was made for another model, or before this one's parameters were replaced.",
            do=do,
        )

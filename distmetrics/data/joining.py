"""Trees of tensors, a batch each, joined into one along the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_FILLER = -100  # a label that losses ignore, as Hugging Face fills up


def stored(tree: Any) -> Any:
    """Return a tree's tensors on the CPU, as NumPy can take them, in plain dicts, lists, tuples."""
    if isinstance(tree, Tensor):
        tree = tree.detach().cpu()
        tree = tree.float() if tree.dtype == torch.bfloat16 else tree
        return tree if tree.ndim else tree[None]
    if isinstance(tree, Mapping):
        return {key: stored(child) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        children = [stored(child) for child in tree]
        return children if isinstance(tree, list) else tuple(children)
    return tree


def join(trees: Sequence[Any]) -> Any:
    """Return trees of one structure joined along the rows, narrower tensors filled up with -100.

    >>> join([torch.tensor([[1]]), torch.tensor([[2, 3]])])
    tensor([[   1, -100],
            [   2,    3]])
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return _cat(trees)
    if isinstance(first, dict):
        return {key: join([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(join(column) for column in zip(*trees, strict=True))
    return first


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(x.shape[1:]) for x in tensors}
    if len(shapes) == 1:
        return torch.cat(list(tensors))
    widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    filled = []
    for x in tensors:
        wide = x.new_full((len(x), *widest), _FILLER)
        wide[(slice(None), *(slice(size) for size in x.shape[1:]))] = x
        filled.append(wide)
    return torch.cat(filled)

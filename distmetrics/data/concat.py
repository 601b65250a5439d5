"""Trees of tensors, a batch each, joined into one along the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import InputError

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
    if any(type(tree) is not type(first) for tree in trees):
        raise _cannot_join("of several types")
    if isinstance(first, Tensor):
        return _cat(trees)
    if isinstance(first, dict):
        if any(tree.keys() != first.keys() for tree in trees):
            raise _cannot_join("dicts with different keys")
        return {key: join([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        if len({len(tree) for tree in trees}) > 1:
            raise _cannot_join(f"{type(first).__name__}s of different lengths")
        return type(first)(join(column) for column in zip(*trees, strict=True))
    if first is not None:
        raise _cannot_join(f"of type {type(first).__name__}, not tensors")
    return None


def _cannot_join(problem: str) -> InputError:
    return InputError(
        f"evaluate: what the model gives for each batch can't be joined: some are {problem}",
        do="let TrainingArguments(eval_do_concat_batches=False) give lists, one item a batch, or "
        "leave them out: predict(…, ignore_keys=[name]).",
    )


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(x.shape[1:]) for x in tensors}
    if len({len(sizes) for sizes in shapes}) > 1:
        raise _cannot_join("tensors with more dimensions")
    if len(shapes) == 1:
        return torch.cat(list(tensors))
    widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    filled = []
    for x in tensors:
        wide = x.new_full((len(x), *widest), _FILLER)
        wide[(slice(None), *(slice(size) for size in x.shape[1:]))] = x
        filled.append(wide)
    return torch.cat(filled)

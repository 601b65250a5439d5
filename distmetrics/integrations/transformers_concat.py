"""Concatenate trees of tensors, one per batch, along the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.tree import flatten

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
    columns, specs = zip(*map(flatten, trees), strict=True)
    if len(texts := {spec.text: None for spec in specs}) > 1:
        raise _cannot_join(f"of different structures, such as {' and '.join([*texts][:2])}")
    return specs[0].unflatten([_cat(column) for column in zip(*columns, strict=True)])


def _cat(tensors: Sequence[Any]) -> Tensor:
    for x in tensors:
        if not isinstance(x, Tensor):
            raise _cannot_join(f"of type {type(x).__name__}, not tensors")
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


def _cannot_join(problem: str) -> InputError:
    return InputError(
        f"evaluate: what the model gives for each batch can't be joined: some are {problem}",
        do="let TrainingArguments(eval_do_concat_batches=False) give lists, one item a batch, or "
        "leave them out: predict(…, ignore_keys=[name]).",
    )

"""Which rows of the batch that is being read are valid: for loops that need padded batches."""

import copy
import sys
from collections.abc import Mapping
from typing import Any

from distmetrics.data.rank_loader import ValidRows, reading
from distmetrics.data.repeats import check
from distmetrics.data.unwrap import active_loader
from distmetrics.errors import InputError, InputTypeError
from distmetrics.tree import flatten


def fresh(rows: Any) -> Any:
    """Return the rows of the batch that is being read without those that only fill it up.

    A loop whose model must be called equally often on all ranks reads padded batches: all rows go
    through the model, and only the fresh ones into the metric. It knows the batches of
    ``exact(loader, equal_batches=True)`` and those of loaders that Accelerate has prepared.

    Args:
        rows: a tree of tensors of shape (rows of the batch, ...), and of lists of as many texts or
            dicts: the batch, or what the model made of it. Tensors without dimensions stay.

    Raises:
        InputError: no such loader is being read, or it can't know its padding; or several are read
            in turn (``zip``), and their batches have different fresh rows.
        InputTypeError: something in ``rows`` has no known rows.

    >>> import torch
    >>> from distmetrics.data import exact
    >>> for batch in exact(torch.arange(3.0).split(2), equal_batches=True):
    ...     print(fresh(2 * batch))
    tensor([0., 2.])
    tensor([4.])
    """
    count = _rows_in_turn(reading.stack) if reading.stack else _rows_of_accelerate()
    return rows if count is None else _first(rows, count)


def _rows_in_turn(being_read: list[ValidRows]) -> int | None:
    """Return how many rows are valid of the innermost batch, and of those zipped with it."""
    depth = being_read[-1].depth
    numbers = {each.number for each in being_read if each.depth >= depth}
    if len(numbers) > 1:
        raise InputError(
            "fresh can't know which loader's batch the rows are of: several loaders are read in "
            "turn, and their batches have different fresh rows",
            do="read one loader, of a data set that gives both (torch.utils.data.StackDataset).",
        )
    return numbers.pop()


def _first(tree: Any, count: int) -> Any:
    """Return a tree with the first ``count`` rows of everything that has rows."""
    if hasattr(tree, "shape"):
        return tree[:count] if len(tree.shape) else tree
    if isinstance(tree, Mapping):
        result = copy.copy(tree)
        for key, value in tree.items():
            result[key] = _first(value, count)  # type: ignore[index]
        return result
    if isinstance(tree, list | tuple):
        # One a row: texts, say, or dicts; tensors are columns, as loaders collate them.
        are_rows = all(isinstance(item, str | bytes | Mapping) for item in tree)
        if isinstance(tree, list) and not are_rows:
            are_rows = not any(hasattr(leaf, "shape") for leaf in flatten(tree)[0])
        if are_rows:
            return tree[:count]
        children = [_first(child, count) for child in tree]
        return type(tree)._make(children) if hasattr(tree, "_make") else type(tree)(children)
    if tree is None or isinstance(tree, str | bytes | int | float):
        return tree
    raise InputTypeError(
        f"fresh can't leave out rows of a {type(tree).__name__}",
        do="pass tensors, lists of one item a row, or dicts, lists and tuples of them.",
    )


def _rows_of_accelerate() -> int | None:
    """Return how many rows are valid of the batch that Accelerate's loader has just given."""
    loader = active_loader()
    if loader is None:
        raise InputError(
            "fresh: no loader that knows which of its rows are repeats is being read",
            do="call it in the loop over exact(loader, equal_batches=True), or over a loader that "
            "Accelerate has prepared; a loader of exact(loader) repeats nothing, and needs no "
            "fresh.",
        )
    reading.last = None  # its repeats are cut
    pads = getattr(loader.batch_sampler, "even_batches", True) and not loader._drop_last
    process = sys.modules["accelerate.state"].PartialState()
    ranks, rank = process.num_processes, process.process_index
    if not pads or ranks == 1:
        return None
    is_dispatched = hasattr(loader, "slice_fn")  # rank 0 reads, and sends each its part of a round
    known = check(loader)
    if not (known.dealt or is_dispatched):  # told with the first batch, and not after all of them
        raise InputError(
            "fresh: it is not known how many of the last rows of Accelerate's loader are "
            "repeats: it is a stream, or its batch sampler is not torch's",
            do="read distmetrics.integrations.accelerate.prepare(accelerator, loader) instead.",
        )
    if not loader.end_of_dataloader:
        return None
    if is_dispatched:
        valid = loader.remainder
        size = -(-valid // ranks)
    else:
        size = known.dealt // (known.batches * ranks)
        valid = size * ranks - known.repeated
    return int(min(max(valid - rank * size, 0), size))

"""What a loop exchanges with the other ranks: trees, any object, files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives import ops
from distmetrics.collectives.reduce import all_reduce as reduce_all
from distmetrics.collectives.reduce import mean as weighted_mean
from distmetrics.comm.base import Communicator
from distmetrics.errors import DistmetricsError, InputError
from distmetrics.tree import flatten, map_leaves


class _Place:
    """A tensor's place in an object that is sent without its tensors; no dataclass, which would be
    a tree itself.
    """

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.on_cpu = tensor.device.type == "cpu"

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.on_cpu else device)


def broadcast_any(obj: Any, src: int, device: torch.device, comm: Communicator) -> Any:
    """Return rank ``src``'s object on every rank; what the others pass does not count.

    Tensors travel as such, everything else pickled.

    Raises:
        InputError: there is no rank ``src``; InputTypeError: the object can't be pickled (on every
            rank).
    """
    if isinstance(src, bool) or not isinstance(src, int) or not 0 <= src < comm.world_size:
        raise InputError(
            f"broadcast from rank {src!r} in a world of {comm.world_size}", rank=comm.rank
        )
    tensors: list[Tensor] = []

    def taken(leaf: Any) -> Any:
        if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
            return leaf
        tensors.append(leaf.detach())
        return _Place(len(tensors) - 1, leaf)

    bare = map_leaves(taken, obj) if comm.rank == src else None
    bare = ops.all_gather_object(bare, comm=comm, name=f"object of rank {src}")[src]
    if comm.rank != src:
        places = [leaf for leaf in flatten(bare)[0] if isinstance(leaf, _Place)]
        tensors = [place.empty(device) for place in sorted(places, key=lambda place: place.index)]
    received = ops.broadcast(tensors, src, comm=comm) if tensors else []
    return map_leaves(lambda leaf: received[leaf.index] if isinstance(leaf, _Place) else leaf, bare)


def reduce_tree(tree: Any, op: str, weight: float | Tensor | None, comm: Communicator) -> Any:
    """Reduce a tree over all ranks: "sum", "prod", "max", "min", or "mean" with each rank's weight.

    Raises:
        InputError: another ``op``; a mean without a weight, a weight without a mean.
    """
    known = ("sum", "prod", "max", "min", "mean")
    if op not in known:
        raise InputError(f"all_reduce knows the operations {', '.join(known)}, got {op!r}")
    if (op == "mean") != (weight is not None):
        raise InputError(
            "a mean over ranks takes the weight of this rank, and nothing else does",
            likely="ranks hold different numbers of samples, and the mean of their means is not "
            "the samples'.",
            do="all_reduce(x, 'mean', weight=len(batch)); weight=1 counts every rank alike.",
        )
    if weight is not None:
        return weighted_mean(tree, weight, comm=comm)
    return reduce_all(tree, op, comm=comm)  # type: ignore[arg-type]


def write_once(content: Any, path: Path, comm: Communicator) -> None:
    """Write a file on rank 0 so that it is whole or not there; return once it is there, on every
    rank.

    Raises:
        DistmetricsError: it could not be written; on every rank, with the reason.
    """
    problem = ""
    if comm.rank == 0:
        try:
            _write(content, path)
        except Exception as error:  # noqa: BLE001  (told to every rank below, whatever it is)
            problem = f"{type(error).__name__}: {error}"
    problem = ops.all_gather_object(problem, comm=comm, name=f"save {path}")[0]
    if problem:
        raise DistmetricsError(
            f"rank 0 could not write {path}: {problem}", rank=comm.rank, peers=[0]
        )


def _write(content: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(content, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

"""From a user's tree to tensors that can be sent, or to the reason why not."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import Layout, LeafSpec, layout, unsendable
from distmetrics.collectives.dtensor import Part, Shared, is_dtensor, part_of, whole_part
from distmetrics.collectives.header import Header, Problem
from distmetrics.comm.call_site import call_site
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InputTypeError, LayoutError
from distmetrics.tree import Spec, flatten

Take = Callable[[Part, str], Tensor]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One rank's side of a call: its tensors, how to rebuild the tree, and the header."""

    tensors: list[Tensor]
    spec: Spec
    layout: Layout
    header: Header

    def prove(self, comm: Communicator) -> None:
        """Tell a layout what this rank would send."""
        if comm.wants_proof:
            paths = [path or "the value" for path in self.spec.paths]
            comm.witness(self.header.content(), dict(zip(paths, self.tensors, strict=False)))


def prepare(
    op: str,
    name: str,
    tree: Any,
    *,
    comm: Communicator | None = None,
    take: Take = whole_part,
    weight: float | None = None,
    at_least_1d: bool = False,
    refuse: Callable[[Tensor], str] | None = None,
    problem: Problem | None = None,
) -> Prepared:
    """Take a tree apart for the call ``op``.

    An input that must be refused becomes the header's problem: this rank still joins the round,
    so that the others learn of it and raise too, where they would otherwise wait for ever.

    Args:
        op: the operation with all that must be equal on all ranks.
        name: the user's name of the call.
        tree: tensors, numbers and arrays, nested.
        comm: who talks; without it DTensors are refused.
        take: called with a DTensor's part and what errors call it; returns what is sent of it.
        weight: of the tensors; the ranks that hold a DTensor must have the same.
        at_least_1d: count 0-dim leaves as one row.
        refuse: called with each tensor; returns why this operation can't take it, or "".
        problem: one that the caller has found already.
    """
    site = call_site()
    leaves, spec = flatten(tree)
    tensors: list[Tensor] = []
    notes: list[str] = []
    shared: list[Shared] = []
    try:
        for leaf, path in zip(leaves, spec.paths, strict=True):
            where, note = path or "the value", ""
            if comm is not None and is_dtensor(leaf):
                part = part_of(leaf, comm, where)
                leaf, note = take(part, where), part.placements
                shared.append(Shared(where, part.holders, "" if weight is None else repr(weight)))
            tensor = _tensor(leaf, where, refuse)
            tensors.append(tensor.reshape(1) if at_least_1d and tensor.ndim == 0 else tensor)
            notes.append(note)
    except (InputTypeError, LayoutError) as error:
        problem = problem or Problem.of(error)
        tensors = []
    specs = tuple(map(LeafSpec.of, spec.paths, tensors, notes))
    header = Header(op, name, spec.text, specs, site, problem, dtensors=tuple(shared))
    return Prepared(tensors, spec, layout(tensors), header)


def _tensor(leaf: Any, where: str, refuse: Callable[[Tensor], str] | None) -> Tensor:
    """Return a leaf as a dense tensor, or raise InputTypeError."""
    if isinstance(leaf, Tensor):
        check_sendable(leaf, where)
        tensor = leaf
    elif isinstance(leaf, numbers.Number) or hasattr(leaf, "__array__"):
        try:
            tensor = from_number_or_array(leaf)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputTypeError(
                f"{where} is a {type(leaf).__name__} that torch cannot hold: {error}"
            ) from error
    else:
        raise InputTypeError(
            f"{where} is a {type(leaf).__name__}, which is no tensor and no number",
            do="for other objects call all_gather_object.",
        )
    if refuse is not None and (why := refuse(tensor)):
        raise InputTypeError(f"{where} {why}")
    return tensor


def from_number_or_array(leaf: Any) -> Tensor:
    """Return a number or an array as a tensor of its own memory; raise for what torch has not."""
    if isinstance(leaf, numbers.Number):
        wide = {float: torch.float64, complex: torch.complex128}.get(type(leaf))
        return torch.as_tensor(leaf, dtype=wide, device="cpu")
    import numpy as np  # who has an array has it

    # Copied: torch shares no memory with an array that is read-only, or runs backwards.
    array = np.array(leaf)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def check_sendable(x: Tensor, where: str) -> None:
    """Raise InputTypeError for a tensor that has no plain dense data."""
    why, do = unsendable(x.dtype, x.layout, x.is_meta)
    if x.is_nested:
        why, do = "is a nested tensor", "send its parts."
    if is_dtensor(x):
        why = "is a DTensor, sharded over ranks already"
        do = "send x.full_tensor() or x.to_local()."
    if why:
        raise InputTypeError(f"{where} {why}", do=do)

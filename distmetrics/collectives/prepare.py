"""From a user's tree to tensors that can be sent, or to the reason why not."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.manifest import LeafSpec, Manifest
from distmetrics.collectives.pack import Layout, layout
from distmetrics.comm.base import call_site
from distmetrics.errors import InputTypeError
from distmetrics.tree import Spec, flatten


@dataclass(frozen=True, slots=True)
class Prepared:
    """One rank's side of a call: its tensors, how to put the tree together again, and the manifest."""

    tensors: list[Tensor]
    spec: Spec
    layout: Layout
    manifest: Manifest

    def rebuild(self, leaves: list[Tensor]) -> Any:
        """Put the tree together around new leaves."""
        return self.spec.unflatten(leaves)


def prepare(
    op: str,
    name: str,
    tree: Any,
    *,
    at_least_1d: bool = False,
    refuse: Any = None,
    problem: tuple[str, str] | None = None,
) -> Prepared:
    """Take a tree apart for the call ``op``.

    An input that must be refused becomes the manifest's problem: this rank still joins the round,
    so that the others learn of it and raise too, where they would otherwise wait for ever.

    Args:
        op: the operation with all that must be equal on all ranks.
        name: the user's name of the call.
        tree: tensors, numbers and arrays, nested.
        at_least_1d: count 0-dim leaves as one row.
        refuse: called with each tensor; returns why this operation can't take it, or nothing.
        problem: one that the caller has found already.
    """
    site = call_site()
    leaves, spec = flatten(tree)
    tensors: list[Tensor] = []
    try:
        for leaf, path in zip(leaves, spec.paths, strict=True):
            tensor = _tensor(leaf, path)
            if refuse is not None and (why := refuse(tensor)):
                raise InputTypeError(f"{path or 'the value'} {why}")  # noqa: TRY301  (same way as from _tensor)
            tensors.append(tensor.reshape(1) if at_least_1d and tensor.ndim == 0 else tensor)
    except InputTypeError as error:
        problem = problem or ("InputTypeError", str(error))
        tensors = []
    shapes = [tuple(tensor.shape) for tensor in tensors]
    specs = tuple(
        LeafSpec(path, str(tensor.dtype).removeprefix("torch."), shape)
        for path, tensor, shape in zip(spec.paths, tensors, shapes, strict=problem is None)
    )
    manifest = Manifest(op, name, spec.text, specs, site, problem)
    return Prepared(tensors, spec, layout([tensor.dtype for tensor in tensors], shapes), manifest)


def _tensor(leaf: Any, path: str) -> Tensor:
    """Return a leaf as a dense tensor, or raise InputTypeError."""
    where = path or "the value"
    if isinstance(leaf, Tensor):
        if why := _unsendable(leaf):
            raise InputTypeError(f"{where} {why}")
        return leaf
    try:
        if isinstance(leaf, numbers.Number):
            wide = {float: torch.float64, complex: torch.complex128}.get(type(leaf))
            return torch.as_tensor(leaf, dtype=wide)
        if hasattr(leaf, "__array__"):
            return _from_array(leaf)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputTypeError(
            f"{where} is a {type(leaf).__name__} that torch cannot hold: {error}"
        ) from error
    raise InputTypeError(
        f"{where} is a {type(leaf).__name__}, which is no tensor and no number",
        do="for other objects call all_gather_object.",
    )


def _from_array(leaf: Any) -> Tensor:
    """Copy an array: torch shares no memory with one that is read-only, or runs backwards."""
    import numpy as np  # who has an array has it

    array = np.array(leaf)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _unsendable(x: Tensor) -> str:
    if x.layout != torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        return f"is a {kind} tensor\nDo: send its parts, or x.to_dense()."
    if x.is_meta:
        return "is on the meta device and has no data"
    if x.is_quantized:
        return "is quantized\nDo: send x.dequantize()."
    if hasattr(x, "full_tensor"):
        return "is a DTensor, sharded over ranks already\nDo: send x.full_tensor() or x.to_local()."
    return ""

"""From the local values of states to what is sent: a manifest, and tensors in its order. Pure."""

from __future__ import annotations

import functools
import pickle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest, Problem
from distmetrics.collectives.pack import LeafSpec, from_bytes, short_name
from distmetrics.errors import Site, StateError
from distmetrics.state.adapters.base import StateSpec
from distmetrics.state.metric_set import ABSENT, MetricSet
from distmetrics.state.plan import REDUCED, SIZES, UPDATES, Sent, sent_by, sizes_of
from distmetrics.state.serialize import join, serialize

# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, AttributeError, pickle.PicklingError)
_CAN_BE_ADDED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


class Outgoing(NamedTuple):
    """What this rank sends: the manifest, where each tensor lies, and the tensors by path."""

    manifest: Manifest
    sent: Sent
    tensors: dict[str, Tensor]


class _Described:
    """The leaves of a manifest, with their tensors."""

    def __init__(self) -> None:
        self.leaves: list[LeafSpec] = []
        self.tensors: dict[str, Tensor] = {}
        self._shared: dict[tuple[int, str], LeafSpec] = {}

    def add(self, path: str, spec: StateSpec, value: Any) -> None:
        """Describe one state; an object that several states of one kind share is sent once.

        Raises:
            StateError: it cannot be sent.
        """
        shared = self._shared.get((id(value), spec.kind))
        if shared is not None:
            note = f"{shared.note} ={shared.path}"
            self.leaves.append(shared._replace(path=path, note=note))
            return
        tensor, note, sizes = _sendable(value, spec, path)
        _check(path, spec.kind, tensor)
        self._shared[id(value), spec.kind] = self.add_tensor(path, tensor, note)
        if sizes is not None:
            self.add_tensor(sizes_of(path), sizes, SIZES)

    def add_tensor(self, path: str, tensor: Tensor, note: str) -> LeafSpec:
        """Describe one tensor."""
        self.leaves.append(LeafSpec.of(path, tensor, note))
        self.tensors[path] = tensor
        return self.leaves[-1]


def describe(
    metrics: MetricSet, name: str, site: Site | None, problem: Problem | None = None
) -> Outgoing:
    """Turn local values into what is sent.

    A metric that was never updated here sends no state: its default state is no data, and must be
    neither averaged nor counted in. What cannot be sent becomes the manifest's problem, so that
    every rank raises.

    Args:
        metrics: with their local values.
        name: the user's name of the call.
        site: the user's line.
        problem: one that the caller has found already.
    """
    described = _Described()
    described.add_tensor(UPDATES, torch.tensor(metrics.updates, device="cpu"), "sum")
    try:
        for path, place, spec in metrics.states:
            value = metrics.value(place, spec)
            is_empty = value is ABSENT or (isinstance(value, list) and not value)
            if metrics.updates[place] and not is_empty:
                described.add(path, spec, value)
    except StateError as error:  # no data will be moved then
        problem = problem or Problem.of(error)
    leaves = tuple(described.leaves)
    manifest = Manifest(
        "sync of metrics",
        name,
        leaves=leaves,
        site=site,
        problem=problem,
        details=metrics.records(),
    )
    return Outgoing(manifest, sent_by(leaves), described.tensors)


def _sendable(value: Any, spec: StateSpec, path: str) -> tuple[Tensor, str, Tensor | None]:
    """Return a state as one tensor, a note on how to read it, and sizes of items if there are any.

    Raises:
        StateError: there is no such tensor.
    """
    try:
        if spec.kind == "each":
            return serialize(value if spec.start is None else spec.start(value)), "each", None
        if isinstance(value, Tensor) and spec.kind != "items":
            rows = value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value
            return rows, spec.kind, None
        if isinstance(value, list | Tensor):
            return _joined(value if isinstance(value, list) else [value], spec.kind, path)
    except _UNSENDABLE as error:
        raise StateError(f"the state {path} cannot be sent: {error}") from error
    what = f"is a {type(value).__name__}; only tensors and lists can be synced"
    raise StateError(f"the state {path} {what}")


def _joined(items: list[Any], kind: str, path: str) -> tuple[Tensor, str, Tensor | None]:
    """Return the items of a list as one tensor, as :func:`_sendable` does."""
    if not all(isinstance(item, Tensor) for item in items):
        return from_bytes(pickle.dumps(items)), "object", None
    if kind == "cat" and all(item.ndim == 0 for item in items):
        return torch.stack(items), "cat numbers", None  # one process would hold a list of numbers
    if kind == "cat":
        rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
        return rows, "cat", None
    if len({item.dtype for item in items}) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    joined, form, sizes = join(items)
    return joined, f"items {form}", sizes


def _check(path: str, kind: str, tensor: Tensor) -> None:
    """Raise StateError for a tensor that cannot be sent, or not be reduced in this way."""
    if tensor.layout is not torch.strided:
        raise StateError(
            f"the state {path} has the layout {tensor.layout}, and only dense tensors can be "
            "synced",
            do="keep x.to_dense().",
        )
    if tensor.is_meta:
        raise StateError(
            f"the state {path} is on the meta device, where tensors have no data",
            do="make the metric on a real device.",
        )
    if not _is_reducible(kind, tensor.dtype):
        raise StateError(
            f"the state {path} is {short_name(tensor.dtype)}, of which torch has no {kind}",
            do="keep it in another dtype.",
        )


@functools.cache
def _is_reducible(kind: str, dtype: torch.dtype) -> bool:
    """Return True if torch can reduce tensors of this dtype in this way, or need not."""
    if kind in ("max", "min") and dtype.is_complex:
        return False
    return kind not in REDUCED or dtype in _CAN_BE_ADDED

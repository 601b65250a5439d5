"""From the local values of states to what is sent: a manifest, and tensors in its order. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pickle import PicklingError
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest, Problem
from distmetrics.collectives.pack import LeafSpec, short_name, unsendable
from distmetrics.collectives.serialize import serialize
from distmetrics.errors import InputTypeError, Site, StateError
from distmetrics.state.adapters.base import StateSpec
from distmetrics.state.items import join
from distmetrics.state.metric_record import MetricRecord
from distmetrics.state.metric_set import ABSENT, MetricSet
from distmetrics.state.plan import Sent, sent_by, sizes_of
from distmetrics.state.received import SIZES, UPDATES, is_reducible

# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, ValueError, AttributeError, PicklingError)


class Outgoing(NamedTuple):
    """What this rank sends: the manifest, where each tensor lies, and the tensors by path."""

    manifest: Manifest
    sent: Sent
    tensors: dict[str, Tensor]


class _Described:
    """The leaves of a manifest, with their tensors.

    Args:
        serialized: makes a tensor of what is none.
    """

    def __init__(self, serialized: Callable[[Any], Tensor]) -> None:
        self._serialized = serialized
        self.leaves: list[LeafSpec] = []
        self.tensors: dict[str, Tensor] = {}
        self._shared: dict[tuple[int, str], LeafSpec] = {}

    def add(self, path: str, spec: StateSpec, value: Any) -> None:
        """Describe one state; an object that several states of one kind share is sent once.

        Raises:
            StateError: it cannot be sent.
        """
        key = id(value), spec.kind
        shared = self._shared.get(key)
        if shared is not None:
            note = f"{shared.note} ={shared.path}"
            self.leaves.append(shared._replace(path=path, note=note))
            return
        tensor, note, sizes = _sendable(value, spec, path, self._serialized)
        self._shared[key] = self.add_tensor(path, tensor, note)
        if sizes is not None:
            self.add_tensor(sizes_of(path), sizes, SIZES)

    def add_tensor(self, path: str, tensor: Tensor, note: str) -> LeafSpec:
        """Describe one tensor.

        Raises:
            StateError: it cannot be sent.
        """
        leaf = _leaf(path, note, tensor.dtype, tensor.shape, tensor.layout, tensor.is_meta)
        self.leaves.append(leaf)
        self.tensors[path] = tensor
        return leaf


def describe(
    metrics: MetricSet,
    name: str,
    site: Site | None,
    problem: Problem | None = None,
    *,
    allow_pickle: bool = False,
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
        allow_pickle: send objects of any class.
    """
    described = _Described(partial(serialize, allow_pickle=allow_pickle))
    records: tuple[MetricRecord, ...] = ()
    described.add_tensor(UPDATES, torch.tensor(metrics.updates, device="cpu"), "sum")
    try:
        for path, place, spec, value in metrics.states:
            is_empty = value is ABSENT or (isinstance(value, list) and not value)
            if metrics.updates[place] and not is_empty:
                described.add(path, spec, value)
        records = metrics.records()
    except StateError as error:  # no data will be moved then
        problem = problem or Problem.of(error)
    leaves = tuple(described.leaves)
    manifest = Manifest(
        "sync of metrics",
        name,
        leaves=leaves,
        site=site,
        problem=problem,
        details=records,
        allow_pickle=allow_pickle,
    )
    return Outgoing(manifest, sent_by(leaves), described.tensors)


def _sendable(
    value: Any, spec: StateSpec, path: str, serialized: Callable[[Any], Tensor]
) -> tuple[Tensor, str, Tensor | None]:
    """Return a state as one tensor, a note on how to read it, and sizes of items if there are any.

    Raises:
        StateError: there is no such tensor.
    """
    try:
        if spec.kind == "each":
            return serialized(value if spec.start is None else spec.start(value)), "each", None
        if spec.kind == "piece":
            return value, f"piece {spec.piece}", None
        if isinstance(value, Tensor) and spec.kind != "items":
            rows = value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value
            return rows, spec.kind, None
        if isinstance(value, list | Tensor):
            items = value if isinstance(value, list) else [value]
            if all(isinstance(item, Tensor) for item in items):
                return _joined(items, spec.kind, path)
            return serialized(items), "object", None
    except InputTypeError as error:
        what = f"the state {path} cannot be sent: {error.what}"
        raise StateError(what, do=error.do) from error
    except _UNSENDABLE as error:
        raise StateError(f"the state {path} cannot be sent: {error}") from error
    what = f"is a {type(value).__name__}; only tensors and lists can be synced"
    raise StateError(f"the state {path} {what}")


def _joined(items: list[Tensor], kind: str, path: str) -> tuple[Tensor, str, Tensor | None]:
    """Return the items of a list of tensors as one tensor, as :func:`_sendable` does."""
    if kind == "cat" and all(item.ndim == 0 for item in items):
        return torch.stack(items), "cat numbers", None  # one process would hold a list of numbers
    if kind == "cat":
        rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
        return rows, "cat", None
    if len({item.dtype for item in items}) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    joined, form, sizes = join(items)
    return joined, f"items {form}", sizes


@functools.lru_cache(maxsize=1024)
def _leaf(
    path: str,
    note: str,
    dtype: torch.dtype,
    shape: torch.Size,
    layout: torch.layout,
    is_meta: bool,
) -> LeafSpec:
    """Describe a tensor; raise StateError if it cannot be sent, or not be reduced in its way."""
    why, do = unsendable(dtype, layout, is_meta)
    kind = note.partition(" ")[0]
    if not why and not is_reducible(kind, dtype):
        why = f"is {short_name(dtype)}, of which torch has no {kind}"
        do = "keep it in another dtype."
    if why:
        raise StateError(f"the state {path} {why}", do=do)
    return LeafSpec(path, short_name(dtype), tuple(shape), note)

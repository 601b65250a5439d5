"""From the local values of states to what is sent: a header, and tensors in its order. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pickle import PicklingError
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import short_name, unsendable
from distmetrics.collectives.header import Header, Problem, shorten
from distmetrics.collectives.message import encode
from distmetrics.collectives.wire import serialize
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InputTypeError, Site, StateError
from distmetrics.metrics.adapters.base import Kind, Piece, StateSpec
from distmetrics.metrics.metric_set import ABSENT, MetricSet
from distmetrics.metrics.plan import Sent, sent_by, sizes_of
from distmetrics.metrics.ragged import Form, join
from distmetrics.metrics.schema import (
    UPDATES,
    MetricRecord,
    StateEntry,
    SyncSchema,
    is_reducible,
)

# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, ValueError, AttributeError, PicklingError)


class Outgoing(NamedTuple):
    """What this rank sends: the header, where each tensor lies, and the tensors by path."""

    header: Header
    sent: Sent
    tensors: dict[str, Tensor]

    def prove(self, comm: Communicator) -> None:
        """Tell a layout what this rank would send."""
        if comm.wants_proof:
            comm.witness(self.header.content(), self.tensors)


class _Described:
    """The entries of a schema, with their tensors.

    Args:
        serialized: makes a tensor of what is not one.
    """

    def __init__(self, serialized: Callable[[Any], Tensor]) -> None:
        self._serialized = serialized
        self.entries: list[StateEntry] = []
        self.tensors: dict[str, Tensor] = {}
        self._shared: dict[tuple[int, str], StateEntry] = {}

    def add(self, path: str, spec: StateSpec, value: Any) -> None:
        """Describe one state; an object that several states of one kind share is sent once.

        Raises:
            StateError: it cannot be sent.
        """
        key = id(value), spec.kind
        shared = self._shared.get(key)
        if shared is not None:
            self.entries.append(shared.but(path=path, same_as=shared.path))
            return
        tensor, kind, form, sizes = _sendable(value, spec, path, self._serialized)
        self._shared[key] = self.add_tensor(path, tensor, kind, form, spec.piece)
        if sizes is not None:
            self.add_tensor(sizes_of(path), sizes, "sizes")

    def add_tensor(
        self,
        path: str,
        tensor: Tensor,
        kind: Kind | Literal["sizes"],
        form: Form | None = None,
        piece: Piece | None = None,
    ) -> StateEntry:
        """Describe one tensor.

        Raises:
            StateError: it cannot be sent.
        """
        about = tensor.dtype, tensor.shape, tensor.layout, tensor.is_meta
        entry = _entry(path, kind, form, piece, *about)
        self.entries.append(entry)
        self.tensors[path] = tensor
        return entry


def describe(
    metrics: MetricSet,
    name: str,
    site: Site | None,
    problem: Problem | None = None,
    *,
    allow_pickle: bool = False,
) -> Outgoing:
    """Turn local values into what is sent.

    A metric that was never updated here sends no state: its default state is not data, and must be
    neither averaged nor counted in. What cannot be sent becomes the header's problem, so that
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
    entries = tuple(described.entries)
    header = Header(
        "sync of metrics",
        name,
        site=site,
        problem=problem,
        allow_pickle=allow_pickle,
        body=encode(SyncSchema(records, entries)),
        detail=shorten(entries),
    )
    return Outgoing(header, sent_by(entries), described.tensors)


_Sendable = tuple[Tensor, Kind, Form | None, Tensor | None]


def _sendable(
    value: Any, spec: StateSpec, path: str, serialized: Callable[[Any], Tensor]
) -> _Sendable:
    """Return a state as one tensor, its kind, the form of its items, and their sizes.

    Raises:
        StateError: there is no such tensor.
    """
    try:
        if spec.kind == "each":
            sent = value if spec.start is None else spec.start(value)
            return serialized(sent), "each", None, None
        if spec.kind == "piece" or (isinstance(value, Tensor) and spec.kind != "items"):
            rows = value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value
            return rows, spec.kind, None, None
        if isinstance(value, list | Tensor):
            items = value if isinstance(value, list) else [value]
            if all(isinstance(item, Tensor) for item in items):
                return _joined(items, spec.kind, path)
            return serialized(items), "object", None, None
    except InputTypeError as error:
        what = f"the state {path} cannot be sent: {error.what}"
        raise StateError(what, do=error.do) from error
    except _UNSENDABLE as error:
        raise StateError(f"the state {path} cannot be sent: {error}") from error
    what = f"is a {type(value).__name__}; only tensors and lists can be synced"
    raise StateError(f"the state {path} {what}")


def _joined(items: list[Tensor], kind: Kind, path: str) -> _Sendable:
    """Return the items of a list of tensors as one tensor, as :func:`_sendable` does."""
    if kind == "cat" and all(item.ndim == 0 for item in items):
        return torch.stack(items), "cat", Form("numbers"), None  # as one process would hold them
    if kind == "cat":
        rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
        return rows, "cat", None, None
    if len({item.dtype for item in items}) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    joined, form, sizes = join(items)
    return joined, "items", form, sizes


@functools.lru_cache(maxsize=1024)
def _entry(
    path: str,
    kind: Kind | Literal["sizes"],
    form: Form | None,
    piece: Piece | None,
    dtype: torch.dtype,
    shape: torch.Size,
    layout: torch.layout,
    is_meta: bool,
) -> StateEntry:
    """Describe a tensor; raise StateError if it cannot be sent, or not be reduced in its way."""
    why, do = unsendable(dtype, layout, is_meta)
    if not why and not is_reducible(kind, dtype):
        why = f"is {short_name(dtype)}, of which torch has no {kind}"
        do = "keep it in another dtype."
    if why:
        raise StateError(f"the state {path} {why}", do=do)
    same_as = ""
    return StateEntry(path, short_name(dtype), tuple(shape), "", kind, form, same_as, piece)

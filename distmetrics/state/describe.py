"""From the local values of states to what is sent: a manifest, and tensors in its order. Pure."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import LeafSpec, Manifest
from distmetrics.errors import Site, StateError
from distmetrics.state.freeze import freeze
from distmetrics.state.items import Owned, join
from distmetrics.state.plan import SIZES, UPDATES, Sent, sent_by, sizes_of
from distmetrics.state.spec import REDUCED, Missing, StateSpec
from distmetrics.state.structure import Structure

# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, AttributeError, pickle.PicklingError)
_Leaf = tuple[str, torch.dtype, tuple[int, ...], str]
_Signature = tuple[tuple[torch.dtype, tuple[int, ...], torch.device, torch.layout], ...]
_dtype_of, _ndim_of = operator.attrgetter("dtype"), operator.attrgetter("ndim")
_signature_of = operator.attrgetter("dtype", "shape", "device", "layout")
_ADDED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


class Outgoing(NamedTuple):
    """What this rank sends: the manifest, its layout, reduced and stacked states, lists as one
    tensor each.

    ``device``: where all states of fixed size are, if they all are tensors on one device; ``own``:
    lists of items, by path, which may be in the result as they are.
    """

    manifest: Manifest
    sent: Sent
    fixed: list[Tensor]
    lists: list[Tensor]
    device: torch.device | None
    own: dict[str, Owned]


def describe(
    shape: Structure,
    values: Sequence[Any],
    updates: Sequence[int],
    name: str,
    site: Site | None,
    problem: str | None = None,
) -> Outgoing:
    """Turn local values into what is sent.

    A metric that was never updated here sends nothing: its default state is no data, and must be
    neither averaged nor counted in. An object that several metrics share is sent once. What cannot
    be sent becomes the manifest's problem, so that every rank raises.

    Args:
        shape: of the metrics.
        values: the local values of the states, in its order.
        updates: how often each metric was updated.
        name: the user's name of the call.
        site: the user's line.
        problem: one that the caller has found already.
    """
    counts = _counts(tuple(updates))
    fixed = shape.inline(values)
    if all(updates) and set(map(type, fixed)) <= {Tensor}:
        # By far the most common case: every state of fixed size is a tensor. What is said of them,
        # and of lists as long as the last time, is kept from sync to sync.
        distinct, origins = _distinct([counts, *fixed], shape.inline_kinds)
        lists, tensors, own, found = _leaves(shape, shape.rest, values, updates)
        told = _told(
            shape, [*map(_signature_of, distinct)], (origins, lists, name, site, problem or found)
        )
        if told is not None:
            manifest, sent, device = told
            return Outgoing(
                manifest, sent, distinct, [tensors[path] for path in sent.bulk_paths], device, own
            )
    leaves, tensors, own, found = _leaves(shape, range(len(shape.specs)), values, updates)
    leaves.insert(0, (UPDATES, counts.dtype, counts.shape, "sum"))
    tensors[UPDATES] = counts
    manifest, sent = _encode(shape, tuple(leaves), name, site, problem or found)
    inline, bulk = (
        [tensors[path] for path in paths] for paths in (sent.inline_paths, sent.bulk_paths)
    )
    return Outgoing(manifest, sent, inline, bulk, None, own)


def _leaves(
    shape: Structure, places: Sequence[int], values: Sequence[Any], updates: Sequence[int]
) -> tuple[list[_Leaf], dict[str, Tensor], dict[str, Owned], str | None]:
    """Describe the states at ``places`` one by one; return tensors and own items by path, and what
    is wrong with one.

    What is wrong ends it: no data will be moved then.
    """
    leaves: list[_Leaf] = []
    tensors: dict[str, Tensor] = {}
    own: dict[str, Owned] = {}
    shared: dict[int, tuple[str, _Leaf]] = {}
    for place in places:
        spec, path, value = shape.specs[place], shape.order[place + 1], values[place]
        if (
            not updates[shape.owners[place]]
            or value is Missing.ABSENT
            or (type(value) is list and not value)
        ):
            continue
        try:
            leaves += _add(value, spec, path, tensors, own, shared)
        except StateError as error:
            return leaves, tensors, own, str(error)
        except _UNSENDABLE as error:
            return leaves, tensors, own, f"the state {path} cannot be sent: {error}"
    return leaves, tensors, own, None


def _told(
    shape: Structure, signature: list[Any], rest: tuple[Any, ...]
) -> tuple[Manifest, Sent, torch.device | None] | None:
    """Return what :func:`_of_tensors` does; that it is the same as the last time is seen without
    hashing it.
    """
    last = shape.memo.get("last")  # one object: ranks that are threads share the structure
    if last is not None and last[0] == signature and last[1] == rest:
        return last[2]  # type: ignore[no-any-return]
    origins, lists, *others = rest
    told = _of_tensors(shape, tuple(signature), origins, tuple(lists), *others)
    shape.memo["last"] = (signature, rest, told)
    return told


@functools.lru_cache(maxsize=64)
def _counts(updates: tuple[int, ...]) -> Tensor:
    """Return the update counts as what is sent; epochs of one length have the same. Only ever read."""
    return torch.tensor(
        updates, device="cpu"
    )  # whatever the default device of this moment: others get it as well


def _distinct(values: list[Tensor], kinds: Sequence[str]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Return what several states of one kind share once, and the place of the first for every state
    that shares.
    """
    ids = list(map(id, values))
    if len(set(ids)) == len(ids):
        return values, ()
    first: dict[tuple[int, str], int] = {}
    places = range(len(ids))
    origins = tuple(map(first.setdefault, zip(ids, kinds, strict=True), places))
    return list(itertools.compress(values, map(operator.eq, origins, places))), origins


def _add(
    value: Any,
    spec: StateSpec,
    path: str,
    tensors: dict[str, Tensor],
    own: dict[str, Owned],
    shared: dict[int, tuple[str, _Leaf]],
) -> list[_Leaf]:
    """Describe one state, and keep its tensor unless another state has sent it already; items bring
    their sizes.
    """
    first = shared.get(id(value))
    if first is not None and first[0] == spec.kind:
        origin, dtype, shape, note = first[1]
        return [(path, dtype, shape, f"{note} ={origin}")]
    if spec.read_only:
        with torch.enable_grad():  # items of which one needs a gradient are told by what they make
            tensor, note, sizes = _sendable(value, spec, path)
        if tensor.requires_grad:
            tensor = tensor.detach()
        elif (
            isinstance(value, list) and len(value) > 1 and note != "object"
        ):  # one item may be the value itself
            owned = Owned.of(value, tensor, note.removeprefix("items "), sizes)
            if owned is not None:
                own[path] = owned
    else:
        tensor, note, sizes = _sendable(value, spec, path)
    refusal = _refusal(spec.kind, tensor.dtype, tensor.device, tensor.layout)
    if refusal:
        raise StateError(f"the state {path} {refusal}")
    leaves: list[_Leaf] = [(path, tensor.dtype, tensor.shape, note)]
    tensors[path] = tensor
    shared[id(value)] = (spec.kind, leaves[0])
    if sizes is not None:
        leaves.append((sizes_of(path), sizes.dtype, sizes.shape, SIZES))
        tensors[sizes_of(path)] = sizes
    return leaves


def _sendable(value: Any, spec: StateSpec, path: str) -> tuple[Tensor, str, Tensor | None]:
    """Return one state as a single tensor, the note that tells the others how to read it, and sizes
    of items.
    """
    if spec.kind == "each":
        return freeze(value if spec.start is None else spec.start(value)), "each", None
    if isinstance(value, Tensor) and spec.kind != "items":
        return (
            (value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value),
            spec.kind,
            None,
        )
    if not isinstance(value, list | Tensor):
        raise StateError(
            f"the state {path} is a {type(value).__name__}; only tensors and lists can be synced"
        )
    value = value if isinstance(value, list) else [value]
    if set(map(type, value)) != {Tensor} and not all(isinstance(item, Tensor) for item in value):
        return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), "object", None
    if spec.kind == "cat":
        if set(map(_ndim_of, value)) == {0}:
            return torch.stack(value), "cat numbers", None
        return (
            torch.cat([item.reshape(1) if item.ndim == 0 else item for item in value]),
            "cat",
            None,
        )
    if len(set(map(_dtype_of, value))) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    joined, form, sizes = join(value)
    return joined, f"items {form}", sizes


@functools.lru_cache(maxsize=256)
def _refusal(kind: str, dtype: torch.dtype, device: torch.device, layout: torch.layout) -> str:
    """Why such a tensor cannot be sent, or its kind not be reduced; empty if all is well."""
    if layout is not torch.strided:
        return (
            f"has the layout {layout}, and only dense tensors can be synced\nDo: keep x.to_dense()."
        )
    if device.type == "meta":
        return "is on the meta device, where tensors have no data\nDo: make the metric on a real device."
    if kind not in REDUCED or (
        dtype in _ADDED and not (dtype.is_complex and kind in ("max", "min"))
    ):
        return ""
    return f"is {str(dtype).removeprefix('torch.')}, of which torch has no {kind}\nDo: keep it in another dtype."


@functools.lru_cache(maxsize=256)
def _of_tensors(
    shape: Structure,
    signature: _Signature,
    origins: tuple[int, ...],
    lists: tuple[_Leaf, ...],
    name: str,
    site: Site | None,
    problem: str | None,
) -> tuple[Manifest, Sent, torch.device | None] | None:
    """Describe tensors of fixed size, given by dtype, shape and device, and by what shares a tensor
    with what.

    Args: as of :func:`describe`; ``lists``: what is said of all other states.

    Returns: None where a tensor cannot be sent.
    """
    origins = origins or tuple(range(len(shape.inline_paths)))
    distinct = iter(signature)
    leaves: list[_Leaf] = []
    for place, (path, kind, origin) in enumerate(
        zip(shape.inline_paths, shape.inline_kinds, origins, strict=True)
    ):
        if origin == place:
            dtype, size, device, form = next(distinct)
            if _refusal(kind, dtype, device, form):
                return None
            leaves.append((path, dtype, size, kind))
        else:
            first, dtype, size, note = leaves[origin]
            leaves.append((path, dtype, size, f"{note} ={first}"))
    devices = {device for _, _, device, _ in signature[1:]}  # the first are the counts
    return *_encode(shape, (*leaves, *lists), name, site, problem), devices.pop() if len(
        devices
    ) == 1 else None


@functools.lru_cache(maxsize=256)
def _encode(
    shape: Structure, leaves: tuple[_Leaf, ...], name: str, site: Site | None, problem: str | None
) -> tuple[Manifest, Sent]:
    specs = tuple(
        LeafSpec(path, str(dtype).removeprefix("torch."), tuple(size), note)
        for path, dtype, size, note in leaves
    )
    reason = None if problem is None else ("StateError", problem)
    return Manifest("sync of metrics", name, shape.tree, specs, site, reason), sent_by(specs)

"""From the local values of states to what is sent: a manifest, and tensors in its order. Pure."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import LeafSpec, Manifest
from distmetrics.comm.base import Site
from distmetrics.errors import StateError
from distmetrics.state.plan import INLINE, UPDATES, Sent, sent_by
from distmetrics.state.spec import StateSpec, StateSpecs

__all__ = ["Outgoing", "Structure", "describe", "structure"]

# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all ranks.
_UNSENDABLE = (StateError, RuntimeError, TypeError, AttributeError, pickle.PicklingError)
_Leaf = tuple[str, torch.dtype, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What metrics have in common whatever they hold; made once for metrics of the same kinds under the same paths.

    Attributes:
        tree: a text that must be equal on all ranks.
        order: paths of all states.
        paths: the same, by metric.
        kinds: of all states.
        fixed: whether every state is of a size that does not depend on the data.
    """

    tree: str
    order: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]
    fixed: bool


class Outgoing(NamedTuple):
    """What this rank sends: the manifest, its layout, reduced and stacked states, lists as one tensor each."""

    manifest: Manifest
    sent: Sent
    fixed: list[Tensor]
    lists: list[Tensor]


@functools.lru_cache(maxsize=256)
def structure(metrics: tuple[tuple[str, str, StateSpecs], ...]) -> Structure:
    """Describe metrics given as (path, class, states)."""
    paths = tuple(
        tuple(f"{path}.{spec.name}" if path else spec.name for spec in specs.each) for path, _, specs in metrics
    )
    texts = [f"{f'{path}: ' if path else ''}{kind}({', '.join(map(str, specs.each))})" for path, kind, specs in metrics]
    kinds = ("sum", *(spec.kind for _, _, specs in metrics for spec in specs.each))
    order = (UPDATES, *itertools.chain(*paths))
    return Structure("; ".join(texts), order, paths, kinds, all(kind in INLINE for kind in kinds))


def describe(
    shape: Structure,
    specs: Sequence[StateSpecs],
    values: Sequence[Sequence[Any]],
    updates: Sequence[int],
    name: str,
    site: Site | None,
    problem: str | None = None,
) -> Outgoing:
    """Turn local values into what is sent.

    A metric that was never updated here sends nothing: its default state is no data, and must be neither averaged nor
    counted in. An object that several metrics share is sent once. What cannot be sent becomes the manifest's problem,
    so that every rank raises.

    Args:
        shape: of the metrics; ``specs`` of each metric.
        specs: the states of each metric.
        values: the local values of the states, by metric.
        updates: how often each metric was updated.
        name: the user's name of the call.
        site: the user's line.
        problem: one that the caller has found already.
    """
    counts = torch.tensor(updates)
    flat = list(itertools.chain.from_iterable(values))
    idle = any(not count and own.each for count, own in zip(updates, specs, strict=True))
    if shape.fixed and not idle and set(map(type, flat)) <= {Tensor}:
        # By far the most common case: every state is a tensor. Its description is kept from sync to sync.
        fixed, origins = _distinct([counts, *flat], shape.kinds)
        signature = tuple([(value.dtype, value.shape) for value in fixed])
        manifest, sent = _of_tensors(shape, signature, origins, name, site, problem)
        return Outgoing(manifest, sent, fixed, [])
    leaves: list[_Leaf] = [(UPDATES, counts.dtype, counts.shape, "sum")]
    tensors: dict[str, Tensor] = {UPDATES: counts}
    shared: dict[int, tuple[str, _Leaf]] = {}
    try:
        for own, paths, held, count in zip(specs, shape.paths, values, updates, strict=True):
            for spec, path, value in zip(own.each, paths, held, strict=True) if count else ():
                if not (type(value) is list and not value):
                    leaves.append(_add(value, spec, path, tensors, shared))
    except _UNSENDABLE as error:
        problem = problem or str(error)
    manifest, sent = _encode(shape, tuple(leaves), name, site, problem)
    inline, bulk = ([tensors[path] for path in paths] for paths in (sent.inline_paths, sent.bulk_paths))
    return Outgoing(manifest, sent, inline, bulk)


def _distinct(values: list[Tensor], kinds: Sequence[str]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Return what several states of one kind share once, and the place of the first for every state that shares."""
    if len(set(map(id, values))) == len(values):
        return values, ()
    places: dict[tuple[int, str], int] = {}
    keys = zip(map(id, values), kinds, strict=True)
    origins = tuple([places.setdefault(key, place) for place, key in enumerate(keys)])
    return [value for place, value in enumerate(values) if origins[place] == place], origins


def _add(
    value: Any, spec: StateSpec, path: str, tensors: dict[str, Tensor], shared: dict[int, tuple[str, _Leaf]]
) -> _Leaf:
    """Describe one state, and keep its tensor unless another state has sent it already."""
    first = shared.get(id(value))
    if first is not None and first[0] == spec.kind:
        origin, dtype, shape, note = first[1]
        return path, dtype, shape, f"{note} ={origin}"
    tensor, note = _sendable(value, spec, path)
    leaf = (path, tensor.dtype, tensor.shape, note)
    tensors[path] = tensor
    shared[id(value)] = (spec.kind, leaf)
    return leaf


def _sendable(value: Any, spec: StateSpec, path: str) -> tuple[Tensor, str]:
    """Return one state as a single tensor, and the note that tells the others how to read it."""
    if isinstance(value, Tensor):
        if spec.kind == "items":
            return value.reshape(-1), f"items {json.dumps([list(value.shape)])}"
        return (value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value), spec.kind
    if not isinstance(value, list):
        raise StateError(f"the state {path} is a {type(value).__name__}; only tensors and lists can be synced")
    if not all(isinstance(item, Tensor) for item in value):
        return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), "object"
    if spec.kind == "cat":
        return torch.cat([item.reshape(1) if item.ndim == 0 else item for item in value]), "cat"
    if len({item.dtype for item in value}) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    shapes = json.dumps([list(item.shape) for item in value], separators=(",", ":"))
    return torch.cat([item.reshape(-1) for item in value]), f"items {shapes}"


@functools.lru_cache(maxsize=256)
def _of_tensors(
    shape: Structure,
    signature: tuple[tuple[torch.dtype, tuple[int, ...]], ...],
    origins: tuple[int, ...],
    name: str,
    site: Site | None,
    problem: str | None,
) -> tuple[Manifest, Sent]:
    """Describe states that are tensors, given by (dtype, shape) and by what shares a tensor with what."""
    origins = origins or tuple(range(len(shape.order)))
    distinct = iter(signature)
    leaves: list[_Leaf] = []
    for place, (path, kind, origin) in enumerate(zip(shape.order, shape.kinds, origins, strict=True)):
        if origin == place:
            leaves.append((path, *next(distinct), kind))
        else:
            first, dtype, size, note = leaves[origin]
            leaves.append((path, dtype, size, f"{note} ={first}"))
    return _encode(shape, tuple(leaves), name, site, problem)


@functools.lru_cache(maxsize=256)
def _encode(
    shape: Structure, leaves: tuple[_Leaf, ...], name: str, site: Site | None, problem: str | None
) -> tuple[Manifest, Sent]:
    specs = tuple(
        LeafSpec(path, str(dtype).removeprefix("torch."), tuple(size), note) for path, dtype, size, note in leaves
    )
    reason = None if problem is None else ("StateError", problem)
    return Manifest("sync of metrics", name, shape.tree, specs, site, reason), sent_by(specs)

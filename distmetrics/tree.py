"""Trees of tensors: dicts, lists, tuples, named tuples, dataclasses, nested ones, empty ones.

Dict keys are visited in sorted order, so two ranks that filled a dict in different order agree; the
rebuilt dict keeps the order of the one that came in. Classes derived from dict (Hugging Face's
outputs, say) work too. ``None`` is structure, not a leaf.
"""

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")
_Build = Callable[[Iterator[Any]], Any]


class Spec(NamedTuple):
    """The shape of a tree without its leaves."""

    text: str  # the same for equal trees on all ranks: ``{'a': *, 'b': [*, *]}``
    paths: tuple[str, ...]  # how a user would reach each leaf: ``['a']``, ``['b'][0]``
    build: _Build

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Build the tree again around new leaves, one for each path."""
        return self.build(iter(leaves))


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """Take a tree apart into its leaves and its :class:`Spec`.

    >>> leaves, spec = flatten({"b": [2, 3], "a": 1})
    >>> leaves, spec.text, spec.paths
    ([1, 2, 3], "{'a': *, 'b': [*, *]}", ("['a']", "['b'][0]", "['b'][1]"))
    >>> spec.unflatten([10, 20, 30])
    {'b': [20, 30], 'a': 10}
    """
    found: list[tuple[str, Any]] = []
    text, build = _visit(tree, "", found)
    return [leaf for _, leaf in found], Spec(text, tuple(path for path, _ in found), build)


def map_leaves(fn: Callable[[Any], Any], tree: T) -> T:
    """Return the tree with ``fn`` applied to every leaf.

    >>> map_leaves(lambda x: x + 1, (1, {"a": 2}))
    (2, {'a': 3})
    """
    leaves, spec = flatten(tree)
    result: T = spec.unflatten([fn(leaf) for leaf in leaves])
    return result


def move(batch: T, device: torch.device) -> T:
    """Return the batch with every tensor on ``device``, and whatever else has a method ``to``.

    >>> move({"x": torch.zeros(2), "name": "a"}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'name': 'a'}
    """

    def to_device(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    return map_leaves(to_device, batch)


def _visit(tree: Any, path: str, found: list[tuple[str, Any]]) -> tuple[str, _Build]:
    """Add the leaves with their paths to ``found``; return the tree's text and builder."""
    if tree is None:
        return "None", lambda new: None
    split = _split(tree)
    if split is None:
        found.append((path, tree))
        return "*", next
    brackets, children, rebuild = split
    texts, builds = [], []
    for step, label, child in children:
        text, build = _visit(child, path + step, found)
        texts.append(label + text)
        builds.append(build)
    name = "" if type(tree) in (dict, list, tuple) else type(tree).__name__
    whole = f"{name}{brackets[0]}{', '.join(texts)}{brackets[1]}"
    return whole, lambda new: rebuild([build(new) for build in builds])


# Of a child: its step in a path (``['a']``), its name in a text (``'a': ``), itself.
_Children = list[tuple[str, str, Any]]


def _split(tree: Any) -> tuple[str, _Children, Callable[[list[Any]], Any]] | None:
    """Return a container's brackets, its children and its builder; None for a leaf."""
    kind = type(tree)
    if isinstance(tree, dict):
        keys = sorted(tree, key=repr)  # of any types
        items = [(f"[{key!r}]", f"{key!r}: ", tree[key]) for key in keys]
        # The copy is in the order of the dict that came in.
        return "{}", items, lambda new: _copied(tree, operator.setitem, keys, new)
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return "()", _attributes(tree, kind._fields), kind._make
    if kind is list or isinstance(tree, tuple):  # such as torch.max(x, dim=0)
        items = [(f"[{index}]", "", value) for index, value in enumerate(tree)]
        return "[]" if kind is list else "()", items, kind
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        put = object.__setattr__  # also of a frozen one
        return "()", _attributes(tree, names), lambda new: _copied(tree, put, names, new)
    return None


def _attributes(tree: Any, names: Sequence[str]) -> _Children:
    return [(f".{name}", f"{name}=", getattr(tree, name)) for name in names]


def _copied(tree: Any, put: Callable[..., None], keys: list[Any], values: list[Any]) -> Any:
    """Copy a container with other values; no ``__init__`` and no ``__post_init__`` runs."""
    result = copy.copy(tree)
    for key, value in zip(keys, values, strict=True):
        put(result, key, value)
    return result

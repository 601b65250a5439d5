"""Trees of tensors: dicts, lists, tuples, named tuples, dataclasses, nested ones, empty ones.

Dict keys are visited in sorted order, so two ranks that filled a dict in different order agree; the
rebuilt dict keeps the order of the one that came in. Classes derived from dict (Hugging Face's
outputs, say) work too. ``None`` is structure, not a leaf.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_Build = Callable[[Iterator[Any]], Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """The shape of a tree without its leaves."""

    text: str  # the same for equal trees on all ranks: ``{'a': *, 'b': [*, *]}``
    paths: tuple[str, ...]  # how a user would reach each leaf: ``['a']``, ``['b'][0]``
    _build: _Build = dataclasses.field(repr=False, compare=False)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Build the tree again around new leaves, one for each path."""
        return self._build(iter(leaves))


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """Take a tree apart into its leaves and its :class:`Spec`.

    >>> leaves, spec = flatten({"b": [2, 3], "a": 1})
    >>> leaves, spec.text, spec.paths
    ([1, 2, 3], "{'a': *, 'b': [*, *]}", ("['a']", "['b'][0]", "['b'][1]"))
    >>> spec.unflatten([10, 20, 30])
    {'b': [20, 30], 'a': 10}
    """
    leaves: list[Any] = []
    paths: list[str] = []
    text, build = _visit(tree, "", leaves, paths)
    return leaves, Spec(text, tuple(paths), build)


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


def _visit(tree: Any, path: str, leaves: list[Any], paths: list[str]) -> tuple[str, _Build]:
    if tree is None:
        return "None", lambda new: None
    split = _split(tree)
    if split is None:
        leaves.append(tree)
        paths.append(path)
        return "*", next
    (opening, closing), children, rebuild = split
    texts = []
    builds = []
    for step, label, value in children:
        text, build = _visit(value, path + step, leaves, paths)
        texts.append(label + text)
        builds.append(build)
    whole = f"{opening}{', '.join(texts)}{closing}"
    return whole, lambda new: rebuild([build(new) for build in builds])


# Of a child: its step in a path (``['a']``), its name in a text (``'a': ``), itself.
_Children = Iterable[tuple[str, str, Any]]
_Split = tuple[Sequence[str], _Children, Callable[[list[Any]], Any]]


def _split(tree: Any) -> _Split | None:
    """Return a container's brackets, its named children and its builder; None for a leaf."""
    kind = type(tree)
    if kind in (list, tuple):
        return "[]" if kind is list else "()", _items(tree), kind
    if isinstance(tree, dict):
        return _split_dict(tree)
    brackets = f"{kind.__name__}(", ")"
    if isinstance(tree, tuple):
        if hasattr(kind, "_fields"):
            return brackets, _fields(kind._fields, tree), kind._make
        return brackets, _items(tree), kind  # such as torch.max(x, dim=0)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        children = _fields(names, [getattr(tree, name) for name in names])
        return brackets, children, lambda new: _replaced(tree, names, new)
    return None


def _items(values: Iterable[Any]) -> _Children:
    return [(f"[{index}]", "", value) for index, value in enumerate(values)]


def _fields(names: Iterable[str], values: Iterable[Any]) -> _Children:
    return [(f".{name}", f"{name}=", value) for name, value in zip(names, values, strict=True)]


def _split_dict(tree: dict[Any, Any]) -> _Split:
    keys = sorted(tree, key=repr)  # of any types

    def rebuild(new: list[Any]) -> Any:
        result = copy.copy(tree)  # in the order of the dict that came in
        for key, value in zip(keys, new, strict=True):
            result[key] = value
        return result

    name = "" if type(tree) is dict else type(tree).__name__
    children = [(f"[{key!r}]", f"{key!r}: ", tree[key]) for key in keys]
    return (f"{name}{{", "}"), children, rebuild


def _replaced(tree: Any, names: list[str], values: list[Any]) -> Any:
    """Copy a dataclass, also a frozen one, with other values; run no ``__post_init__``."""
    result = copy.copy(tree)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(result, name, value)
    return result

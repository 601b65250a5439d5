"""Trees come apart and go together again unchanged, and equal trees have equal texts on every rank."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.tree import flatten, map_leaves


class Point(NamedTuple):
    x: Any
    y: Any


class Picky(namedtuple("Picky", "x y")):
    def __new__(cls, both: Any) -> Picky:
        return super().__new__(cls, both, both)


@dataclass(frozen=True, slots=True)
class Frozen:
    loss: Any
    rest: Any = None


@dataclass
class Checked:
    value: Any
    runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.runs += 1


class ModelOutput(OrderedDict[str, Any]):
    """Like the outputs of model libraries: a dict of a class of its own, with attributes and no ``update``."""

    def update(self, *_: Any) -> None:
        raise TypeError("items are attributes too")


@pytest.mark.parametrize(
    ("tree", "text", "paths"),
    [
        ({"a": [], "b": ()}, "{'a': [], 'b': ()}", []),
        ([1, (2, None)], "[*, (*, None)]", ["[0]", "[1][0]"]),
        ({"b": 1, "a": [2]}, "{'a': [*], 'b': *}", ["['a'][0]", "['b']"]),
        ({1: 1, "1": 2}, "{'1': *, 1: *}", ["['1']", "[1]"]),
        (Point(1, [2]), "Point(x=*, y=[*])", [".x", ".y[0]"]),
        (Frozen(1, {"k": 2}), "Frozen(loss=*, rest={'k': *})", [".loss", ".rest['k']"]),
        (OrderedDict(b=1, a=2), "OrderedDict{'a': *, 'b': *}", ["['a']", "['b']"]),
        (defaultdict(list, a=1), "defaultdict{'a': *}", ["['a']"]),
        (ModelOutput([("loss", 1), ("logits", 2)]), "ModelOutput{'logits': *, 'loss': *}", ["['logits']", "['loss']"]),
    ],
)
def test_texts_and_paths(tree: Any, text: str, paths: list[str]) -> None:
    """These texts are compared between ranks and shown in errors."""
    leaves, spec = flatten(tree)
    assert (spec.text, list(spec.paths)) == (text, paths)
    again = spec.unflatten(leaves)
    assert again == tree
    assert type(again) is type(tree)


def test_dicts_agree_whatever_the_order_they_were_filled_in_and_keep_what_they_are() -> None:
    """Ranks may log in different order; each gets its own order back, and a default dict its factory."""
    first, second = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert flatten(first)[1][:2] == flatten(second)[1][:2]
    assert flatten(first)[0] == flatten(second)[0]
    assert list(map_leaves(lambda x: x, second)) == ["b", "a"]
    assert map_leaves(lambda x: x, defaultdict(list, a=1))["new"] == []


def test_containers_are_copied_not_constructed() -> None:
    """A ``__post_init__`` must not run on the copy, nor the original change; ``__new__`` may want other arguments."""
    tree = Checked(1)
    again = map_leaves(lambda x: x + 10, tree)
    assert (again.value, again.runs, tree.value) == (11, 11, 1)
    assert map_leaves(lambda x: x + 1, Picky(1)) == (2, 2)
    assert isinstance(flatten(torch.ones(2, 2).max(dim=0))[0][1], torch.Tensor), "torch's return types are trees"
    assert flatten({1, 2})[0] == [{1, 2}], "a set has no order that all ranks share"


leaf = st.integers() | st.booleans()
keys = st.text(max_size=3) | st.integers(-3, 3)


def grow(trees: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(trees, max_size=3),
        st.lists(trees, max_size=3).map(tuple),
        st.dictionaries(keys, trees, max_size=3),
        st.dictionaries(keys, trees, max_size=3).map(OrderedDict),
        st.builds(Point, trees, trees),
        st.builds(Frozen, trees, trees),
    )


any_tree = st.recursive(leaf | st.none(), grow, max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(any_tree, any_tree)
def test_trees_come_back_by_paths_and_texts(tree: Any, other: Any) -> None:
    """Same types, values and order of keys; a path leads to its leaf; two trees with one text have one structure."""
    leaves, spec = flatten(tree)
    again = spec.unflatten(leaves)
    assert again == tree
    assert repr(again) == repr(tree)
    assert len(leaves) == len(set(spec.paths))
    for value, path in zip(leaves, spec.paths, strict=True):
        assert eval(f"tree{path}", {"tree": tree}) is value
    if spec.text == flatten(other)[1].text:
        assert map_leaves(lambda _: 0, tree) == map_leaves(lambda _: 0, other)

"""What cannot be sent is named: the attribute, where it was made, what to do."""

from __future__ import annotations

import collections
import functools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distmetrics import find_unpicklable


def line_of(text: str) -> int:
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    (number,) = [number for number, line in lines if line.strip().startswith(text)]
    return number


def paths(value, *, by_value=False):
    return [found.path for found in find_unpicklable(value, "x", by_value=by_value)]


def scaled(x, by):
    return x * by


class Apply:
    def __init__(self, fn):
        self.fn = fn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.me = [self]
        self.transforms = [Apply(functools.partial(scaled, by=2))]
        self.layers = nn.Sequential(nn.Linear(1, 1), nn.ModuleList([nn.ReLU()]))
        self.heads = nn.ModuleDict({"a": nn.Linear(1, 1)})


class Slotted:
    __slots__ = ("inner", "other")


class Pair(NamedTuple):
    first: Any
    second: Any


class Dropping:
    def __init__(self):
        self.lock: object = threading.Lock()

    def __getstate__(self):
        return {}


class Renaming(Apply):
    def __getstate__(self):
        return (1, self.fn)

    def __setstate__(self, state):
        self.fn = state[1]


class Reducing(Apply):
    def __reduce__(self):
        return Reducing, (self.fn,)


class Refusing:
    def __reduce__(self):
        raise TypeError("never")


class Mine(dict):
    pass


class Locking:
    def __init__(self):
        self.guard: object = threading.Lock()


def slotted(value):
    made = Slotted()
    made.other, made.inner = made, value
    return made


def cycle(value):
    loop = SimpleNamespace()
    loop.me, loop.inner = loop, SimpleNamespace(back=loop, bad=value)
    return loop


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda bad: [1, {"a": (2, bad)}], "x[1]['a'][1]"),
        (lambda bad: {bad: 1}, "x"),
        (slotted, "x"),
        (cycle, "x.inner.bad"),
        (lambda bad: Pair(1, bad), "x[1]"),
        (lambda bad: collections.deque([1, bad]), "x[1]"),
        (lambda bad: collections.defaultdict(list, a=bad), "x['a']"),
        (lambda bad: Mine(a=bad), "x['a']"),
        (lambda bad: functools.partial(scaled, 1, by=bad), "x['by']"),
        (lambda bad: functools.partial(scaled, bad), "x[0]"),
        (Renaming, "x.fn"),
        (Reducing, "x.fn"),
        (lambda bad: Apply(Apply(bad).__init__), "x.fn.fn"),
        (lambda bad: [Dropping(), bad], "x[1]"),
        (lambda bad: {"twice": bad, "again": [bad]}, "x['twice']"),
        (lambda bad: functools.reduce(lambda inner, _: [inner], range(5000), []), "x"),  # too deep
    ],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_the_way_to_the_part(build, path, by_value):
    assert paths(build(threading.Lock()), by_value=by_value) == [path]


def test_all_parts_are_named_and_as_users_write_them():
    model, lock = Model(), threading.Lock()
    loader = DataLoader(TensorDataset(torch.zeros(3)), shuffle=True)
    for value in (Model(), [1, {"a": (2, {3})}, torch.zeros(3)], loader, Dropping()):
        assert find_unpicklable(value) == find_unpicklable(value, by_value=False) == []
    model.layers[1][0].lock = lock
    model.heads["a"].generator = (n for n in ())
    assert paths(model) == ["x.layers[1][0].lock", "x.heads.a.generator"]
    loader.dataset.lock = lock
    loader = DataLoader(loader.dataset, collate_fn=lambda rows: rows, worker_init_fn=lambda worker: None)
    assert sorted(paths(loader)) == ["x.collate_fn", "x.dataset.lock", "x.worker_init_fn"]


def local_class():
    class Local:
        pass

    return Local


LOCAL = "of the local class local_class.<locals>.Local"


@pytest.mark.parametrize(
    ("build", "what", "do"),
    [
        (threading.Lock, "a lock", "make it where it is used"),
        (lambda: (n for n in ()), "a generator", "make it where it is used"),
        (lambda: local_class()(), LOCAL, "move it to the top level"),
        (lambda: local_class(), LOCAL, "move it to the top level"),
        (Refusing, "a Refusing", "__getstate__"),
        (lambda: {}.keys(), "a dict_keys", "__getstate__"),
    ],
)
def test_what_it_is_and_what_to_do(build, what, do):
    (found,) = find_unpicklable({"a": build()}, by_value=False)
    assert found.what == what
    assert do in found.do
    assert found.path.startswith("obj['a']")


def test_where_it_was_made():
    model = Model()
    model.transforms[0].fn = lambda x: x
    (found,) = find_unpicklable(model, "model", by_value=False)
    line = line_of("model.transforms[0].fn = lambda")
    assert str(found) == (
        f"model.transforms[0].fn is a lambda defined at tests/launch/test_preflight.py:{line}; "
        "use functools.partial, or move it to the top level of a module"
    )
    numbers = (number for number in range(3))
    for made, text in ((Locking(), "self.guard: object ="), (numbers, "numbers = (number")):
        (found,) = find_unpicklable(made)
        assert found.where.endswith(f"test_preflight.py:{line_of(text)}")
    (found,) = find_unpicklable(functools, by_value=False)
    assert found.where == ""


def test_functions_may_travel_as_code_but_not_what_they_use():
    lock = threading.Lock()

    def uses():
        return lock

    assert paths(Apply(uses)) == ["x.fn"]
    assert paths(Apply(uses), by_value=True) == ["a part of x"]
    assert paths(Apply(lambda x: local_class()()), by_value=True) == []

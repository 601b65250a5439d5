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
from distmetrics.launch.preflight import Unpicklable

HERE = Path(__file__)


def line_of(text: str) -> int:
    (number,) = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.strip().startswith(text)]
    return number


def paths(value, name="x", *, by_value=False):
    return [found.path for found in find_unpicklable(value, name, by_value=by_value)]


def scaled(x, by):
    return x * by


class Apply:
    def __init__(self, fn):
        self.fn = fn


class Model(nn.Module):
    def __init__(self, *fns):
        super().__init__()
        self.transforms = [Apply(fn) for fn in fns]
        self.layers = nn.Sequential(nn.Linear(1, 1), nn.ModuleList([nn.ReLU()]))
        self.heads = nn.ModuleDict({"a": nn.Linear(1, 1)})


def test_a_lambda_is_named_with_its_line_and_what_to_do():
    model = Model(abs, functools.partial(scaled, by=2))
    model.transforms.append(Apply(None))
    model.transforms[2].fn = lambda x: x
    (found,) = find_unpicklable(model, "model", by_value=False)
    line = line_of("model.transforms[2].fn = lambda")
    assert str(found) == (
        f"model.transforms[2].fn is a lambda defined at tests/launch/test_preflight.py:{line}; "
        "use functools.partial, or move it to the top level of a module"
    )


def test_what_can_be_sent_is_not_named():
    model = Model(abs, functools.partial(scaled, by=2))
    model.me = model
    assert find_unpicklable(model) == []
    assert find_unpicklable([1, {"a": (2, {3})}, torch.zeros(3), model], by_value=False) == []
    assert find_unpicklable(DataLoader(TensorDataset(torch.zeros(3)), shuffle=True), by_value=False) == []


class Slotted:
    __slots__ = ("inner", "other")


class Pair(NamedTuple):
    first: Any
    second: Any


class Dropping:
    def __init__(self):
        self.lock = threading.Lock()
        self.kept = 1

    def __getstate__(self):
        return {"kept": self.kept}


class Renaming:
    def __init__(self, inner):
        self.inner = inner

    def __getstate__(self):
        return (1, self.inner)

    def __setstate__(self, state):
        self.inner = state[1]


class Reducing:
    def __init__(self, inner):
        self.inner = inner

    def __reduce__(self):
        return Reducing, (self.inner,)


class Refusing:
    def __reduce__(self):
        raise TypeError("never")


def slotted(value):
    made = Slotted()
    made.other = made
    made.inner = value
    return made


class Mine(dict):
    pass


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda bad: [1, {"a": (2, bad)}], "x[1]['a'][1]"),
        (lambda bad: {bad: 1}, "x"),
        (lambda bad: SimpleNamespace(size=2, rows=[bad]), "x.rows[0]"),
        (slotted, "x"),
        (lambda bad: Pair(1, bad), "x[1]"),
        (lambda bad: collections.deque([1, bad]), "x[1]"),
        (lambda bad: collections.OrderedDict(a=bad), "x['a']"),
        (lambda bad: collections.defaultdict(list, a=bad), "x['a']"),
        (lambda bad: Mine(a=bad), "x['a']"),
        (lambda bad: functools.partial(scaled, 1, by=bad), "x['by']"),
        (lambda bad: functools.partial(scaled, bad), "x[0]"),
        (Renaming, "x.inner"),
        (Reducing, "x.inner"),
        (lambda bad: Apply(Apply(bad)), "x.fn.fn"),
        (lambda bad: [Dropping(), bad], "x[1]"),
        (lambda bad: {"twice": bad, "again": [bad]}, "x['twice']"),
    ],
)
@pytest.mark.parametrize("by_value", [False, True])
def test_the_way_to_the_part(build, path, by_value):
    assert paths(build(threading.Lock()), by_value=by_value) == [path]


def test_modules_and_loaders_are_written_as_users_write_them():
    lock = threading.Lock()
    model = Model()
    model.layers[1][0].lock = lock
    model.heads["a"].generator = (n for n in ())
    assert paths(model) == ["x.layers[1][0].lock", "x.heads.a.generator"]
    data = TensorDataset(torch.zeros(3))
    data.lock = lock
    loader = DataLoader(data, collate_fn=lambda rows: rows, worker_init_fn=lambda worker: None)
    assert sorted(paths(loader)) == ["x.collate_fn", "x.dataset.lock", "x.worker_init_fn"]


def test_cycles_end():
    loop = SimpleNamespace()
    loop.me, loop.inner = loop, SimpleNamespace(back=loop)
    assert paths(loop) == []
    loop.inner.lock = threading.Lock()
    assert paths(loop) == ["x.inner.lock"]


def test_what_is_nested_too_deeply_is_told():
    """A rank that returns it would else end without a word of that."""
    chain: Any = functools.reduce(lambda inner, _: [inner], range(5000), [])
    assert paths(chain) == ["x"]


def test_a_part_is_named_once_and_all_parts_are():
    lock = threading.Lock()
    assert paths([Apply(lock), Apply(lock), Apply(lambda: 0)]) == ["x[0].fn", "x[2].fn"]


def local_class():
    class Local:
        pass

    return Local


@pytest.mark.parametrize(
    ("build", "what", "do"),
    [
        (threading.Lock, "a lock", "make it where it is used"),
        (HERE.open, "a TextIOWrapper", "make it where it is used"),
        (lambda: (n for n in ()), "a generator", "make it where it is used"),
        (lambda: lambda x: x, "a lambda", "use functools.partial"),
        (lambda: local_class()(), "of the local class local_class.<locals>.Local", "move it to the top level"),
        (lambda: local_class(), "of the local class local_class.<locals>.Local", "move it to the top level"),
        (Refusing, "a Refusing", "__getstate__"),
        (lambda: {}.keys(), "a dict_keys", "__getstate__"),
    ],
)
def test_what_it_is_and_what_to_do(build, what, do):
    value = build()
    try:
        (found,) = find_unpicklable({"a": value}, by_value=False)
    finally:
        getattr(value, "close", lambda: None)()
    assert isinstance(found, Unpicklable)
    assert found.what == what
    assert do in found.do
    assert found.path.startswith("obj['a']")


class Locking:
    def __init__(self):
        self.inner = Apply(0)
        self.guard: object = threading.Lock()


def test_where_an_attribute_is_assigned():
    (found,) = find_unpicklable(Locking())
    assert found.where.endswith(f"test_preflight.py:{line_of('self.guard: object =')}")
    numbers = (number for number in range(3))
    (found,) = find_unpicklable(numbers)
    assert found.where.endswith(f"test_preflight.py:{line_of('numbers = (number')}")
    (found,) = find_unpicklable(functools, by_value=False)
    assert found.where == ""


def test_functions_may_travel_as_code_but_not_what_they_use():
    lock = threading.Lock()

    def uses():
        return lock

    assert paths(Apply(uses), by_value=False) == ["x.fn"]
    assert paths(Apply(uses), by_value=True) == ["a part of x"]
    assert paths(Apply(lambda x: x), by_value=True) == []
    assert paths(local_class()(), by_value=True) == []
    config = Apply(lock)
    assert paths(lambda: config, by_value=True) == ["a part of x"]
    assert paths(Locking().inner, by_value=True) == []


def test_bound_methods():
    assert paths(Apply(Apply(threading.Lock()).__init__)) == ["x.fn.fn"]

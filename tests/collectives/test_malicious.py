"""Whatever a peer sends, a call returns data or raises one of our errors; nothing of the peer's is run."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import tracemalloc
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchmetrics import Metric, SumMetric

import distmetrics as dm
from distmetrics.collectives import exchange
from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import COMPRESSED, Header
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import one_call
from distmetrics.errors import DistmetricsError, MismatchError
from distmetrics.message import LARGEST_HEADER, reading
from distmetrics.metrics.plan import SyncSchema, sent_by
from distmetrics.run.logbook import LogBook, LogOptions
from distmetrics.testing import outcomes
from tests.collectives.malicious import (
    BODY,
    BesideMalice,
    Harm,
    bomb,
    head_of,
    header_in,
    with_data,
    with_head,
    with_header,
    with_parts,
)

X = torch.arange(3.0)


class Everything(Metric):
    """States of every kind; computing gives them back."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("sum", "mean", "max", "min"):
            self.add_state(name, torch.zeros(2), dist_reduce_fx=name)
        self.add_state("own", torch.zeros(2), dist_reduce_fx=None)
        for name in ("rows", "items", "texts"):
            self.add_state(name, [], dist_reduce_fx="cat" if name == "rows" else None)

    def update(self) -> None:
        self.rows.append(X)
        self.items += [torch.ones(2, 3), torch.ones(1, 3)]
        self.texts.append("text")
        self.seen = torch.float32

    def compute(self) -> list[Any]:
        return [getattr(self, name) for name in self._defaults]


def sync(comm: Any, *, updated: bool) -> Any:
    metric = Everything()
    if updated:
        metric.update()
    with dm.synced({"m": metric, "total": SumMetric()}, comm=comm):
        return metric.rows


def log(comm: Any) -> Any:
    module = nn.Module()
    module.total = SumMetric()
    book = LogBook("validate", comm, module)
    book.begin_step(X)
    module.total.update(1.0)
    book.log("loss", 0.5, LogOptions())
    book.log("total", module.total, LogOptions())
    book.end_step()
    return book.close()


def gather_samples(comm: Any) -> Any:
    tree = {"x": X, "t": ["a", "b", "c"], "r": [X, X[:1], X[:0]], "d": [{"k": 1}] * 3, "o": [1, "b", None]}
    gathered = dm.gather_samples([4, 0, 1], (tree, [1, 2, 3]), comm=comm)
    assert gathered is not None
    return [repr(values) for values in gathered.tree[0].values()]


def grad_norm(comm: Any) -> torch.Tensor:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return dm.grad_norm([weight], shared={"name": weight}, comm=comm)


CALLS: dict[str, Any] = {
    "all_gather": lambda comm: dm.all_gather({"a": X, "b": 1}, comm=comm),
    "all_gather_cat": lambda comm: dm.all_gather_cat([X, X[:0]], comm=comm),
    "all_reduce": lambda comm: dm.all_reduce([X, 2], comm=comm),
    "mean": lambda comm: dm.mean(X, weight=2, comm=comm),
    "broadcast": lambda comm: dm.broadcast(X, src=1, comm=comm),
    "barrier": lambda comm: dm.barrier(comm=comm),
    "all_true": lambda comm: dm.all_true(True, comm=comm),
    "all_gather_object": lambda comm: dm.all_gather_object({"a": [1, X, b"b"]}, comm=comm),
    "gather_samples": gather_samples,
    "gather_samples by texts": lambda comm: dm.gather_samples(["a", "b"], {}, expected=["a", "b"], comm=comm),
    "grad_norm": grad_norm,
    "sync": lambda comm: sync(comm, updated=True),
    "sync without data": lambda comm: sync(comm, updated=False),
    "log": log,
}
every_call = pytest.mark.parametrize("call", CALLS)


def survives(call: str, craft: Any, follows: bytes = b"") -> DistmetricsError | None:
    """Make the call beside a peer; return our error, if it raises one. Any other fails the test."""
    try:
        CALLS[call](BesideMalice(craft, follows))
    except DistmetricsError as error:
        return error
    return None


sizes = st.sampled_from([0, 1, 16, 4000, 1 << 26, 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1]) | st.integers(0, 40_000)
ODD_TEXTS = ["__class__", "float8_e5m2", "quint8", "complex64", "object", "each", "cat", "max", "stack", "sizes"]
texts = st.sampled_from([*ODD_TEXTS, "items rows [4]", "items any", "sum =(updates)", "m.rows", ""])
odd = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 3, 1 << 62, (1 << 64) - 1, 0.5, float("nan")]) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def mutated(draw: Any, value: Any) -> Any:
    """A copy of JSON with something odd in one place of it."""
    if not isinstance(value, list | dict) or not value or draw(st.integers(0, 5)) == 0:
        return draw(odd)
    if isinstance(value, dict):
        place = draw(st.sampled_from(sorted(value)))
        return value | {place: mutated(draw, value[place])}
    place = draw(st.integers(0, len(value) - 1))
    changed = draw(st.sampled_from(["change", "change", "drop", "twice", "swap"]))
    rest = [*value[:place], *value[place + 1 :]]
    if changed == "drop":
        return rest
    if changed == "twice":
        return [*value, value[place]]
    if changed == "swap":
        return [value[place], *rest]
    return [*value[:place], mutated(draw, value[place]), *value[place + 1 :]]


def crafted(draw: Any, frame: bytes) -> tuple[bytes, bytes]:
    """Another frame: a header with something odd or other bytes in it, other sizes, other data, or anything."""
    how = draw(st.sampled_from(["odd", "odd", "odd", "changed", "changed", "changed", "head", "data", "blob", "bytes"]))
    head = head_of(frame)
    if how == "odd":  # wrong types, unknown names, shapes negative and huge, leaves twice, or left out
        parts = header_in(frame)
        for _ in range(draw(st.integers(1, 2))):
            parts = mutated(draw, parts)
        return with_parts(frame, parts)
    if how == "changed":  # also in the message of the layer above
        start = len(exchange._HEAD.pack(*head))
        blob = bytearray(frame[start : start + head[1]])
        for _ in range(draw(st.integers(1, 4))):
            place = draw(st.integers(0, len(blob) - 1))
            blob[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
        return with_header(frame, bytes(blob))
    if how == "head":
        head[draw(st.integers(1, 2))] = draw(sizes)
        return with_head(frame, head), b""
    if how == "data":
        return with_data(frame, draw(st.binary(max_size=200))), b""
    if how == "blob":
        return with_header(frame, draw(st.binary(max_size=40)))
    return draw(st.binary(max_size=200)).ljust(len(frame), b"["), b""


@every_call
@settings(max_examples=60)
@given(data=st.data())
def test_a_frame_with_something_odd_in_it(call: str, data: st.DataObject) -> None:
    survives(call, lambda frame: crafted(data.draw, frame), data.draw(st.binary(max_size=64)))


NO_HEADERS = {
    "deep": b"\x91" * 100_000,
    "long lists": b"\xdd\x7f\xff\xff\xff" * 400,
    "long number": b"\x9b\xcf" + b"\xff" * 8,
    "no text": b"\x91\xa2\xff\xfe",
    "short": b"\x91\xaaall_gather" + b"\xa0" * 2,
    "mapping": b"\x80",
    "zeros": bytes(64),
    "no zlib": COMPRESSED + b"no zlib",
    "cut off": bomb(1 << 20)[:-1],
    "empty": COMPRESSED,
}


@every_call
def test_a_header_that_is_none(call: str) -> None:
    """And more data than there can be, announced, not sent: refused before memory is taken."""
    for name, blob in NO_HEADERS.items():
        error = survives(call, lambda frame, blob=blob: with_header(frame, blob))
        assert isinstance(error, MismatchError), name
        assert "sent data that is no frame of distmetrics" in str(error)

    def craft(frame: bytes) -> tuple[bytes, bytes]:
        head = head_of(frame)
        head[2] = 1 << 62
        return with_head(frame, head), b""

    assert isinstance(survives(call, craft), MismatchError)


def test_data_that_is_shorter_than_its_shape() -> None:
    """Of one number that was to be three no sum is made."""
    error = survives("all_reduce", lambda frame: (with_data(frame, bytes(4)), b""))
    assert isinstance(error, MismatchError)
    assert "4 bytes of data, of which" in str(error)


def test_a_compressed_header_takes_no_more_memory_than_a_header_may() -> None:
    blob = bomb(256 << 20)
    tracemalloc.start()
    try:
        error = survives("barrier", lambda frame: with_header(frame, blob))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "no frame of distmetrics" in str(error)
    assert peak < 2 * (LARGEST_HEADER + 3 * len(blob)) + (1 << 20)


@pytest.mark.parametrize("call", ["all_gather_object", "log", "sync", "sync without data"])
@pytest.mark.parametrize("payload", [pickle.dumps(Harm()), to_bytes(serialize(Harm(), allow_pickle=True))])
def test_a_pickle_is_not_read(call: str, payload: bytes) -> None:
    """It would raise what is no error of ours."""
    assert survives(call, lambda frame: (with_data(frame, payload), b"")) is not None or call.startswith("sync")


@pytest.mark.parametrize("payload", [pickle.dumps([Harm()]), to_bytes(serialize([Harm()], allow_pickle=True))])
def test_a_pickle_among_the_states_is_not_read(payload: bytes) -> None:
    """Behind a header that says: a list of objects."""

    def craft(frame: bytes) -> tuple[bytes, bytes]:
        parts = header_in(frame)
        metrics, states, *rest = parts[BODY]
        schema = msgspec.msgpack.decode(msgspec.msgpack.encode(parts[BODY]), type=SyncSchema)
        inline = frame[exchange.HEADER_AREA :][: sent_by(schema.states, 0).inline.layout.nbytes]
        kept = []
        for state in states:
            if state[0] == "m.texts":
                state[2] = [len(payload)]
            if state[0] not in ("m.items", "m.rows", "m.own") and "sizes" not in state[0]:
                kept.append(state)
        parts[BODY] = [metrics, kept, *rest]
        return with_parts(with_data(frame, inline + payload), parts)

    error = survives("sync", craft)
    assert isinstance(error, MismatchError)
    assert "m.texts" in str(error)


def written(form: Any, data: bytes = b"") -> torch.Tensor:
    """What a peer may write in place of a value."""
    text = msgspec.msgpack.encode(form)
    return from_bytes(data + text + len(text).to_bytes(8, "little"))


@settings(max_examples=100)
@given(st.data())
def test_bytes_that_nobody_has_serialized(data: st.DataObject) -> None:
    """Random bytes, and a form with something odd in it: data, or our error."""
    np = pytest.importorskip("numpy")
    value = [1, X, {"a": (b"bytes", torch.Size([2])), 2: np.ones((2, 2))}, {3, 2j}, torch.int8, np.float32(2), 1 << 80]
    run = to_bytes(serialize(value))
    start = len(run) - 8 - int.from_bytes(run[-8:], "little")
    form = mutated(data.draw, msgspec.msgpack.decode(run[start:-8]))
    body = written(form, run[:start]) if data.draw(st.booleans()) else from_bytes(data.draw(st.binary(max_size=80)))
    with contextlib.suppress(MismatchError), reading("values"):
        deserialize(body)


@pytest.mark.parametrize(
    "form",
    [
        ["array", "O", [1], bytes(16)],
        ["array", "|V8", [1], bytes(16)],
        ["array", "i4,(2)f4", [1], bytes(16)],
        ["array", "<f4", [1 << 40], bytes(16)],
        ["array", "<f4", [-1, -1], bytes(16)],
        ["array", "<f4", [1] * 70, bytes(16)],
        ["scalar", "O", [], bytes(16)],
        ["dtype", "__class__"],
        ["dtype", "nn"],
        ["set", ["list"]],
        ["pickle", pickle.dumps(Harm())],
        ["execute", 1],
        ["tensor", 5],
        datetime.datetime.now(datetime.UTC),
    ],
)
def test_forms_that_mean_harm(form: Any) -> None:
    with pytest.raises(MismatchError, match="no frame of distmetrics"), reading("values"):
        deserialize(written([[], form]))


@one_call
def lie(payload: bytes, *, comm: Any) -> None:
    exchange.exchange_alike(comm, Header("all_gather_object"), from_bytes(payload))


def beside_a_liar(comm: Any, payload: bytes) -> None:
    """Rank 1 sends a frame of its own in place of its call's."""
    lie(payload, comm=comm) if comm.rank else dm.all_gather_object([1, 2], comm=comm)


@pytest.mark.gloo
def test_on_real_processes() -> None:
    first = outcomes(2, beside_a_liar, pickle.dumps(Harm()), backend="gloo")[0]
    assert isinstance(first.error, MismatchError)
    assert "rank 1 sent data that is no frame of distmetrics" in str(first.error)

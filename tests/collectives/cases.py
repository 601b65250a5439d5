"""Calls that must fail, and how: run on threads and on real processes, which must agree on every one.

Light to import, since every process imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import distmetrics as dm
from distmetrics.comm.communicator import Communicator

X = torch.ones(2)


class Case(NamedTuple):
    """What rank ``r`` of three does; the error that all must raise, and the ranks that it names."""

    error: type[Exception]
    peers: tuple[int, ...]
    call: Callable[[Communicator], Any]


def odd(comm: Communicator, one: Any, others: Any) -> Any:
    """Rank 1 is the odd one."""
    return one if comm.rank == 1 else others


SPARSE = torch.eye(2).to_sparse()
with warnings.catch_warnings():  # torch is about to drop them
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


class Unpicklable:
    def __reduce__(self) -> Any:
        raise NotImplementedError("stays here")


CASES: dict[str, Case] = {
    # trees, dtypes, shapes
    "list or tuple": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, [X], (X,)))),
    "none or tensor": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, [None], [X]))),
    "dtype": Case(dm.MismatchError, (1,), lambda c: dm.all_reduce(odd(c, X.double(), X))),
    "shape": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, torch.ones(3), X))),
    "number types": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, 1, 1.0))),
    "dimensions": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, torch.ones(1), torch.tensor(1.0)))),
    "empty or not": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(odd(c, torch.empty(0), X))),
    "large or not": Case(dm.MismatchError, (1,), lambda c: dm.all_reduce(odd(c, torch.ones(100_000), X))),
    "thousandth leaf": Case(dm.MismatchError, (1,), lambda c: dm.all_gather([X] * 999 + [odd(c, X[:1], X)])),
    "number of leaves": Case(dm.MismatchError, (1,), lambda c: dm.all_gather([X] * odd(c, 2000, 1))),
    "trailing shape": Case(
        dm.MismatchError, (1,), lambda c: dm.all_gather_cat(odd(c, torch.ones(2, 4), torch.ones(2, 3)))
    ),
    # calls
    "operation": Case(dm.MismatchError, (1,), lambda c: odd(c, dm.all_gather, dm.all_reduce)(X)),
    "reduction": Case(dm.MismatchError, (1,), lambda c: dm.all_reduce(X, odd(c, "max", "sum"))),
    "gradients": Case(dm.MismatchError, (1,), lambda c: dm.all_gather(X, sync_grads=c.rank == 1)),
    "source": Case(dm.MismatchError, (1,), lambda c: dm.broadcast(X, odd(c, 1, 0))),
    "name": Case(dm.MismatchError, (1,), lambda c: dm.all_reduce(X, name=odd(c, "f1", "loss"))),
    "all three differ": Case(dm.MismatchError, (1, 2), lambda c: dm.all_gather(torch.ones(c.rank + 1))),
    "barrier or flag": Case(dm.MismatchError, (1,), lambda c: dm.all_true(True) if c.rank == 1 else dm.barrier()),
    "object or tensor": Case(dm.MismatchError, (1,), lambda c: odd(c, dm.all_gather_object, dm.all_gather)(X)),
    # what one rank cannot send
    "string": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather({"a": odd(c, "text", X)})),
    "set": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather(odd(c, {1, 2}, X))),
    "sparse": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather(odd(c, SPARSE, X))),
    "meta": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather_cat(odd(c, X.to("meta"), X))),
    "nested": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather(odd(c, NESTED, X))),
    "quantized": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather(odd(c, QUANTIZED, X))),
    "too large a number": Case(dm.InputTypeError, (1,), lambda c: dm.all_reduce(odd(c, 2**70, 1))),
    "complex maximum": Case(
        dm.InputTypeError, (1,), lambda c: dm.all_reduce(X.to(odd(c, torch.complex64, None)), "max")
    ),
    "complex maxima": Case(dm.InputTypeError, (0, 1, 2), lambda c: dm.all_reduce(X.to(torch.complex64), "max")),
    "uint64": Case(dm.InputTypeError, (0, 1, 2), lambda c: dm.all_reduce(X.to(torch.uint64))),
    "unpicklable": Case(dm.InputTypeError, (1,), lambda c: dm.all_gather_object(odd(c, Unpicklable(), 1))),
    "a string and another call": Case(
        dm.InputTypeError, (1,), lambda c: dm.all_gather("text") if c.rank == 1 else dm.barrier()
    ),
    # values that make no sense
    "unknown reduction": Case(dm.InputError, (1,), lambda c: dm.all_reduce(X, odd(c, "median", "sum"))),
    "weight too large": Case(dm.InputError, (1,), lambda c: dm.mean(X, odd(c, 10**400, 1))),
    "several weights": Case(dm.InputError, (1,), lambda c: dm.mean(X, odd(c, torch.ones(2), 1))),
    "weight of no type": Case(dm.InputError, (1,), lambda c: dm.mean(X, odd(c, None, 1))),
    "weights all zero": Case(dm.InputError, (0, 1, 2), lambda c: dm.mean(X, 0)),
    "overflow": Case(dm.InputError, (), lambda c: dm.all_reduce(torch.tensor([100], dtype=torch.int8))),
}


def verdict_of(comm: Communicator, name: str) -> tuple[str, int | None, tuple[int, ...], str]:
    """Return how the case ended on this rank: the error's type, rank, peers and text."""
    try:
        CASES[name].call(comm)
    except dm.DistmetricsError as error:
        return type(error).__name__, error.rank, error.peers, str(error)
    return "nothing", None, (), ""


def all_verdicts(comm: Communicator) -> dict[str, Any]:
    """Run every case; the world must be in step after each."""
    verdicts = {}
    for name in CASES:
        verdicts[name] = verdict_of(comm, name)
        assert dm.all_gather(comm.rank).tolist() == list(range(comm.world_size)), name
    return verdicts

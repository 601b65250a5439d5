"""The small parts of the transport layer: communicator in force, folds, call sites."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.torch_calls import counted_torch_calls
from distmetrics import SingleCommunicator, all_reduce, current, use
from distmetrics.call_site import call_site, raise_sites
from distmetrics.comm import background
from distmetrics.comm.communicator import Call, brief, current_call, fold, in_call
from distmetrics.errors import Site


def test_use_is_nested_and_undone_by_exceptions() -> None:
    one, two = SingleCommunicator(), SingleCommunicator()
    with use(one):
        with contextlib.suppress(KeyError), use(two):
            assert current() is two
            raise KeyError
        assert current() is one
    assert current() is not one


def test_counting_torchs_own_calls_puts_the_functions_back() -> None:
    """They are wrapped for the block alone, also when it raises."""
    before = dist.all_gather, dist.barrier
    with contextlib.suppress(ValueError), counted_torch_calls() as calls:
        assert dist.all_gather is not before[0]
        dist.barrier()  # raises: there is no default group
    assert calls == {"barrier": 1}
    assert (dist.all_gather, dist.barrier) == before


def test_fold_goes_in_rank_order() -> None:
    """1e16 - 1e16 + 1 is 1 in this order alone: the same bits on every rank."""
    rows = [torch.tensor([x], dtype=torch.float64) for x in (1e16, -1e16, 1.0)]
    assert fold(rows, "sum").item() == 1.0
    assert rows[0].item() == 1e16
    assert fold([torch.tensor([1.0]), torch.tensor([float("nan")])], "max").isnan().all()


def test_sites_are_the_users_lines_and_calls_are_named_by_the_users_call() -> None:
    """Behind ``with``, which enters through contextlib, and backward, which does through torch; or where one raised."""

    @contextmanager
    def ours() -> Any:
        yield call_site()

    with ours() as site:
        assert str(site).startswith("tests/comm/test_parts.py:")
    assert str(call_site()).endswith(" in test_sites_are_the_users_lines_and_calls_are_named_by_the_users_call")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.append(current_call("reduce").site)
            return grad

    seen: list[Any] = []
    Function.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen[0].function == "backward"
    for call in (lambda: torch.ones(2) @ torch.ones(3), lambda: all_reduce("text")):
        with pytest.raises((RuntimeError, TypeError)) as caught:
            call()
        (raised, *_) = raise_sites(caught.value)
        assert (raised.file, raised.function) == ("tests/comm/test_parts.py", "<lambda>")
    with in_call(Call('all_reduce "val/f1"', "float32[10]", Site("train.py", 8, "main"))):
        assert str(current_call("all_gather", torch.ones(3))) == 'all_reduce "val/f1" float32[10]  train.py:8 in main'
    assert current_call("all_gather", torch.ones(3)).op == "all_gather"
    assert brief(torch.bfloat16, ()) == "bfloat16[]"


def test_an_exception_from_outside_in_the_start_of_a_thread_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes it for a thread that did not start, and ends in a KeyError for one that did."""
    name = "_start_joinable_thread"  # of Python 3.13 and later
    name = name if hasattr(threading, name) else "_start_new_thread"
    begin = getattr(threading, name)

    def struck(*thread: Any, **options: Any) -> None:
        begin(*thread, **options)
        while threading._limbo:  # type: ignore[attr-defined]
            time.sleep(0.001)
        raise TimeoutError("a timer of the user's")

    monkeypatch.setattr(threading, name, struck)
    with pytest.raises(TimeoutError, match="a timer of the user's"):
        background.start(lambda comm: comm.rank, SingleCommunicator())

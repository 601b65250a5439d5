"""Where a thread is, as others are told."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed.distributed_c10d as c10d
import torch.nn.parallel.distributed as wrapper
from torch.autograd import graph

from distmetrics.guard.process_info import Place, Stillness


def _frame(file: str, **local: object) -> Any:
    code = SimpleNamespace(co_filename=file, co_name="f")
    return SimpleNamespace(f_code=code, f_locals=local, f_lineno=3, f_back=None)


def test_a_backward_pass_is_told_and_a_hook_of_it_is_code_of_the_users() -> None:
    """The hook may take as long as it likes: the pass waits for nobody meanwhile."""
    place = Place.of(_frame(graph.__file__))
    assert (place.doing, place.waits_for_all) == ("a backward pass or DistributedDataParallel", True)
    place = Place.of(sys._getframe())
    assert (place.doing, place.waits_for_all) == ("", False)
    assert str(place).startswith("is at tests/guard/test_process_info.py:")


@pytest.mark.parametrize(("name", "waits"), [("all_reduce", True), ("recv", False), ("batch_isend_irecv", False)])
def test_who_waits_for_one_rank_waits_for_no_group(name: str, waits: bool) -> None:
    frame = _frame(c10d.__file__)
    frame.f_code.co_name = name
    place = Place.of(frame)
    assert (place.doing, place.waits_for_all) == (f"torch.distributed.{name}", waits)


@pytest.mark.parametrize("name", ["__init__", "_exception_logger"])
def test_what_is_no_function_for_users_waits_for_nobody(name: str) -> None:
    """The constructor of a class of torch.distributed's may read a file, say."""
    frame = _frame(c10d.__file__)
    frame.f_code.co_name = name
    assert not Place.of(frame).waits_for_all


def test_a_thread_that_computes_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that uses no processor stands still, at one place."""
    now, used = [100.0], [3.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.clock_gettime", lambda clock: used[0])
    stillness = Stillness()

    def seconds(place: str, later: float, more_used: float) -> float:
        now[0] += later
        used[0] += more_used
        return stillness.seconds(place)

    assert seconds("here", 1, 0) == 0
    assert seconds("here", 1, 0) == 1
    assert seconds("here", 1, 0.001) == 2
    assert seconds("there", 1, 0) == 0
    assert seconds("there", 1, 0.5) == 0
    assert seconds("there", 1, 0) == 1


def test_a_thread_without_code_of_the_users() -> None:
    assert str(Place.of(None)) == "is in no code of the user's"
    assert str(Place([], None, "the backward pass")) == "is in the backward pass"


@pytest.mark.parametrize(("file", "doing"), [(wrapper.__file__, "a backward pass or Dist"), (__file__, "")])
def test_a_wrapper_that_makes_the_ranks_alike(file: str, doing: str) -> None:
    """Its own code, not what it calls: the model's forward may take as long as it likes."""
    place = Place.of(_frame(file))
    assert place.doing.startswith(doing)
    assert place.waits_for_all == bool(doing)

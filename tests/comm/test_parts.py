"""The small parts of the transport layer: communicator in force, recording, call sites."""

from __future__ import annotations

import contextlib
import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import SingleCommunicator, all_reduce, current, use
from distmetrics.call_site import call_site, raise_sites
from distmetrics.comm.communicator import Call, brief, current_call, fold, in_call
from distmetrics.errors import Site
from distmetrics.testing import run
from distmetrics.testing.recording import Recorded, RecordingCommunicator, counted_torch_calls


def test_use_is_nested_and_undone_by_exceptions_and_no_other_threads() -> None:
    """A failing block leaves nothing in force; a helper thread must not talk on its parent's communicator."""
    one, two = SingleCommunicator(), SingleCommunicator()
    seen: list[Any] = []
    with use(one):
        with contextlib.suppress(KeyError), use(two):
            assert current() is two
            raise KeyError
        assert current() is one
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen[0] is not one
    assert current() is not one


def test_a_recorder_notes_operation_and_bytes() -> None:
    """Rounds and bytes are claims of ours, and this is how they are counted."""

    def work(comm: Any) -> list[Recorded]:
        record = RecordingCommunicator(comm)
        record.all_gather(torch.ones(3))
        record.all_reduce(torch.ones(2, dtype=torch.int64), "max")
        record.all_to_all([torch.ones(1)] * 2)
        record.broadcast(torch.ones(5, dtype=torch.uint8), 0)
        record.barrier()
        assert (record.rank, record.world_size, record.device) == (comm.rank, 2, comm.device)
        return record.calls

    wanted = [("all_gather", 12), ("all_reduce max", 16), ("all_to_all", 8), ("broadcast", 5), ("barrier", 0)]
    assert run(2, work) == [[Recorded(*call) for call in wanted]] * 2


def test_counting_torchs_own_calls_puts_the_functions_back() -> None:
    """They are wrapped for the block alone, also when it raises."""
    before = dist.all_gather, dist.barrier
    with counted_torch_calls() as calls:
        assert dist.all_gather is not before[0]
        with pytest.raises(ValueError, match="group"):
            dist.barrier()  # there is no default group
    with contextlib.suppress(KeyError), counted_torch_calls():
        raise KeyError
    assert calls == {"barrier": 1}
    assert (dist.all_gather, dist.barrier) == before


def test_fold_goes_in_rank_order() -> None:
    """1e16 - 1e16 + 1 is 1 in this order alone: the same bits on every rank."""
    rows = [torch.tensor([x], dtype=torch.float64) for x in (1e16, -1e16, 1.0)]
    assert fold(rows, "sum").item() == 1.0
    assert rows[0].item() == 1e16
    assert fold([torch.tensor([1.0]), torch.tensor([float("nan")])], "max").isnan().all()


def test_call_site_is_the_users_line_behind_with_statements_and_backward() -> None:
    """``with`` enters through contextlib and backward through torch; the line to look at is the user's."""

    @contextmanager
    def ours() -> Any:
        yield call_site()

    with ours() as site:
        assert str(site).startswith("tests/comm/test_parts.py:")
    assert str(call_site()).endswith(" in test_call_site_is_the_users_line_behind_with_statements_and_backward")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            seen.append(current_call("reduce").site)
            return grad

    seen: list[Site | None] = []
    Function.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen[0] is not None
    assert seen[0].function == "backward"


def test_raise_site_is_the_innermost_line_of_the_user() -> None:
    """An error raised inside torch, or inside of us, points at the user's line that called it."""
    for call in (lambda: torch.ones(2) @ torch.ones(3), lambda: all_reduce("text")):
        with pytest.raises((RuntimeError, TypeError)) as caught:
            call()
        site = raise_sites(caught.value)[0]
        assert site is not None
        assert (site.file, site.function) == ("tests/comm/test_parts.py", "<lambda>")


def test_calls_are_named_by_the_users_call() -> None:
    """A report says "all_reduce "val/f1"", not which transport operation it is made of."""
    with in_call(Call('all_reduce "val/f1"', "float32[10]", Site("train.py", 8, "main"))):
        assert str(current_call("all_gather", torch.ones(3))) == 'all_reduce "val/f1" float32[10]  train.py:8 in main'
    assert current_call("all_gather", torch.ones(3)).op == "all_gather"
    assert brief(torch.bfloat16, ()) == "bfloat16[]"

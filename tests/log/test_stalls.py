"""Between flushes nothing waits for the device, and what is logged may be logged in compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import distmetrics as dm
from tests.stall_counter import stalls

STEPS = 3


def log_all(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    """Each kind: one value, many by name, arrays, numbers of Python, tensors of the host."""
    many, three = torch.stack([x, 2 * x, 3 * x]), torch.stack([tokens] * 3)
    for kind in (log.same, log.max, log.min, log.sum, log.std, log.quantile):
        kind(f"{kind.__name__}/{name}", x)
        kind({f"of many/{kind.__name__}/{name}": x, f"plain/{kind.__name__}/{name}": 1.0})
        kind(f"array/{kind.__name__}/{name}", many)
        kind(f"number/{kind.__name__}/{name}", 0.1)
    for weight in (tokens, 3, torch.tensor(3.0)):
        log.mean(f"mean/{name}", x, weight=weight)
        log.mean({f"of many/{name}": x, f"host/{name}": torch.tensor(2.0)}, weight=weight)
        log.mean(f"number/{name}", 0.5, weight=weight)
    log.std(f"weighted/{name}", x, weight=tokens)
    log.mean(f"array/{name}", many, weight=three)
    log.std(f"list/{name}", [1.0, 2.0], weight=[1, 0])
    log.sum(f"list/sum/{name}", [1, 2])
    log.sum(f"host/sum/{name}", torch.tensor(2))


@pytest.mark.parametrize("names", [1, 3])
def test_no_step_waits_for_the_device(names: int) -> None:
    """A flush does."""
    log = dm.Log()

    def step(loss: Tensor, tokens: Tensor) -> None:
        for name in range(names):
            log_all(log, name, loss, tokens)
        log._window.settle()  # as when many wait

    batch = torch.tensor(1.5, requires_grad=True), torch.tensor(8)
    assert [stalls(step, *batch) for _ in range(STEPS)] == [[]] * STEPS
    assert stalls(log.flush)
    for _ in range(2):
        step(*batch)
    row = log.flush()
    assert (row["mean/0"], row["array/0"], row["sum/0"], row["list/sum/0"]) == (1.5, [1.5, 3.0, 4.5], 3.0, [2.0, 4.0])


def test_same_clears_what_an_older_buffer_has_no_room_for_yet() -> None:
    log = dm.Log()

    def step(x: Tensor) -> None:
        log.sum("first", x)
        log.sum("first", x)
        log.same("second", 1)  # of the host
        log.same("second", 2)

    assert stalls(step, torch.ones(())) == []
    assert log.flush() == {"first": 2.0, "second": 2.0}


def test_numbers_that_change_with_each_step_are_not_compiled_anew() -> None:
    """Torch refuses a whole graph that it has compiled eight times."""
    torch._dynamo.reset()
    log = dm.Log()

    @torch.compile(fullgraph=True, backend="eager")
    def step(x: Tensor, lr: float) -> None:
        log.same("lr", lr)
        log.mean("loss", x, weight=lr)
        log.sum("parts", [1.0, lr])

    for index in range(12):
        step(torch.ones(()), 0.5**index)
    assert log.flush() == {"lr": 0.5**11, "loss": 1.0, "parts": [12.0, 2 - 0.5**11]}


def test_a_value_of_compiled_code_may_be_changed_afterwards() -> None:
    log = dm.Log()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        total = x.sum()
        log.sum("total", total)
        return total.add_(1)

    assert step(torch.ones(2)) == 3
    assert log.flush() == {"total": 2.0}

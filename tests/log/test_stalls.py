"""Between flushes nothing waits for the device, and what is logged may be logged in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import distmetrics as dm
from tests.stall_counter import stalls

STEPS = 4


def log_all(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    log.mean(f"mean/{name}", x, weight=tokens)
    log.quantile(f"quantile/{name}", x)
    log.same(f"same/{name}", x)
    log.max(f"max/{name}", x)
    log.min(f"min/{name}", x)
    log.sum(f"sum/{name}", x)
    log.std(f"std/{name}", x, weight=tokens)


def log_arrays(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    many = torch.stack([x, 2 * x, 3 * x])
    for kind in (log.same, log.max, log.min, log.sum, log.std, log.quantile):
        kind(f"{kind.__name__}/{name}", many)
    log.mean(f"mean/{name}", x, weight=tokens)
    log.mean(f"array/{name}", many, weight=torch.stack([tokens, tokens, tokens]))
    log.std(f"host/{name}", [1.0, 2.0], weight=[1, 0])
    log.sum(f"numbers/{name}", [1, 2])


def log_numbers(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    log.mean(f"mean/{name}", x, weight=name)
    log.mean(f"plain/{name}", 0.5 * name, weight=tokens.numel())
    log.same(f"same/{name}", 3)
    log.max(f"max/{name}", 0.1 * name)
    log.mean(f"weighted/{name}", 0.5, weight=tokens)


def log_of_the_host(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    log.mean(f"mean/{name}", x, weight=torch.tensor(3.0))
    log.sum(f"sum/{name}", torch.tensor(2))
    log.mean(f"weighted/{name}", torch.tensor(2.0), weight=tokens)
    log.mean({f"of many/{name}": torch.tensor(2.0)}, weight=tokens)


def log_many(log: dm.Log, name: Any, x: Tensor, tokens: Tensor) -> None:
    log.mean({f"mean/{name}": x, f"other/{name}": x}, weight=tokens)
    log.quantile({f"quantile/{name}": x})
    log.same({f"same/{name}": x})
    log.max({f"max/{name}": x, f"plain/{name}": 1.0})


@pytest.mark.parametrize("names", [1, 20])
@pytest.mark.parametrize("values", [log_all, log_many, log_arrays, log_numbers, log_of_the_host])
def test_no_step_waits_for_the_device(values: Callable[..., None], names: int) -> None:
    log = dm.Log()

    def step(loss: Tensor, tokens: Tensor) -> None:
        for name in range(names):
            values(log, name, loss, tokens)
        log._window.settle()  # as when many wait

    batch = torch.tensor(1.5, requires_grad=True), torch.tensor(8)
    assert [stalls(step, *batch) for _ in range(STEPS)] == [[]] * STEPS
    assert log.flush()["mean/0"] == (1.5 if values is not log_numbers else pytest.approx(float("nan"), nan_ok=True))


def test_a_flush_waits() -> None:
    log = dm.Log()
    stalls(log.sum, "x", torch.ones(()))
    assert stalls(log.flush)


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

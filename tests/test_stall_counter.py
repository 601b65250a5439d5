"""What waits for a device is found without one: by what torch tells of its operations, and by where tensors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.stall_counter import stalls

VALUE, SIZE = "a value is read", "a size depends on values"
TO_HOST, TO_DEVICE = "a copy to the host", "a copy to the device"

# What is done with a tensor, of the device, of 4 floats: how often it waits, for what.
WAITS: dict[str, tuple[Callable[[Tensor], Any], str, int]] = {
    "item": (lambda x: x[0].item(), VALUE, 1),
    "float": (lambda x: [float(each) for each in x], VALUE, 4),
    "bool": (lambda x: bool(x.any()), VALUE, 1),
    "index": (lambda x: range(x[1].long()), VALUE, 1),
    "format": (lambda x: f"{x[0]:.3f}", VALUE, 1),
    "in": (lambda x: 2.0 in x, VALUE, 1),
    "equal": (lambda x: torch.equal(x, x), VALUE, 1),
    "allclose": (lambda x: torch.allclose(x, x), VALUE, 1),
    "multinomial": (lambda x: torch.multinomial(x + 1, 2), VALUE, 1),
    "inverse": (lambda x: torch.linalg.inv((x + 1).diag()), VALUE, 1),
    "tensor of tensors": (lambda x: torch.tensor([x[0], x[1]]), VALUE, 2),
    "mask": (lambda x: x[x > 1], SIZE, 1),
    "masked_select": (lambda x: x.masked_select(x > 1), SIZE, 1),
    "put by mask": (lambda x: x.clone().__setitem__(x > 9, x[:0]), SIZE, 1),
    "nonzero": (lambda x: x.nonzero(), SIZE, 1),
    "where": (lambda x: torch.where(x > 1), SIZE, 1),
    "unique": (lambda x: x.unique(), SIZE, 1),
    "bincount": (lambda x: x.long().bincount(minlength=9), SIZE, 1),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x.long()), SIZE, 1),
    "one_hot without classes": (lambda x: functional.one_hot(x.long()), SIZE, 1),
    "tolist": (lambda x: x.tolist(), TO_HOST, 1),
    "numpy": (lambda x: x.numpy(), TO_HOST, 1),
    "asarray": (lambda x: np.asarray(x), TO_HOST, 1),
    "cpu": (lambda x: x.cpu().sum().item(), TO_HOST, 1),
    "to": (lambda x: x.to("cpu").sum().item(), TO_HOST, 1),
    "to a device": (lambda x: x.to(torch.device("cpu")), TO_HOST, 1),
    "copy_ to the host": (lambda x: torch.empty(4).copy_(x).sum().item(), TO_HOST, 1),
    "print": (lambda x: repr(x), TO_HOST, 1),
    "tensor": (lambda x: torch.tensor([1.0], device=x.device), TO_DEVICE, 1),
    "new_tensor": (lambda x: x.new_tensor([1.0]), TO_DEVICE, 1),
    "to its device": (lambda x: torch.ones(4).to(x.device), TO_DEVICE, 1),
    "to another tensor's": (lambda x: torch.ones(4).to(x), TO_DEVICE, 1),
    "copy_ to the device": (lambda x: x.clone().copy_(torch.ones(4)), TO_DEVICE, 1),
    "list of indices": (lambda x: x[[1, 2]], TO_DEVICE, 1),
    "made on the device": (lambda x: torch.zeros(3, device=x.device).sum().item(), VALUE, 1),
}

# What does not wait.
RUNS_ON: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + torch.tensor(1.0)).softmax(0).sum(),
    "of the host": lambda x: (torch.tensor(3).item(), torch.ones(3).tolist(), bool(torch.from_numpy(np.ones(1)))),
    "fill by mask": lambda x: x.clone().__setitem__(x > 1, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "indices of the device": lambda x: x[torch.arange(2, device=x.device)],
    "one_hot": lambda x: functional.one_hot(x.long(), 4),
    "quantile": lambda x: x.quantile(torch.linspace(0, 1, 3, device=x.device)),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.long(), output_size=6),
    "another dtype": lambda x: (x.to(torch.float64), x.double(), x.to(x.device), x.to(x)),
    "not at once": lambda x: torch.ones(4).to(x.device, non_blocking=True),
    "shape": lambda x: (len(x), x.numel(), x.shape, list(x)),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_found(name: str) -> None:
    action, why, count = WAITS[name]
    found = stalls(action, torch.arange(4.0))
    assert {stall.why for stall in found} == {why}
    assert sum(stall.count for stall in found) == count
    assert all(stall.site is not None and stall.site.file.endswith("test_stall_counter.py") for stall in found)


@pytest.mark.parametrize("name", RUNS_ON)
def test_what_does_not_wait_is_not(name: str) -> None:
    assert stalls(RUNS_ON[name], torch.arange(4.0)) == []


class Reads(torch.autograd.Function):
    """Looks at its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * gradients[0].sum().item()


def test_a_backward_pass_counts() -> None:
    x = torch.ones(3, requires_grad=True)
    (found,) = stalls(lambda: Reads.apply(x).sum().backward())  # type: ignore[no-untyped-call]
    assert found.op == "_local_scalar_dense"
    assert found.site is not None
    assert found.site.function == "backward"


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_plain_training_step_does_not_wait(optimizer: Any, foreach: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    steps = optimizer(model.parameters(), lr=0.1, foreach=foreach)

    def step(x: Tensor, y: Tensor) -> None:
        steps.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()

    batch = torch.randn(8, 4), torch.randint(3, (8,))
    assert [stalls(step, *batch) for _ in range(2)] == [[], []]


def test_compiled_functions_run_as_they_were_written() -> None:
    step = torch.compile(lambda x: x.sum().item(), backend="eager", fullgraph=True)
    assert [stall.op for stall in stalls(step, torch.ones(2))] == ["_local_scalar_dense"]


def test_results_are_those_of_the_cpu_and_no_mode_is_left_behind() -> None:
    kept = []

    def step(x: Tensor) -> None:
        kept.extend([x.cpu() + 1, torch.zeros(1, device=x.device), x.device == torch.device("cpu")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stalls(step, torch.ones(2))
    assert kept[0].tolist() == [2, 2]
    assert kept[1].device == torch.ones(1).device == torch.device("cpu")
    assert not kept[2]  # as on a device

"""Drivers of the examples of Accelerate, inside a real Accelerator."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

from tests.guard.agreement.libraries import accelerator, numbered
from tests.guard.agreement.runner import Names, drives
from tests.guard.agreement.simple import summed, tensors


@drives("DL101-bad-3", mend={"accelerator.is_main_process and ": ""})
def snapshot_of_the_main_rank(rank: int, names: Names) -> None:
    names().train(3)


class Clock:
    """Counts on by hand: the ranks' clocks are read at other moments."""

    def __init__(self, *readings: float) -> None:
        self._readings = [*readings]

    def time(self) -> float:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def _train(names: Names, clock: Clock, loss: float) -> None:
    def model(batch: torch.Tensor) -> Any:
        found = layer(batch).mean() + loss
        found.loss = found
        return found

    layer = torch.nn.Linear(1, 1)
    names(time=clock).train(numbered(), model, [torch.zeros(2, 1)] * 3, [torch.zeros(2, 1)])


@drives("DL103-bad-2", mend={"time.time() - saved > 600": "step == 1"})
def checkpoint_by_the_clock(rank: int, names: Names) -> None:
    _train(names, Clock(0.0, 590.0 + 20 * rank), loss=1.0)


@drives("DL103-bad-2", "best", mend={"mean < best": "True"})
def checkpoint_of_the_best(rank: int, names: Names) -> None:
    _train(names, Clock(0.0), loss=math.nan if rank else 1.0)


@drives("DL104-bad-2", mend={"(prompts)": "(prompts, apply_padding=True)"})
def more_prompts_on_one_rank(rank: int, names: Names) -> None:
    names().generate(accelerator(), torch.tensor, [1.0, 2.0, 3.0], [])


@drives("DL104-bad-2", "while", mend={"while loss > 0.1": "for _ in range(1)"})
def more_steps_on_one_rank(rank: int, names: Names) -> None:
    losses = iter([1.0, 0.5, 0.0] if rank else [1.0, 0.0])
    names().generate(accelerator(), lambda batch: next(losses), [], [None])


@drives("DL101-good-3")
def checkpoint_of_all_or_of_one(rank: int, names: Names) -> None:
    silent = SimpleNamespace(save_checkpoint=str, log=str, compute=lambda: 0.0)
    for everywhere, real in ((True, numbered()), (False, accelerator())):
        self = SimpleNamespace(
            use_deepspeed=everywhere, accelerator=real, rank=rank, checkpoint_io=silent, logger=silent, report=silent
        )
        names().save(self, "state")


@drives("DL103-good-2")
def checkpoint_of_a_mean_over_all(rank: int, names: Names) -> None:
    """The gathered losses are averaged: no condition can be a tensor of several."""
    found, real = names(accelerator=accelerator()), numbered()
    averaging = SimpleNamespace(
        gather_for_metrics=lambda x: real.gather_for_metrics(x).mean(), save_state=real.save_state
    )
    found.evaluate(averaging, torch.sqrt, tensors(1.0 + rank, 4.0), 1e9)
    found.save(str, [1])


@drives("DL104-good-2", "train")
def as_many_prompts_everywhere(rank: int, names: Names) -> None:
    losses = iter([1.0 + rank, 0.5, 0.0])
    found = names(reduce_mean=summed)
    found.train(lambda x: torch.tensor(next(losses)) if x is None else x, [None], accelerator(), tensors(1.0, 2.0, 3.0))

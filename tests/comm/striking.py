"""An exception at any place of our code at which the handler of a signal can run; light to import."""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torchmetrics import aggregation

import distmetrics as dm

PACKAGE = str(Path(dm.__file__).parent)
_STRUCK = (PACKAGE, threading.__file__)  # how our calls take locks and wait is Python, too
# After these Python looks for signals, besides where a function begins.
_LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD") if name in dis.opmap}
LARGE = 20_000  # numbers, which follow in a second round


class Stop(BaseException):
    """What the handler of a signal raises."""


def called(fn: Callable[[], Any]) -> Any:
    """Call a function, from one line for all calls."""
    return fn()


class Strike:
    """Raises at the n-th such place while a function runs in this thread; ``left`` is 0 if it did.

    The place where the outermost function of ours begins is left out: there it is the caller's code that is
    interrupted.
    """

    def __init__(self, number: int, error: type[BaseException] = Stop) -> None:
        self.left, self.error = number, error
        self._after: dict[int, int] = {}
        self._inside = False

    def run(self, fn: Callable[[], Any]) -> Any:
        sys.settrace(self._call)
        try:
            return called(fn)
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_STRUCK):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self._inside:
            self._place()
        self._inside = True
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            last = self._after.get(id(frame))
            self._after[id(frame)] = frame.f_code.co_code[frame.f_lasti]
            if last in _LOOKS:
                self._place()
        elif event == "return":
            self._after.pop(id(frame), None)
        return self._opcode

    def _place(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def _summed(step: int, rank: int) -> Callable[[], Any]:
    metric = aggregation.SumMetric()
    metric.update(float(10 * step + rank))
    return functools.partial(dm.sync_and_compute, metric)


def _listed(step: int, rank: int, size: int = 5) -> Callable[[], Any]:
    metric = aggregation.CatMetric()
    metric.update(torch.full((size,), float(10 * step + rank)))
    return functools.partial(dm.sync_and_compute, metric)


def _both(step: int, rank: int) -> Callable[[], Any]:
    """States of fixed size that do not ride along, and lists that follow."""
    metrics = [aggregation.SumMetric(), aggregation.MaxMetric(), aggregation.CatMetric()]
    for metric in metrics:
        metric.update(torch.full((LARGE,), float(10 * step + rank)))
    return functools.partial(dm.sync_and_compute, metrics)


def _tensor(step: int, rank: int, size: int = 3) -> torch.Tensor:
    return torch.full((size,), float(10 * step + rank))


# The call that a rank makes in a step, prepared; none has a name, and all are on one line.
CALLS: dict[str, Callable[[int, int], Callable[[], Any]]] = {
    "small sync": _summed,
    "list sync": _listed,
    "large sync": functools.partial(_listed, size=LARGE),
    "sync of all": _both,
    "all_reduce": lambda step, rank: functools.partial(dm.all_reduce, _tensor(step, rank)),
    "large all_reduce": lambda step, rank: functools.partial(dm.all_reduce, _tensor(step, rank, LARGE), "max"),
    "mean": lambda step, rank: functools.partial(dm.mean, _tensor(step, rank), rank + 1),
    "large broadcast": lambda step, rank: functools.partial(dm.broadcast, _tensor(step, rank, LARGE), 1),
    "all_gather_cat": lambda step, rank: functools.partial(dm.all_gather_cat, _tensor(step, rank, 2 + rank)),
}


def numbers(value: Any) -> list[float]:
    """Return all different numbers of a result, in order."""
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return sorted({*value.flatten().tolist()})  # type: ignore[no-any-return]


def expected(kind: str, world_size: int, step: int) -> list[float]:
    """Return what a call must give on every rank: the numbers of one process that has seen all."""
    each = [10.0 * step + rank for rank in range(world_size)]
    if kind in ("small sync", "all_reduce"):
        return [sum(each)]
    if kind == "large all_reduce":
        return [max(each)]
    if kind == "large broadcast":
        return [each[1]]
    if kind == "mean":
        weights = range(1, world_size + 1)
        return [float(torch.tensor(sum(w * x for w, x in zip(weights, each, strict=True)) / sum(weights)))]
    if kind == "sync of all":
        return [LARGE * sum(each), max(each), *each]
    return each


def steps(comm: Any, kind: str, struck: dict[int, tuple[int, int]], repeats: bool = False) -> tuple[list[Any], bool]:
    """Make the same call four times, struck as told: by rank, the step and the place in it.

    Returns: how each step ended, and whether every strike that this rank was to get came.
    """
    with dm.use(comm):
        thunks = [CALLS[kind](step, comm.rank) for step in range(4)]
        ended: list[Any] = []
        came = True
        step = 0
        while step < 4:
            at, place = struck.get(comm.rank, (-1, 0))
            thunk = thunks[step]
            step += 1
            try:
                if at == step - 1:
                    struck = {}
                    strike = Strike(place)
                    try:
                        ended.append(numbers(strike.run(thunk)))
                    finally:
                        came = strike.left <= 0
                else:
                    ended.append(numbers(called(thunk)))
            except Stop:
                if repeats:
                    step -= 1
                else:
                    ended.append("stopped")
            except Exception as error:  # noqa: BLE001  (the test looks at it)
                ended.append(f"{type(error).__name__}: {error}")
    return ended, came

"""A plain function as a metric: what it reads is accumulated here, and reduced over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor

from distmetrics.collectives.header import tensor_of
from distmetrics.comm.communicator import fold
from distmetrics.errors import InputError, StateError
from distmetrics.metrics.adapters.base import Adapter, StateSpec, parts_of

Reduction = Literal["sum", "mean", "max", "min", "cat"]
T = TypeVar("T")
# Beside the states; no argument of ``update`` can be called so.
COUNT, SYNCED = "(updates)", "(synced)"
_WEIGHT = "weight"
_WITHOUT_DATA = {"sum": 0, "mean": math.nan, "max": -math.inf, "min": math.inf}


def from_function(
    compute: Callable[[dict[str, Tensor]], T], reduce: Mapping[str, Reduction]
) -> FunctionMetric[T]:
    """Make a metric of a function and of the values that it reads.

    ``update(name=value, …)`` accumulates values on this rank, ``compute()`` calls the function with
    those of this rank, and :func:`sync_and_compute` with those of all ranks. ``reset()`` forgets.

    Args:
        compute: called with a dict from each name to a tensor; its result is the metric's value.
        reduce: how each value is accumulated, over updates and over ranks alike. ``"sum"``,
            ``"max"``, ``"min"``: elementwise, so all updates bring equal shapes; sums are kept in
            float64 or int64. ``"cat"``: joined along dim 0, in rank order. ``"mean"``: Σ wᵢxᵢ / Σ
            wᵢ in float64; an update with such a value needs ``weight=``, the number of samples
            behind it.

    Returns:
        the metric. A value without updates is 0 for a sum, NaN for a mean, -inf and inf for max and
        min, empty for cat. A rank without data changes nothing.

    Raises:
        InputError: an unknown reduction, or a value called ``weight`` beside a mean. In ``update``:
            an unknown name, another shape than before, or a mean without a weight.
        StateError: in ``update``, inside a block of :func:`synced`.

    >>> sums = {"correct": "sum", "total": "sum"}
    >>> accuracy = from_function(lambda s: s["correct"] / s["total"], reduce=sums)
    >>> accuracy.update(correct=torch.tensor([True, True, False]).sum(), total=3)
    >>> accuracy.compute()
    tensor(0.6667)
    >>> def shard(comm):
    ...     loss = from_function(lambda s: s["loss"], reduce={"loss": "mean"})
    ...     loss.update(loss=torch.tensor(1.0 + comm.rank), weight=1 + 2 * comm.rank)
    ...     return sync_and_compute(loss, comm=comm)
    >>> run(2, shard)
    [tensor(1.7500, dtype=torch.float64), tensor(1.7500, dtype=torch.float64)]
    """
    return FunctionMetric(compute, reduce)


class FunctionMetric(Generic[T]):
    """A metric that :func:`from_function` made."""

    def __init__(
        self, compute: Callable[[dict[str, Tensor]], T], reduce: Mapping[str, Reduction]
    ) -> None:
        self.reduce = dict(reduce)
        for name, reduction in reduce.items():
            if reduction not in get_args(Reduction):
                known = ", ".join(get_args(Reduction))
                raise InputError(
                    f"from_function: {name!r} is reduced by {reduction!r}, which is none of {known}"
                )
            if name == _WEIGHT and "mean" in reduce.values():
                raise InputError(
                    "from_function: beside a mean, weight is an argument of update",
                    do="give the value another name.",
                )
        self._compute = compute
        self._held: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything.

        >>> total = from_function(lambda s: s["x"], reduce={"x": "sum"})
        >>> total.update(x=2)
        >>> total.reset()
        >>> total.compute()
        tensor(0)
        """
        self._held = {COUNT: 0, SYNCED: False, **{name: [] for name in self.reduce}}

    @property
    def device(self) -> torch.device:
        """Where the values are: on an accelerator, if some are."""
        parts = chain.from_iterable(map(parts_of, self._held.values()))
        cpu = torch.device("cpu")
        devices = {part.device for part in parts if isinstance(part, Tensor)} - {cpu}
        return devices.pop() if devices else cpu

    def update(self, **values: Tensor | float) -> None:
        """Add values of one batch, tensors or numbers.

        ``weight=`` says how many samples are behind a mean. Not all names need be given. Either all
        that is given is added, or nothing.

        Raises:
            InputError: a name that was not declared, a shape that differs from the last one, a mean
                without a weight.
            StateError: inside a block of :func:`synced`, where it would be lost.

        >>> highest = from_function(lambda s: s["x"], reduce={"x": "max"})
        >>> highest.update(x=torch.tensor([1.0, 5.0]))
        >>> highest.update(x=torch.tensor([3.0, 4.0]))
        >>> highest.compute()
        tensor([3., 5.])
        """
        if self._held[SYNCED]:
            raise StateError(
                "update: this metric holds the state of all ranks, and what is added now would "
                "be lost",
                do="update before or after the block of synced(…).",
            )
        weight = values.pop(_WEIGHT, None) if "mean" in self.reduce.values() else None
        added: dict[str, Any] = {}
        with torch.no_grad():
            for name, value in values.items():
                if name not in self.reduce:
                    raise InputError(f"update: {name!r} is none of {', '.join(self.reduce)}")
                x = tensor_of(value, f"update: {name!r}").detach()
                if self.reduce[name] == "mean":
                    x = _weighted(name, x, weight)
                added[name] = _joined(name, self.reduce[name], self._held[name], x)
        self._held |= added
        self._held[COUNT] += 1

    def compute(self) -> T:
        """Return the function's value of what is held.

        >>> from_function(lambda s: len(s["x"]), reduce={"x": "cat"}).compute()
        0
        """
        return self._compute({name: self._state(name) for name in self.reduce})

    def _state(self, name: str) -> Any:
        reduction, value = self.reduce[name], self._held[name]
        if reduction == "cat":
            return torch.cat(value) if value else torch.empty(0, device=self.device)
        if isinstance(value, list):  # no rank has brought any
            return torch.tensor(_WITHOUT_DATA[reduction], device=self.device)
        return value[0] / value[1] if reduction == "mean" else value.clone()


def _weighted(name: str, x: Tensor, weight: Any) -> Tensor:
    """Return what one value of a mean adds to its two sums, of weighted values and of weights."""
    number = math.nan if weight is None else float(weight)
    if not 0 <= number < math.inf:
        raise InputError(
            f"update: the mean {name!r} needs a weight, a finite number, 0 or more, got {weight!r}",
            likely="without it, batches of different size would count the same.",
            do=f"update({name}=…, weight=len(batch)), or divide a sum by a count in the function.",
        )
    x = _wide(x if x.dtype.is_floating_point else x.float())
    # The mean of no samples is NaN most often.
    total = x * number if number else torch.zeros_like(x)
    return torch.stack([total, torch.full_like(total, number)])


def _wide(x: Tensor) -> Tensor:
    """Return ``x`` in a dtype in which many can be added: counts past 2²⁴ are lost in float32."""
    if x.dtype.is_complex:
        return x.to(torch.complex128)
    if not x.dtype.is_floating_point:
        return x.to(torch.int64)
    # There is no float64 on mps.
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def _joined(name: str, reduction: Reduction, held: Any, x: Tensor) -> Any:
    """Return ``held`` and ``x`` together, neither changed; ``[]`` holds nothing."""
    if reduction == "cat":
        return [*held, x.reshape(1) if x.ndim == 0 else x.clone()]
    x = _wide(x) if reduction == "sum" else x
    if isinstance(held, list):
        return x.clone()
    if held.shape != x.shape:
        own = int(reduction == "mean")  # dimensions that are ours
        old, new = list(held.shape[own:]), list(x.shape[own:])
        raise InputError(
            f"update: {name!r} had the shape {old} and now has {new}; a {reduction} is elementwise",
            do=f"reduce over the batch first, such as {name}=x.sum(0), or declare it as cat.",
        )
    return fold([held, x.to(held.device)], "sum" if reduction == "mean" else reduction)


class FunctionAdapter(Adapter):
    """Reads what a metric holds."""

    synced_flags: Mapping[str, Any] = {SYNCED: True}
    counter = COUNT
    flag = SYNCED

    def knows(self, value: Any) -> bool:
        """Return True if :func:`from_function` made it."""
        return isinstance(value, FunctionMetric)

    def states(self, metric: FunctionMetric[Any]) -> list[StateSpec]:
        """Return the states in the order in which they were declared."""
        return [StateSpec(k, "sum" if op == "mean" else op) for k, op in metric.reduce.items()]

    def storage(self, metric: FunctionMetric[Any]) -> dict[str, Any]:
        """Return what the metric holds."""
        return metric._held

    def arguments(self, metric: FunctionMetric[Any]) -> dict[str, Reduction]:
        """Return the reductions: a mean is a state that is summed, too."""
        return metric.reduce

    def updates(self, metric: FunctionMetric[Any]) -> int:
        """Return 0, since it is asked where the counter says nothing."""
        return 0


ADAPTER = FunctionAdapter()

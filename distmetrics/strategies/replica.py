"""Replicas of a module: run in threads, and what must not be lost: values logged, metrics updated.

A replica is a shallow copy that lives for one step and shares the module's parameters. What a step
changes on it is thrown away, so a replica notes what the step logs and updates, and the module
itself does it afterwards, once, in the replicas' order.
"""

import contextvars
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.arguments import is_metric
from distmetrics.errors import ConfigurationError

_STEP_END = "return what it needs, and use the metric in training_step_end or validation_step_end"


class Logged(NamedTuple):
    """A call of ``self.log`` in a replica, or of ``self.log_dict`` with metrics: then without name.

    ``value`` is the module's own metric where ``is_metric``; ``size`` is the number of samples
    behind a value, None where that can't be told.
    """

    value: Any
    is_metric: bool
    options: dict[str, Any]
    size: int | None


@dataclass
class Notes:
    """What one replica's step asked for.

    Attributes:
        size: number of samples of its part of the batch; None where that can't be told.
        logged: name and call of each ``self.log``.
        updates: calls of ``update`` of the module's metrics.
        metrics: the module's own metrics, by the id of what stands for each in the replica.
        before: parts of the replica by path, and their attributes before the step.
    """

    size: int | None
    logged: list[tuple[str, Logged]] = field(default_factory=list)
    updates: list[Callable[[], Any]] = field(default_factory=list)
    metrics: dict[int, Any] = field(default_factory=dict)
    before: list[tuple[str, nn.Module, dict[str, Any]]] = field(default_factory=list)

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Stand for ``self.log`` in a replica."""
        size = options.get("batch_size") or self.size
        own = self.metrics.get(id(value), value)
        self.logged.append((name, Logged(own, own is not value, options, size)))

    def log_dict(self, values: Any, **options: Any) -> None:
        """Stand for ``self.log_dict`` in a replica."""
        if is_metric(values):
            self.log("", values, **options)
            return
        for name, value in values.items():
            self.log(name, value, **options)

    def stand_for(self, metric: Any, path: str, holder: Any) -> None:
        """Give a metric's place in a replica methods that note updates, and refuse the rest."""

        def update(*args: Any, **kwargs: Any) -> None:
            self.updates.append(partial(metric.update, *args, **kwargs))

        self.metrics[id(holder)] = metric
        holder.update = update
        holder.forward = _refusal(f"self.{path}(...)", path)
        holder.compute = _refusal(f"self.{path}.compute()", path)
        holder.reset = _refusal(f"self.{path}.reset()", path)


def noted(module: nn.Module, copied: nn.Module, size: int | None, *, is_step: bool) -> Notes:
    """Make a copy of a module note what its step logs and updates; return the notes.

    Args:
        module: the user's.
        copied: a shallow copy of it, as torch's replicate makes them.
        size: number of samples that it will see, None where that can't be told.
        is_step: whether the module is the trainer's, with methods that log and gather.
    """
    notes = Notes(size)
    shadow = {"log": notes.log, "log_dict": notes.log_dict, "all_gather": _refuse_gather}
    if is_step:
        vars(copied).update(shadow)
    for path, part in copied.named_modules():
        if is_metric(part):
            notes.stand_for(module.get_submodule(path), path, part)
        for name, value in list(vars(part).items()):
            if not name.startswith("_") and is_metric(value):
                stand_in = vars(part)[name] = SimpleNamespace()
                notes.stand_for(value, f"{path}.{name}".lstrip("."), stand_in)
        notes.before.append((path, part, dict(vars(part))))
    return notes


def _refusal(what: str, path: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ConfigurationError(
            f"{what} in a step under strategy 'dp': each replica sees its part of the batch "
            "alone, and is thrown away",
            do=f"{_STEP_END}; self.{path}.update(...) and self.log(name, self.{path}) are "
            "fine in a step.",
        )

    return refuse


def _refuse_gather(*_args: Any, **_kwargs: Any) -> Any:
    raise ConfigurationError(
        "all_gather in a step under strategy 'dp': replicas are threads of one process, and no "
        "ranks",
        do="return what it needs: *_step_end gets it from all replicas, joined.",
    )


def replay(module: nn.Module, all_notes: Sequence[Notes]) -> None:
    """Do on the module what its replicas have noted: metrics updated in order, values logged once.

    A mean is weighted by the samples of each replica, so what is logged is what one step on the
    whole batch would have.

    Raises:
        ConfigurationError: replicas logged a name in different ways.
    """
    calls: dict[str, list[Logged]] = {}
    for notes in all_notes:
        for update in notes.updates:
            update()
        _warn_of_lost(notes)
        for name, logged in notes.logged:
            calls.setdefault(name, []).append(logged)
    for name, entries in calls.items():
        _log(module, name, entries)


def _log(module: Any, name: str, entries: Sequence[Logged]) -> None:
    """Log one value for all replicas' values of one name."""
    value, is_metric_object, options, _ = entries[0]
    if is_metric_object:
        log = partial(module.log, name) if name else module.log_dict
        log(value, **options)
        return
    reduce_fx = options.get("reduce_fx", "mean")
    is_known = reduce_fx in ("mean", "sum", "max", "min")
    if not is_known or any(each.size is None or not _is_number(each.value) for each in entries):
        # A batch that was not cut, or what the module's own log refuses.
        for each in entries:
            module.log(name, each.value, **each.options)
        return
    for each in entries:
        if each.options | {"batch_size": None} != options | {"batch_size": None}:
            raise ConfigurationError(
                f"the replicas of strategy 'dp' log {name!r} with different options"
            )
    values = _stacked(entries)
    if reduce_fx == "mean":
        sizes = torch.tensor([each.size for each in entries]).to(values)
        count = sizes.sum()
        options = options | {"batch_size": int(count)}
        value = (sizes * values).sum() / count if count else values[0]
    else:
        value = getattr(values, reduce_fx)()
    module.log(name, value, **options)


def _stacked(entries: Sequence[Logged]) -> Tensor:
    """Return the replicas' numbers on the device of the first one."""
    numbers = []
    for each in entries:
        number = torch.as_tensor(each.value).detach()
        numbers.append(number.double().reshape(()))
    device = numbers[0].device
    return torch.stack([number.to(device) for number in numbers])


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


_warned: set[str] = set()


def _warn_of_lost(notes: Notes) -> None:
    """Say which attributes a step has set on a replica: they are gone."""
    for path, part, before in notes.before:
        for name, value in vars(part).items():
            where = f"self.{path}.{name}".replace("..", ".")
            is_kept = name in before and before[name] is value
            if is_kept or where in _warned:
                continue
            _warned.add(where)
            warnings.warn(
                f"a step has set {where} on a replica of strategy 'dp', which is thrown away: "
                "the value is lost. "
                "Return it from the step: *_step_end gets it from all replicas, joined.",
                stacklevel=2,
            )


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of calls made at a time in threads with this one's modes (grad, autocast).

    Raises:
        BaseException: what the first of them that failed raised.
    """
    if len(calls) == 1:
        return [calls[0]()]
    modes = _modes()
    futures: list[Future[Any]] = [Future() for _ in calls]

    def run(index: int) -> None:
        try:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode())
                futures[index].set_result(calls[index]())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            error.add_note(f"raised in replica {index} of strategy 'dp'")
            futures[index].set_exception(error)

    threads = [
        Thread(target=contextvars.copy_context().run, args=(run, index), name=f"replica {index}")
        for index in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [future.result() for future in futures]


def _modes() -> list[Callable[[], AbstractContextManager[Any]]]:
    """Return what puts this thread's modes in force in another: torch keeps them for each."""
    modes: list[Callable[[], AbstractContextManager[Any]]] = [
        partial(torch.inference_mode, torch.is_inference_mode_enabled()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
    ]
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            # The cache is one for all threads: gradients of all would be added up in its low
            # precision.
            modes.append(partial(torch.autocast, kind, dtype=dtype, cache_enabled=False))
    return modes

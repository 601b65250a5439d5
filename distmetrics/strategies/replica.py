"""Replicas of a module, and what they must not lose: values logged, metrics updated.

A replica is a shallow copy that lives for one step and shares the module's parameters. What a step
changes on it is thrown away, so a replica notes what the step logs and updates, and the module
itself does it afterwards, once, in the replicas' order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.errors import ConfigurationError

_STEP_END = "return what it needs, and use the metric in training_step_end or validation_step_end"


class Logged(NamedTuple):
    """A call of ``self.log`` in a replica, or of ``self.log_dict`` with metrics: then without name.

    ``metric`` is the path of a metric's own object in the module, "" for other values; ``size`` the
    number of samples behind the value, None where that can't be told.
    """

    value: Any
    metric: str
    options: dict[str, Any]
    size: int | None


@dataclass
class Notes:
    """What one replica's step asked for.

    Attributes:
        size: number of samples of its part of the batch; None where that can't be told.
        logged: name and call of each ``self.log``.
        updates: path of a metric in the module, and the arguments of its ``update``.
        metrics: path of each metric, by the id of what stands for it in the replica.
        before: parts of the replica by path, and their attributes before the step.
    """

    size: int | None
    logged: list[tuple[str, Logged]] = field(default_factory=list)
    updates: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    metrics: dict[int, str] = field(default_factory=dict)
    before: list[tuple[str, nn.Module, dict[str, Any]]] = field(default_factory=list)

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Stand for ``self.log`` in a replica."""
        size = options.get("batch_size") or self.size
        metric = self.metrics.get(id(value), "")
        self.logged.append((name, Logged(value, metric, options, size)))

    def log_dict(self, values: Any, **options: Any) -> None:
        """Stand for ``self.log_dict`` in a replica."""
        for name, value in [("", values)] if _is_metric(values) else values.items():
            self.log(name, value, **options)

    def stand_for(self, metric: str) -> dict[str, Callable[..., Any]]:
        """Return methods for a metric in a replica: updates are noted, what has a value refused."""

        def update(*args: Any, **kwargs: Any) -> None:
            self.updates.append((metric, args, kwargs))

        refused = {name: _refusal(metric, name) for name in ("forward", "compute", "reset")}
        return {"update": update, **refused}


def replicas(
    module: nn.Module, copies: Sequence[nn.Module], sizes: Sequence[int | None]
) -> list[Notes]:
    """Make each copy note what its step logs and updates; return the notes.

    Args:
        module: the user's.
        copies: shallow copies of it, as torch's replicate makes them.
        sizes: number of samples that each copy will see, None where that can't be told.
    """
    all_notes = []
    for copied, size in zip(copies, sizes, strict=True):
        notes = Notes(size)
        shadow = {"log": notes.log, "log_dict": notes.log_dict, "all_gather": _refuse_gather}
        vars(copied).update({name: shadow[name] for name in shadow if hasattr(module, name)})
        for path, part in copied.named_modules():
            if _is_metric(part):
                notes.metrics[id(part)] = path
                vars(part).update(notes.stand_for(path))
            for name, value in list(vars(part).items()):
                if name.startswith("_") or isinstance(value, nn.Module):
                    continue
                if _is_metric(value):
                    where = f"{path}.{name}".lstrip(".")
                    stand_in = vars(part)[name] = SimpleNamespace(**notes.stand_for(where))
                    notes.metrics[id(stand_in)] = where
            notes.before.append((path, part, dict(vars(part))))
        all_notes.append(notes)
    return all_notes


def _is_metric(value: Any) -> bool:
    methods = (getattr(value, name, None) for name in ("update", "compute", "reset"))
    return not isinstance(value, type) and all(map(callable, methods))


def _refusal(metric: str, name: str) -> Callable[..., Any]:
    what = f"self.{metric}(...)" if name == "forward" else f"self.{metric}.{name}()"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ConfigurationError(
            f"{what} in a step under strategy 'dp': each replica sees its part of the batch "
            "alone, and is thrown away",
            do=f"{_STEP_END}; self.{metric}.update(...) and self.log(name, self.{metric}) are "
            "fine in a step.",
        )

    return refuse


def _refuse_gather(*args: Any, **kwargs: Any) -> Any:
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
        for path, args, kwargs in notes.updates:
            attrgetter(path)(module).update(*args, **kwargs)
        _warn_of_lost(notes)
        for name, logged in notes.logged:
            calls.setdefault(name, []).append(logged)
    for name, entries in calls.items():
        _log(module, name, entries)


def _log(module: Any, name: str, entries: Sequence[Logged]) -> None:
    first, options = entries[0], entries[0].options
    if first.metric:
        metric = attrgetter(first.metric)(module)
        if name:
            module.log(name, metric, **options)
        else:
            module.log_dict(metric, **options)
    elif None in [entry.size for entry in entries]:  # a batch that was not cut
        for entry in entries:
            module.log(name, entry.value, **entry.options)
    else:
        _log_combined(module, name, entries)


def _log_combined(module: Any, name: str, entries: Sequence[Logged]) -> None:
    """Log one value for all replicas' values of one name."""
    first, options = entries[0].value, entries[0].options
    if len({_without_size(entry.options) for entry in entries}) > 1:
        raise ConfigurationError(
            f"the replicas of strategy 'dp' log {name!r} with different options"
        )
    combine = _COMBINE.get(options.get("reduce_fx", "mean"))
    refused = [entry.value for entry in entries if not _is_number(entry.value)]
    if refused or combine is None:
        module.log(name, (refused or [first])[0], **options)  # says itself what is wrong
        return
    device = first.device if isinstance(first, Tensor) else torch.device("cpu")
    values = torch.stack([_number(entry.value).to(device) for entry in entries])
    weights = torch.tensor([entry.size for entry in entries], dtype=torch.float64, device=device)
    if combine is _mean:
        options = options | {"batch_size": int(weights.sum())}
    module.log(name, combine(values, weights), **options)


def _number(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach().reshape(())


def _without_size(options: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, repr(v)) for k, v in options.items() if k != "batch_size"))


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum()
    return (weights * values).sum() / total if total else values[0]


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "sum": lambda values, weights: values.sum(),
    "max": lambda values, weights: values.max(),
    "min": lambda values, weights: values.min(),
}


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


_warned: set[str] = set()


def _warn_of_lost(notes: Notes) -> None:
    """Say which attributes a step has set on a replica: they are gone."""
    for path, part, before in notes.before:
        for name, value in vars(part).items():
            where = f"self.{path}.{name}".replace("..", ".")
            if (name in before and before[name] is value) or where in _warned:
                continue
            _warned.add(where)
            warnings.warn(
                f"a step has set {where} on a replica of strategy 'dp', which is thrown away: "
                "the value is lost. "
                "Return it from the step: *_step_end gets it from all replicas, joined.",
                stacklevel=2,
            )

"""Replicas of a module that share its parameters, and what they must not lose: values logged,
metrics updated.

A replica is a shallow copy that lives for one step. What a step changes on it is thrown away, so a
replica notes what the step logs and updates, and the module itself does it afterwards, once, in the
replicas' order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from distmetrics.errors import ConfigurationError

_METRIC = ("update", "compute", "reset")
_STEP_END = (
    "Do:     return what it needs, and use the metric in training_step_end or validation_step_end."
)


@dataclass
class Notes:
    """What one replica's step asked for.

    Attributes:
        size: number of samples of its part of the batch; None where that can't be told.
        logged: name, value and options of each ``self.log``.
        updates: path of a metric in the module, and the arguments of its ``update``.
        metrics: path of each metric, by the id of what stands for it in the replica.
        seen: the replica's attributes before the step.
    """

    size: int | None
    logged: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    updates: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    metrics: dict[int, str] = field(default_factory=dict)
    seen: list[tuple[str, nn.Module, dict[str, Any]]] = field(default_factory=list)

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Stand for ``self.log`` in a replica."""
        self.logged.append((name, value, options))

    def log_dict(self, values: Any, **options: Any) -> None:
        """Stand for ``self.log_dict`` in a replica."""
        if _is_metric(values):
            self.logged.append(("", values, options))
            return
        for name, value in values.items():
            self.log(name, value, **options)


def replicas(
    module: nn.Module, copies: Sequence[nn.Module], sizes: Sequence[int | None]
) -> list[Notes]:
    """Make each copy note what its step logs and updates.

    Args:
        module: the user's.
        copies: shallow copies of it, as torch's replicate makes them.
        sizes: number of samples that each copy will see, None where that can't be told.
    """
    made = []
    for copied, size in zip(copies, sizes, strict=True):
        notes = Notes(size)
        shadow = {"log": notes.log, "log_dict": notes.log_dict, "all_gather": _refuse_gather}
        vars(copied).update(
            {name: stand_in for name, stand_in in shadow.items() if hasattr(module, name)}
        )
        for path, part in copied.named_modules():
            if _is_metric(part):
                _note_metric(part, path, notes)
            for name, value in list(vars(part).items()):
                if (
                    not isinstance(value, nn.Module)
                    and not name.startswith("_")
                    and _is_metric(value)
                ):
                    vars(part)[name] = _StandIn(f"{path}.{name}".lstrip("."), notes)
            notes.seen.append((path, part, dict(vars(part))))
        made.append(notes)
    return made


def _is_metric(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in _METRIC
    )


def _note_metric(part: nn.Module, path: str, notes: Notes) -> None:
    """Let a metric that is a module note its updates; what has a value at once is refused."""
    notes.metrics[id(part)] = path
    vars(part)["update"] = lambda *args, **kwargs: notes.updates.append((path, args, kwargs))
    for name in ("forward", "compute", "reset"):
        vars(part)[name] = _refusal(path, name)


class _StandIn:
    """In a replica, in the place of a metric that is no module."""

    def __init__(self, path: str, notes: Notes) -> None:
        notes.metrics[id(self)] = path
        self.update = lambda *args, **kwargs: notes.updates.append((path, args, kwargs))
        self.compute, self.reset = _refusal(path, "compute"), _refusal(path, "reset")


def _refusal(path: str, name: str) -> Callable[..., Any]:
    what = f"self.{path}(...)" if name == "forward" else f"self.{path}.{name}()"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ConfigurationError(
            f"{what} in a step under strategy 'dp': each replica sees its part of the batch "
            "alone, and is thrown away\n"
            f"{_STEP_END}\n        self.{path}.update(...) and self.log(name, self.{path}) are "
            "fine in a step."
        )

    return refuse


def _refuse_gather(*args: Any, **kwargs: Any) -> Any:
    raise ConfigurationError(
        "all_gather in a step under strategy 'dp': replicas are threads of one process, and no "
        "ranks",
        do="return what it needs: *_step_end gets it from all replicas, joined.",
    )


def replay(module: nn.Module, notes: Sequence[Notes]) -> None:
    """Do on the module what its replicas have noted: metrics are updated in their order, values
    logged once.

    A mean is weighted by the samples of each replica, so what is logged is what one step on the
    whole batch would have.

    Raises:
        ConfigurationError: replicas logged a name in different ways.
    """
    for note in notes:
        for path, args, kwargs in note.updates:
            _at(module, path).update(*args, **kwargs)
        _warn_of_lost(note)
    by_name: dict[str, list[tuple[Notes, Any, dict[str, Any]]]] = {}
    for note in notes:
        for name, value, options in note.logged:
            by_name.setdefault(name, []).append((note, value, options))
    for name, entries in by_name.items():
        _log(module, name, entries)


def _log(module: Any, name: str, entries: list[tuple[Notes, Any, dict[str, Any]]]) -> None:
    note, first, options = entries[0]
    if id(first) in note.metrics:
        metric = _at(module, note.metrics[id(first)])
        if name:
            module.log(name, metric, **options)
        else:
            module.log_dict(metric, **options)
        return
    kinds = {
        tuple(sorted((k, repr(v)) for k, v in o.items() if k != "batch_size"))
        for _, _, o in entries
    }
    if len(kinds) > 1:
        raise ConfigurationError(
            f"the replicas of strategy 'dp' log {name!r} with different options"
        )
    reduce = options.get("reduce_fx", "mean")
    if any(
        note.size is None and not o.get("batch_size") for note, _, o in entries
    ):  # a batch that was not cut
        for _, value, said in entries:
            module.log(name, value, **said)
        return
    refused = [value for _, value, _ in entries if not _is_number(value)]
    if refused or reduce not in _COMBINE:
        module.log(name, (refused or [first])[0], **options)  # says itself what is wrong
        return
    weights = [float(o.get("batch_size") or note.size or 0) for note, _, o in entries]
    values = [_number(value, first) for _, value, _ in entries]
    if reduce == "mean":
        total = sum(weights)
        joined = (
            sum(w * v for w, v in zip(weights, values, strict=True)) / total if total else values[0]
        )
        module.log(name, joined, **options | {"batch_size": int(total)})
        return
    module.log(name, _COMBINE[reduce](torch.stack(values)), **options)


_COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "max": torch.max,
    "min": torch.min,
}


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _number(value: Any, like: Any) -> Tensor:
    found = (
        value.detach()
        if isinstance(value, Tensor)
        else torch.tensor(float(value), dtype=torch.float64)
    )
    found = found.double().reshape(())
    return found.to(like.device) if isinstance(like, Tensor) else found


def _at(module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


_warned: set[str] = set()


def _warn_of_lost(note: Notes) -> None:
    """Say which attributes a step has set on a replica: they are gone."""
    for path, part, before in note.seen:
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

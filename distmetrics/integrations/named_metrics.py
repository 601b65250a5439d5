"""Metrics as users pass them: one, several, by name; and their values as numbers to be logged."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from distmetrics.errors import InputError, InputTypeError
from distmetrics.tree import map_leaves


def by_name(metrics: Any) -> dict[str, Any]:
    """Return the metrics by the names under which they are logged.

    A list's metrics are called as their classes, a collection's (under ``""``) as it says itself.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    elif isinstance(metrics, nn.ModuleDict):  # a MetricCollection
        named = {"": metrics}
    else:
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        named = {type(metric).__name__: metric for metric in several}
        if len(named) < len(several):
            raise InputError("attach: two metrics of one class", do="pass a dict by name.")
    for metric in named.values():
        if not hasattr(metric, "reset"):
            raise InputTypeError(
                f"attach: a {type(metric).__name__} is no metric",
                do="pass a metric of torchmetrics, torcheval or from_function; what needs all "
                "predictions at once is the trainer's compute_metrics.",
            )
    if "loss" in named:
        raise InputError("attach: the loss is logged already", do="call the metric otherwise.")
    return named


def each(metrics: Any) -> Iterator[Any]:
    """Yield the metrics, and a collection as one."""
    yield from by_name(metrics).values()


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as numbers and lists, with those of a collection or a dict one by one."""
    result = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            for key, part in plain(value).items():
                result[f"{name}_{key}" if name else key] = part
        else:
            result[name] = map_leaves(_number, value)
    return result


def _number(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.item() if leaf.numel() == 1 else leaf.tolist()

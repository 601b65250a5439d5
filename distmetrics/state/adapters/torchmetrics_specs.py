"""The states of a metric of torchmetrics, and how each is combined: what its ``add_state`` calls
and its class tell.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import (
    dim_zero_cat,
    dim_zero_max,
    dim_zero_mean,
    dim_zero_min,
    dim_zero_sum,
)

from distmetrics.errors import StateError
from distmetrics.state.adapters.arguments import arguments
from distmetrics.state.adapters.assigned import assigned
from distmetrics.state.spec import Kind, Learned, Rule, StateSpec, StateSpecs

# What computing must see: a synced metric that will neither sync again nor un-sync itself.
SYNCED = {"_computed": None, "_to_sync": False, "_should_unsync": False, "_is_synced": True}
COUNTER = "_update_count"
KEPT = (*SYNCED, COUNTER)
_KINDS: dict[Any, Kind] = {
    dim_zero_sum: "sum",
    dim_zero_mean: "mean",
    dim_zero_max: "max",
    dim_zero_min: "min",
}


def specs_of(metric: Metric) -> StateSpecs:
    """Return the states in the order of their ``add_state`` calls."""
    shapes = tuple([getattr(default, "shape", None) for default in metric._defaults.values()])
    # As texts: to a cache 1, 1.0 and True are one.
    made_with = tuple([f"{name}={value!r}" for name, value in arguments(metric, Metric)])
    return _specs(tuple(metric._reductions.items()), shapes, type(metric), made_with)


@functools.lru_cache(maxsize=1024)
def _specs(
    reductions: tuple[tuple[str, Any], ...],
    shapes: tuple[tuple[int, ...] | None, ...],
    kind: type[Metric],
    made_with: tuple[str, ...],
) -> StateSpecs:
    if len(reductions) != len(shapes):
        raise StateError(
            f"{kind.__name__} has {len(shapes)} states and reductions for {len(reductions)}: "
            f"{', '.join(name for name, _ in reductions)}",
            do="make each state by add_state.",
        )
    found = assigned(kind, Metric)
    each = [
        _spec(
            name,
            _FAULTS.get((kind.__name__, name), reduction),
            () if shape and found.adds_states else shape,
            kind,
        )
        for (name, reduction), shape in zip(reductions, shapes, strict=True)
    ]
    names = {name for name, _ in reductions} | _BOOKKEEPING
    learned = [
        _combined(kind, attribute) for attribute in found.learned if attribute.name not in names
    ]
    each += [StateSpec(name, "sum", optional=True) for name, rule in learned if rule == "sum"]
    kept = tuple([Learned(name, rule) for name, rule in learned if rule != "sum"])
    said = [*map(str, each), *made_with]
    return StateSpecs(tuple(each), KEPT, ", ".join(said), kept)


def _spec(
    name: str, reduction: Any, shape: tuple[int, ...] | None, kind: type[Metric]
) -> StateSpec:
    """Describe one state; ``shape`` is its default's, None for a list."""
    if reduction is dim_zero_cat:
        return StateSpec(name, "cat")
    if shape is None:
        # Of torchmetrics' own classes none changes its items as it computes; of others nobody
        # knows.
        return StateSpec(
            name, "items", reduction, read_only=kind.__module__.startswith("torchmetrics.")
        )
    if reduction in _KINDS:
        return StateSpec(name, _KINDS[reduction], shape=shape)
    return StateSpec(name, "stack", reduction, shape)


def _at_most_two(rows: Tensor) -> Tensor:
    """Refuse what NormalizedRootMeanSquaredError would get wrong; two ranks are merged right."""
    if len(rows) > 2 and _overwrites():
        raise StateError(
            f"NormalizedRootMeanSquaredError cannot merge the data of {len(rows)} ranks: in "
            "torchmetrics its "
            "_final_aggregation overwrites the totals that it iterates over, and then fails or "
            "is wrong",
            do="use MeanSquaredError(squared=False), and normalize by a MeanMetric, MaxMetric or "
            "MinMetric of "
            "the target.",
        )
    return rows


@functools.cache
def _overwrites() -> bool:
    """Whether the installed torchmetrics still has the fault: its mean over three ranks tells."""
    from torchmetrics.regression.nrmse import _final_aggregation

    one = torch.ones(3, 1)
    try:
        merged = _final_aggregation(
            one, one, torch.tensor([[1.0], [2.0], [3.0]]), one, one, one, "mean"
        )
    except IndexError:
        return True
    return float(merged) != 2.0


_FAULTS: Mapping[tuple[str, str], Any] = {("NormalizedRootMeanSquaredError", "total"): _at_most_two}

# Attributes of torchmetrics' own that update() adds to, and that can be combined nevertheless: a
# sum over all images; and a cursor in a window, of which computing needs to know only that there
# has been data.
_COMBINED: Mapping[tuple[str, str], Rule | Literal["sum"]] = {
    ("RootMeanSquaredErrorUsingSlidingWindow", "rmse_map"): "sum",
    ("Running", "_num_vals_seen"): "last",
}
_BOOKKEEPING = frozenset((*KEPT, "_cache", "_forward_cache", "_update_called"))


def _combined(kind: type, attribute: Learned) -> tuple[str, Rule | Literal["sum"]]:
    """Return an attribute's name and how it is combined: as we know of torchmetrics' own, or as its
    class tells.
    """
    own = [
        _COMBINED[key]
        for base in kind.__mro__
        if (key := (base.__name__, attribute.name)) in _COMBINED
    ]
    return attribute.name, own[0] if own else attribute.rule

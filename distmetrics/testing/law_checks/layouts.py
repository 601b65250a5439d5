"""Checks of the laws about layouts: ranks with the same samples, other orders of axes, owners."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distmetrics.layouts.mesh import SAME, SHARD, Mesh, usual_roles
from distmetrics.testing import scenarios
from distmetrics.testing.batches import Shards
from distmetrics.testing.scenarios import Scenario
from distmetrics.testing.trial import NotJudged, Trial, compare, no_error


def mesh_of(sizes: Mapping[str, int]) -> Mesh:
    """Return a mesh whose axes mean what their names say.

    Raises:
        ConfigurationError: a name is not known.
    """
    return Mesh.of(sizes, usual_roles(sizes))


def replica_neutral(trial: Trial) -> None:
    """Let several ranks hold the samples of each shard."""
    for mesh in _meshes(trial, "ranks with the same samples", lambda mesh: mesh.axes(SAME)):
        parts, expected = _of_shards(trial, mesh)
        dealt = _dealt(mesh, parts, parts)
        no_error(expected, trial.settled(dealt, _over(mesh)), dealt)  # ranks that differ are one
        _compare(trial, mesh, dealt, expected, " of the shards alone")


def axis_order(trial: Trial) -> None:
    """Number the ranks in other orders of the axes; those of shards keep theirs."""
    for mesh in _meshes(trial, "two axes that can be swapped", _others):
        shards, others = mesh.axes(SHARD), _others(mesh)
        parts, expected = _of_shards(trial, mesh)
        for axes in ([*shards, *others], [*reversed(others), *shards]):
            swapped = mesh_of({axis: mesh.sizes[axis] for axis in axes})
            dealt = _dealt(swapped, parts, parts)
            _compare(trial, swapped, dealt, expected, f" with the axes in the order {axes}")


def owner_only(trial: Trial) -> None:
    """Let the ranks that do not own the values hold other samples."""
    for mesh in _meshes(trial, "an owner", lambda mesh: mesh.owned):
        parts, expected = _of_shards(trial, mesh)
        others = tuple(part + part for part in reversed(parts))
        _compare(trial, mesh, _dealt(mesh, parts, others), expected, " of the owners alone")


def _others(mesh: Mesh) -> list[str]:
    shards = mesh.axes(SHARD)
    return [axis for axis in mesh.sizes if axis not in shards]


def _meshes(trial: Trial, what: str, has_it: Callable[[Mesh], Any]) -> Iterable[Mesh]:
    """Return the meshes that have something.

    Raises:
        NotJudged: there are none.
    """
    kept = list(filter(has_it, map(mesh_of, trial.layouts)))
    if not kept:
        raise NotJudged(f"no layout has {what}")
    return kept


def _of_shards(trial: Trial, mesh: Mesh) -> tuple[Shards, Any]:
    """Return what each shard has, and the value of a world of as many ranks."""
    parts = trial.parts(len(mesh.along(0, mesh.axes(SHARD))))
    return parts, trial.values(parts)[0]


def _dealt(mesh: Mesh, parts: Shards, of_others: Shards) -> Shards:
    """Deal parts to the ranks that have values, and others to the others."""
    dealt = []
    for rank in mesh.ranks:
        shard = mesh.along(rank, mesh.axes(SHARD)).index(rank)
        dealt.append((parts if mesh.owns(rank) else of_others)[shard])
    return tuple(dealt)


def _compare(trial: Trial, mesh: Mesh, dealt: Shards, expected: Any, note: str) -> None:
    compare(expected, trial.values(dealt, _over(mesh)), trial.loosely, dealt, note)


@functools.cache
def _scenario(axes: tuple[tuple[str, int], ...]) -> Scenario:
    """Return the same object for the same mesh, so that no run is made twice."""
    return functools.partial(scenarios.over_layout, dict(axes))


def _over(mesh: Mesh) -> Scenario:
    return _scenario(tuple(mesh.sizes.items()))

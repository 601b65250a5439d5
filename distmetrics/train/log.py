"""What the user logs, and how the ranks' values of an epoch become the number of one process.

Every value is kept as (Σ weight·value, Σ weight) in float64. At the end of an epoch one exchange
brings together what each rank logged, under which name and how; all ranks combine it in rank order
and get the same bits. Metric objects are then synced all together. An epoch costs one collective
for the values, however many, and one or two for the metric objects. A rank that had no batch takes
part with an empty table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator, call_site
from distmetrics.errors import ConfigurationError, MismatchError, Site, compose
from distmetrics.state.sync import sync_and_compute
from distmetrics.train.names import Batches, Table, check_names
from distmetrics.train.sums import Key, Kind, Record, Sum, combine
from distmetrics.train.values import as_number, metric_at


class Logged(NamedTuple):
    """What was logged in an epoch.

    Attributes:
        values: by key.
        local: which of them are this rank's own.
        forked: which have a value of each step beside them.
        batches: number of batches of each loader, over all ranks.
    """

    values: dict[Key, Tensor]
    local: set[Key]
    forked: set[Key]
    batches: Batches


class EpochLog:
    """What one rank has logged in an epoch, or in one step.

    Args:
        strict: refuse names that only some ranks log, see
            :func:`~distmetrics.train.names.check_names`.

    Attributes:
        batches: how many there were of each loader so far.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._sums: dict[Key, Sum] = {}
        self.batches: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(
        self,
        key: Key,
        kind: Kind,
        value: Tensor | float | None = None,
        weight: float = 1.0,
        *,
        in_step: bool = False,
    ) -> None:
        """Count ``value`` under ``key``; a metric object's value comes at the end of the epoch.

        Raises:
            ConfigurationError: the name was logged in another way before.
        """
        entry = self.sum_of(key, kind)
        entry.steps += in_step
        if value is not None:
            entry.add(value, weight)

    def sum_of(self, key: Key, kind: Kind) -> Sum:
        """Return what adds up the values under ``key``.

        Raises:
            ConfigurationError: the name was logged in another way before.
        """
        entry = self._sums.get(key)
        if entry is None:
            entry = self._sums[key] = Sum(kind, call_site())
        if entry.kind != kind:
            raise ConfigurationError(
                f"{key.label!r} is logged in two ways: as {entry.kind}, and as {kind}",
                do="log it in one way, or under two names.",
            )
        return entry

    def state(self) -> list[list[Any]]:
        """Return what was logged so far, of plain types."""
        return [
            [*key, list(entry.kind), entry.saved(), entry.weight]
            for key, entry in self._sums.items()
        ]

    def load(self, state: Iterable[Sequence[Any]]) -> None:
        """Count what :meth:`state` returned, here or on another rank."""
        for name, loader, kind, total, weight in state:
            self.add(Key(name, loader), Kind(*kind))
            self._sums[Key(name, loader)].merge(total, weight)

    def metrics(self) -> set[str]:
        """Return where the module holds the metric objects logged so far."""
        return {entry.kind.metric for entry in self._sums.values() if entry.kind.metric}

    def close(
        self, comm: Communicator, module: nn.Module, *, name: str, told: Site | None = None
    ) -> Logged:
        """Combine the values of all ranks; every rank must call it. Metric objects are reset.

        Args:
            comm: who talks.
            module: which holds the metric objects.
            name: of the exchange.
            told: the line that it is made for, where that is no line of ours.

        Raises:
            MismatchError: ranks log a name in different ways, or only some of them do (on every
                rank).
            ConfigurationError: a metric object has been logged for two loaders (on every rank).
        """
        mine: Table = {key: entry.record() for key, entry in self._sums.items()}
        gathered = gather_objects((mine, self.batches), comm, name, call_site(), told=told)
        tables: list[Table] = [table for table, _ in gathered]
        batches: list[Batches] = [counts for _, counts in gathered]
        kinds = agree(tables, comm.rank)
        lines = {key: entry.site for key, entry in self._sums.items()}
        check_names(tables, batches, lines, comm, name, strict=self._strict)
        values: dict[Key, Tensor] = {}
        for key, kind in kinds.items():
            ranks = {"all ranks": range(comm.world_size), "this rank": [comm.rank], "rank 0": [0]}[
                kind.scope
            ]
            records = [tables[rank][key] for rank in ranks if key in tables[rank]]
            if records and not kind.metric:
                values[key] = _value(kind, records)
        values.update(_metric_values(kinds, comm, module, name))
        local = {
            key for key, kind in kinds.items() if kind.scope == "this rank" and comm.world_size > 1
        }
        total = {
            loader: sum(counts.get(loader, 0) for counts in batches)
            for loader in set().union(*batches)
        }
        return Logged(values, local, {key for key, kind in kinds.items() if kind.forked}, total)


def agree(tables: Sequence[Table], rank: int) -> dict[Key, Kind]:
    """Return how each name was logged, the same on all ranks that log it.

    Raises:
        MismatchError: two ranks log a name in different ways.
    """
    kinds: dict[Key, Kind] = {}
    for table in tables:
        for key, record in table.items():
            if kinds.setdefault(key, record.kind) != record.kind:
                lines = {
                    r: f"as {t[key].kind}" if key in t else "not at all"
                    for r, t in enumerate(tables)
                }
                text = compose(
                    f"ranks log {key.label!r} in different ways",
                    lines,
                    likely="a condition on the rank or on the data around self.log.",
                    do="log a name with the same options on every rank.",
                )
                raise MismatchError(text, rank=rank, peers=range(len(tables)))
    return kinds


def _value(kind: Kind, records: Iterable[Record]) -> Tensor:
    """Combine the ranks' parts in rank order."""
    total: Tensor | None = None
    weight = 0.0
    for record in records:
        if record.weight > 0:
            part = torch.tensor(record.total, dtype=torch.float64)
            total = part if total is None else combine(kind.reduce_fx, total, part)
            weight += record.weight
    if total is None:
        return torch.tensor(float("nan"), dtype=torch.float64)
    return total / weight if kind.reduce_fx == "mean" else total


def _metric_values(
    kinds: Mapping[Key, Kind], comm: Communicator, module: nn.Module, name: str
) -> dict[Key, Tensor]:
    """Compute all logged metric objects over all ranks in one sync, and reset them."""
    keys: dict[str, list[Key]] = {}
    for key, kind in kinds.items():
        if kind.metric:
            keys.setdefault(kind.metric, []).append(key)
    for path, several in keys.items():
        if len({key.loader for key in several}) > 1:
            raise ConfigurationError(
                f"the metric self.{path} is logged for several loaders, whose samples it would mix",
                do="keep one metric object a loader, in an nn.ModuleList.",
            )
    if not keys:
        return {}
    metrics = {path: metric_at(module, path) for path in keys}
    computed = sync_and_compute(metrics, comm=comm, name=name)
    for metric in metrics.values():
        metric.reset()
    return {
        found: value
        for path, several in keys.items()
        for key in several
        for found, value in _flat(key, kinds[key], path, computed[path])
    }


def _flat(key: Key, kind: Kind, path: str, value: Any) -> list[tuple[Key, Tensor]]:
    """Give each number of a metric's value its name."""
    if not isinstance(value, Mapping):
        return [(key, as_number(f"self.{path}", value).cpu())]
    return [
        (
            key._replace(name=str(inner) if kind.bare else f"{key.name}/{inner}"),
            as_number(f"{path}.{inner}", part).cpu(),
        )
        for inner, part in value.items()
    ]

"""One rank's part of the values that ranks log, and how it travels to the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest, testify
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.reading import reading
from distmetrics.comm.base import Communicator
from distmetrics.comm.one_call import as_one_call
from distmetrics.comm.sites import call_site
from distmetrics.errors import ConfigurationError, Site
from distmetrics.train.log_options import ReduceFx, Scope

_ADDITIVE = ("mean", "sum")


class Key(NamedTuple):
    """What a value is kept under: the user's name, and its loader where there are several."""

    name: str
    loader: int = -1

    @property
    def label(self) -> str:
        """The name that the user reads."""
        return self.name if self.loader < 0 else f"{self.name}/dataloader_idx_{self.loader}"

    def of(self, moment: str) -> Key:
        """Return the key of the value of each step, or of the epoch, where there are both."""
        return Key(f"{self.name}_{moment}", self.loader)


class Kind(NamedTuple):
    """How a name is logged: what all ranks that log it must agree on.

    Attributes:
        reduce_fx: how values are combined.
        scope: whose values count.
        metric: the attribute of the module that holds the metric object; empty for a value.
        bare: True where a metric's several values go by their own names.
        forked: True where there is a value of each step too: this one is also ``name_epoch``.
    """

    reduce_fx: str = "mean"
    scope: Scope = "all ranks"
    metric: str = ""
    bare: bool = False
    forked: bool = False

    @classmethod
    def read(cls, reduce_fx: Any, scope: Any, metric: Any, bare: Any, forked: Any) -> Kind:
        """Return what a peer has told; raise anything for what is none."""
        if reduce_fx not in get_args(ReduceFx) or scope not in get_args(Scope):
            raise ValueError(f"a {reduce_fx} over {scope}")
        return cls(str(reduce_fx), scope, str(metric), bool(bare), bool(forked))

    def __str__(self) -> str:
        if self.metric:
            return f"the metric self.{self.metric}"
        return f"a {self.reduce_fx} over {self.scope}"


@dataclass
class Accumulator:
    """One rank's part of a value.

    Values of an accelerator are added up there, so that no step waits for a copy; those of the CPU
    as numbers of Python, which cost a tenth.

    Attributes:
        kind: how the name is logged.
        site: the user's line that logged it first.
        total: Σ weight·value, Σ value or an extreme; None where nothing had weight.
        weight: Σ weight.
        steps: the number of steps that it was logged in.
    """

    kind: Kind
    site: Site | None = None
    total: Tensor | float | None = None
    weight: float = 0.0
    steps: int = 0

    def add(self, value: Tensor | float, weight: float) -> None:
        """Count a value; nothing of a tensor is kept."""
        if weight == 0:  # a batch without samples has no mean, and its NaN must not count
            return
        scale = weight if self.kind.reduce_fx == "mean" else 1.0
        if isinstance(value, float):
            self.merge(value * scale, weight)
        elif isinstance(self.total, Tensor) and self.kind.reduce_fx in _ADDITIVE:
            self.weight += weight
            # One operation: a step may log hundreds.
            self.total = self.total.to(value.device).add_(value, alpha=scale)
        else:
            self.merge(value.to(torch.float64, copy=True).mul_(scale), weight)

    def merge(self, part: Tensor | float | None, weight: float) -> None:
        """Count another part, weighted already; NaN wins over any extreme."""
        self.weight += weight
        if part is None:
            return
        if self.total is None:
            self.total = part
        elif self.kind.reduce_fx in _ADDITIVE:
            self.total = self.total + part
        else:
            pick = torch.maximum if self.kind.reduce_fx == "max" else torch.minimum
            total, part = (
                x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64, device="cpu")
                for x in (self.total, part)
            )
            extreme = pick(total.to(part.device), part)
            self.total = extreme.item() if extreme.is_cpu else extreme

    @property
    def value(self) -> Tensor | float:
        """The value; without samples there is no number."""
        if self.total is None:
            return math.nan
        return self.total / self.weight if self.kind.reduce_fx == "mean" else self.total


class Accumulators(dict[Key, Accumulator]):
    """One rank's part of each value."""

    def of(self, key: Key, kind: Kind) -> Accumulator:
        """Return what adds up the values of ``key``, from now on if there is none.

        Raises:
            ConfigurationError: the name was logged in another way before.
        """
        if key not in self:
            self[key] = Accumulator(kind, call_site())
        known = self[key].kind
        if known != kind:
            raise ConfigurationError(
                f"{key.label!r} is logged in two ways: as {known}, and as {kind}",
                do="log it in one way, or under two names.",
            )
        return self[key]

    def settled(self) -> dict[Key, Accumulator]:
        """Return copies whose totals are numbers of Python, to be sent or saved."""
        settled = {}
        for key, each in self.items():
            total = None if each.total is None else float(each.total)
            settled[key] = replace(each, total=total)
        return settled


class RankLog(NamedTuple):
    """What one rank has logged, and how many batches it had of each loader."""

    values: Mapping[Key, Accumulator]
    batches: Mapping[int, int]

    def as_data(self) -> list[Any]:
        """Return this log, settled, as data that :meth:`read` reads."""
        values = []
        for key, each in self.values.items():
            how = [[*each.kind], each.site and [*each.site]]
            values.append([*key, *how, each.total, each.weight, each.steps])
        return [values, dict(self.batches)]

    @classmethod
    def read(cls, data: Any) -> RankLog:
        """Return the log that a peer has sent; raise anything for what is none."""
        sent, batches = data
        values = {}
        for name, loader, kind, site, total, weight, steps in sent:
            known = None if site is None else Site.read(*site)
            part = Accumulator(Kind.read(*kind), known, total, float(weight), int(steps))
            part.total = None if total is None else float(total)
            if not (part.weight > 0 or (part.weight == 0 and total is None)):
                raise ValueError(f"a weight of {weight}")
            values[Key(str(name), int(loader))] = part
        return cls(values, {int(loader): int(count) for loader, count in batches.items()})


def all_logs(
    mine: RankLog, comm: Communicator, name: str, site: Site | None, told: Site | None
) -> list[RankLog]:
    """Return every rank's log, in rank order; over a layout too.

    Args:
        mine: settled.
        comm: who talks.
        name: of the call.
        site: the line that ranks compare.
        told: the line that reports show, where another one has asked for the call.

    Raises:
        MismatchError: what a rank has sent is none.
    """
    logs = []
    for rank, data in enumerate(_sent(mine, name, site, told, comm=comm)):
        with reading("its log", rank):
            logs.append(RankLog.read(data))
    return logs


@as_one_call
def _sent(
    mine: RankLog, name: str, site: Site | None, told: Site | None, *, comm: Communicator
) -> list[Any]:
    numbers = {}
    for key, each in mine.values.items():
        sums = math.nan if each.total is None else each.total, each.weight
        numbers[f"the value of {key.label!r}"] = torch.tensor(
            sums, dtype=torch.float64, device="cpu"
        )
    testify(comm, Manifest("self.log", name), numbers)
    return gather_objects(mine.as_data(), _as_it_is, comm, name, site, told=told)


def _as_it_is(data: Any) -> Any:
    return data

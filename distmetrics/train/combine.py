"""What the records of all ranks amount to: one value for each name, the same on every rank.

Nothing here talks to another rank. Each rank gets the records of all of them, combines them in rank
order in float64, and so gets the same bits, or the same error.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.errors import ConfigurationError, MismatchError, Site, who
from distmetrics.train.log_options import Scope, as_tensor

# With one batch a rank, a condition on the data looks like one on the rank half of the time.
_BATCHES_TO_BE_SURE = 2


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

    def __str__(self) -> str:
        if self.metric:
            return f"the metric self.{self.metric}"
        return f"a {self.reduce_fx} over {self.scope}"


@dataclass
class Accumulator:
    """One rank's part of a value.

    Values of an accelerator are added up there, so that no step waits for a copy; those of the CPU
    as numbers of Python, which are of float64 too and cost a tenth of an operation on a tensor.

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
        total = self.total
        if isinstance(value, float):
            self.merge(value * scale, weight)
        elif isinstance(total, Tensor) and total.device == value.device and self._is_additive:
            self.weight += weight
            total.add_(value, alpha=scale)  # one operation: a step may log hundreds of values
        else:
            self.merge(value.to(torch.float64, copy=True).mul_(scale), weight)

    def merge(self, part: Tensor | float | None, weight: float) -> None:
        """Count another part, weighted already; NaN wins over any extreme."""
        self.weight += weight
        total = self.total
        if isinstance(total, Tensor) and isinstance(part, Tensor):
            total = total.to(part.device)
        if total is None or part is None:
            self.total = part if total is None else total
        elif self._is_additive:
            self.total = total + part
        else:
            extreme = torch.maximum if self.kind.reduce_fx == "max" else torch.minimum
            both = extreme(*(torch.as_tensor(each, dtype=torch.float64) for each in (total, part)))
            self.total = both.item() if both.is_cpu else both

    @property
    def _is_additive(self) -> bool:
        return self.kind.reduce_fx in ("mean", "sum")

    def settled(self) -> Accumulator:
        """Return a copy whose total is a number of Python, to be sent or saved."""
        return replace(self, total=None if self.total is None else float(self.total))

    @property
    def value(self) -> Tensor | float:
        """The value; without samples there is no number."""
        if self.total is None:
            return math.nan
        return self.total / self.weight if self.kind.reduce_fx == "mean" else self.total


class RankLog(NamedTuple):
    """What one rank has logged, and how many batches it had of each loader."""

    values: Mapping[Key, Accumulator]
    batches: Mapping[int, int]


class Logged(NamedTuple):
    """What all ranks' logs amount to.

    Attributes:
        values: by key.
        local: which of them are this rank's own.
        forked: which have a value of each step beside them, and are ``name_epoch`` too.
        kinds: how each name was logged.
        batches: the number of batches of each loader, over all ranks.
    """

    values: dict[Key, Tensor]
    local: set[Key]
    forked: set[Key]
    kinds: dict[Key, Kind]
    batches: Mapping[int, int]


def combine(ranks: Sequence[RankLog], rank: int, *, strict: bool) -> Logged:
    """Return the value of each name that is no metric object's, as ``rank`` sees it.

    Args:
        ranks: what each rank logged.
        rank: this one.
        strict: see :func:`check_names`.

    Raises:
        MismatchError: ranks log a name in different ways, or only some of them do.
    """
    kinds = agreed_kinds(ranks, rank)
    check_names(ranks, kinds, rank, strict=strict)
    counted = {"all ranks": ranks, "this rank": [ranks[rank]], "rank 0": ranks[:1]}
    values = {}
    for key, kind in kinds.items():
        parts = [each.values[key] for each in counted[kind.scope] if key in each.values]
        whole = Accumulator(kind)
        for part in parts:
            whole.merge(part.total, part.weight)
        if parts and not kind.metric:
            values[key] = torch.tensor(whole.value, dtype=torch.float64)
    return Logged(
        values,
        local={key for key in kinds if kinds[key].scope == "this rank" and len(ranks) > 1},
        forked={key for key in kinds if kinds[key].forked},
        kinds=kinds,
        batches=sum((Counter(each.batches) for each in ranks), Counter[int]()),
    )


def agreed_kinds(ranks: Sequence[RankLog], rank: int) -> dict[Key, Kind]:
    """Return how each name was logged, the same on all ranks that log it.

    Raises:
        MismatchError: two ranks log a name in different ways.
    """
    kinds: dict[Key, Kind] = {}
    for values, _ in ranks:
        for key, part in values.items():
            if kinds.setdefault(key, part.kind) == part.kind:
                continue
            raise MismatchError(
                f"ranks log {key.label!r} in different ways",
                per_rank={
                    index: f"as {each.values[key].kind}" if key in each.values else "not at all"
                    for index, each in enumerate(ranks)
                },
                likely="a condition on the rank or on the data around self.log.",
                do="log a name with the same options on every rank.",
                rank=rank,
                peers=range(len(ranks)),
            )
    return kinds


def check_names(
    ranks: Sequence[RankLog], kinds: Mapping[Key, Kind], rank: int, *, strict: bool
) -> None:
    """Refuse, or warn of, a name that some ranks log in every batch and others in none.

    Its value is of the former's samples alone. That is right where the condition is on the data, as
    it would be in one process, and wrong where it is on the rank.

    Args:
        ranks: what each rank logged.
        kinds: how each name is logged.
        rank: this one; rank 0 warns.
        strict: False only warns. One batch on a rank only warns too: that may well be the data.

    Raises:
        MismatchError: there is such a name.
    """
    one_sided = list(_one_sided(ranks, kinds))
    certain = [each for each in one_sided if each.is_certain] if strict else []
    if certain:
        raise _one_sided_error(certain, ranks, rank)
    for each in one_sided if rank == 0 else ():
        warnings.warn(
            f"{each.key.label!r} was logged in every batch of {who(each.ranks('each'))} and in no "
            f"batch of {who(each.ranks('none'))}: samples of the latter are not in its value. If "
            "self.log is under a condition on the rank, log on every rank, or with "
            "rank_zero_only=True what is rank 0's alone.",
            stacklevel=2,
        )


class _OneSided(NamedTuple):
    """A name that some ranks log in every batch, and others never.

    Attributes:
        shares: in how many of its batches each rank logs it, "each", "some" or "none".
        batches: how many batches of the name's loader each rank had that had any.
    """

    key: Key
    shares: dict[int, str]
    batches: dict[int, int]

    def ranks(self, share: str) -> list[int]:
        """Return the ranks with this share."""
        return [rank for rank, other in self.shares.items() if other == share]

    @property
    def is_certain(self) -> bool:
        """True if each of these ranks had batches enough to say so."""
        ranks = (*self.ranks("each"), *self.ranks("none"))
        return min(self.batches[rank] for rank in ranks) >= _BATCHES_TO_BE_SURE


def _one_sided(ranks: Sequence[RankLog], kinds: Mapping[Key, Kind]) -> Iterator[_OneSided]:
    for key, kind in kinds.items():
        if kind.metric or kind.scope != "all ranks":
            continue  # a metric object's value is over all ranks, whoever logs it
        batches = {rank: each.batches.get(key.loader, 0) for rank, each in enumerate(ranks)}
        shares = {
            rank: _share(ranks[rank].values.get(key), count)
            for rank, count in batches.items()
            if count
        }
        if {"each", "none"} <= set(shares.values()):
            yield _OneSided(key, shares, batches)


def _share(part: Accumulator | None, batches: int) -> str:
    if part is None:
        return "none"
    return "each" if part.steps >= batches else "some"


def _one_sided_error(
    one_sided: Sequence[_OneSided], ranks: Sequence[RankLog], rank: int
) -> MismatchError:
    first, *others = one_sided
    per_rank = dict.fromkeys(range(len(ranks)), "had no batch")
    for index, share in first.shares.items():
        part = ranks[index].values.get(first.key)
        where = f", first at {part.site}" if part is not None and part.site else ""
        per_rank[index] = f"in {share} of its {first.batches[index]} batches{where}"
    named = ", ".join(f"{each.key.label!r} by {who(each.ranks('each'))}" for each in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return MismatchError(
        f"only some ranks log {first.key.label!r}",
        per_rank=per_rank,
        notes=[f"Likewise: {named}{more}."] if others else [],
        likely="a condition on the rank around self.log, or the rank in the name: the value is "
        "of a part of the data.",
        do="log the name on every rank; with rank_zero_only=True what is rank 0's alone. If the "
        "condition is on the data, Trainer(require_same_names=False) only warns.",
        rank=rank,
        peers=range(len(ranks)),
    )


def metric_keys(kinds: Mapping[Key, Kind]) -> dict[str, list[Key]]:
    """Return the names that each logged metric object has, by the attribute that holds it.

    Raises:
        ConfigurationError: a metric object has been logged for two loaders.
    """
    keys: dict[str, list[Key]] = {}
    for key, kind in kinds.items():
        if kind.metric:
            keys.setdefault(kind.metric, []).append(key)
    for path, names in keys.items():
        if len({key.loader for key in names}) > 1:
            raise ConfigurationError(
                f"the metric self.{path} is logged for several loaders, whose samples it would mix",
                do="keep one metric object a loader, in an nn.ModuleList.",
            )
    return keys


def metric_numbers(key: Key, kind: Kind, value: Any) -> dict[Key, Tensor]:
    """Return each number of a metric object's value, which may be a mapping, under its key."""
    numbers = {key: (f"self.{kind.metric}", value)}
    if isinstance(value, Mapping):
        numbers = {
            key._replace(name=str(inner) if kind.bare else f"{key.name}/{inner}"): (
                f"{kind.metric}.{inner}",
                part,
            )
            for inner, part in value.items()
        }
    return {each: as_tensor(what, number) for each, (what, number) in numbers.items()}

"""Attributes that an update sets and that are not states.

Some metrics set attributes in update() that are not states: the dtype of the last input, a shape
that they have seen. A rank without data lacks them. So where its attributes are not those of the
ranks with data, all ranks tell each other theirs. If all ranks with data agree on an attribute, the
rank without data takes it over for as long as the state of all ranks is in.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from distmetrics.collectives.header import Header
from distmetrics.collectives.objects import gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import Ranks, StateError
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.plan import SyncPlan
from distmetrics.metrics.schema import Attribute, described

_SHOWN = 60  # characters of a value
_LACKING = ("", "None")  # texts


def borrow(
    plan: SyncPlan, metrics: MetricSet, header: Header, comm: Communicator
) -> dict[int, dict[str, Any]]:
    """Return the attributes that metrics without an update take over, by the metric's place.

    Raises:
        StateError: ranks with updates differ in an attribute, or it cannot be sent; on every rank.
    """
    targets = [metrics.targets[place] for place in plan.borrowing]
    mine = []
    for target in targets:
        attributes = target.adapter.attributes(target.metric)
        mine.append({name: tuple(described(value)) for name, value in attributes.items()})
    read = functools.partial(attributes_of, count=len(mine))
    about = header.name, header.site
    per_rank = gather_objects(mine, read, *about, comm=comm, op="attributes of metrics")
    result = {}
    for target, place, *column in zip(targets, plan.borrowing, *per_rank, strict=True):
        updated = plan.updated[place]
        values = agreed(target.path, column, updated, header, comm.rank)
        if comm.rank not in updated:
            result[place] = values
    return result


def attributes_of(data: Any, count: int) -> list[dict[str, Attribute]]:
    """Return what a peer has told of so many metrics; raises if it is malformed."""
    metrics = []
    for attributes in data:
        told: dict[str, Attribute] = {}
        for name, (text, travels, is_partial, value) in attributes.items():
            told[str(name)] = Attribute(str(text), bool(travels), bool(is_partial), value)
        metrics.append(told)
    if len(metrics) != count:
        raise ValueError(f"attributes of {len(metrics)} metrics, not of {count}")
    return metrics


def agreed(
    path: str,
    per_rank: Sequence[Mapping[str, Attribute]],
    updated: Sequence[int],
    header: Header,
    rank: int,
) -> dict[str, Any]:
    """Return what ranks without an update take over of one metric, by name.

    Args:
        path: of the metric.
        per_rank: every rank's attributes.
        updated: the ranks with updates.
        header: of the sync, for errors.
        rank: this one, for errors.

    Raises:
        StateError: ranks with updates differ in an attribute, or it cannot be sent; on every rank.
    """
    result: dict[str, Any] = {}
    for name in sorted({name for r in updated for name in per_rank[r]}):
        column = [attributes.get(name, Attribute()) for attributes in per_rank]
        if len({each.text for each in column}) == 1:
            continue
        have = [column[r] for r in updated]
        travels = all(each.travels for each in have)
        is_needed = any(e.text in _LACKING for r, e in enumerate(column) if r not in updated)
        if travels and len({each.text for each in have}) == 1:
            result[name] = have[-1].value
        elif travels or is_needed or any(each.is_partial for each in have):
            texts = {r: column[r].text[:_SHOWN] for r in updated}
            raise _refused(f"{path}.{name}".lstrip("."), texts, travels, header, rank, len(column))
    return result


def _refused(
    path: str, texts: Mapping[int, str], travels: bool, header: Header, rank: int, world: int
) -> StateError:
    name = path.rpartition(".")[2]
    lacking = Ranks(sorted(set(range(world)) - texts.keys()))
    why: list[str | Ranks] = ["cannot be sent to ", lacking, f": it is {max(texts.values())}"]
    if travels:
        why = ["its values on ", Ranks(texts), " cannot be combined: they differ, and ", lacking]
        why.append(" needs one" if len(lacking) == 1 else " need one")
    return StateError(
        [f"{header.call().op}: the attribute {path} is no state, and ", *why],
        per_rank={r: f"{name} = {texts[r]}" if r in texts else "no update" for r in range(world)},
        notes=["Every metric keeps its local state."],
        likely=f"update() sets {name} and compute() reads it, so ranks without data lack it.",
        do=f'in __init__ self.add_state("{name}", default=…, dist_reduce_fx=…); or see to it that '
        "every rank has data.",
        rank=rank,
        peers=texts,
        site=header.site,
    )

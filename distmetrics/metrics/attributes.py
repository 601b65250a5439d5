"""Attributes that an update sets and that are not states, and what ranks compare of them.

Some metrics set attributes in update() that are not states: the dtype of the last input, a shape
that they have seen. A rank without data lacks them. So where its attributes are not those of the
ranks with data, all ranks tell each other theirs. If all ranks with data agree on an attribute, the
rank without data takes it over for as long as the state of all ranks is in.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distmetrics.collectives.header import Header
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import Ranks, StateError
from distmetrics.metrics.comparison import Text, text_of
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.plan import SyncPlan

_SHOWN = 60  # characters of a value
_LACKING = ("", "None")  # texts


class Attribute(NamedTuple):
    """One attribute, described so that ranks can compare it.

    Attributes:
        about: what its text is, and whether it travels.
        value: the value, or None where it cannot travel.
    """

    about: Text
    value: Any


_NO_ATTRIBUTE = Attribute(Text(""), None)


def described(attributes: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Describe attributes as data that :func:`attributes_of` reads."""
    result = {}
    for name, value in attributes.items():
        text = text_of(value)
        result[name] = (*text, value if text.travels else None)
    return result


def attributes_of(data: Any, count: int) -> list[dict[str, Attribute]]:
    """Return what a peer has told of the attributes of so many metrics, or raise anything."""
    metrics = []
    for described_attributes in data:
        attributes = {}
        for name, (text, travels, is_partial, value) in described_attributes.items():
            about = Text(str(text), bool(travels), bool(is_partial))
            attributes[str(name)] = Attribute(about, value)
        metrics.append(attributes)
    if len(metrics) != count:
        raise ValueError(f"attributes of {len(metrics)} metrics, not of {count}")
    return metrics


def borrow(
    plan: SyncPlan, metrics: MetricSet, header: Header, comm: Communicator
) -> dict[int, dict[str, Any]]:
    """Return the attributes that metrics without an update take over, by the metric's place.

    Every rank calls this, since it takes a round where the plan says so.

    Raises:
        StateError: ranks with updates differ in an attribute, or it cannot be sent; on every rank.
    """
    if not plan.borrowing:
        return {}
    targets = [metrics.targets[place] for place in plan.borrowing]
    mine = [described(target.adapter.attributes(target.metric)) for target in targets]
    read = functools.partial(attributes_of, count=len(mine))
    about = header.name, header.site
    per_rank = gather_objects(mine, read, *about, comm=comm, op="attributes of metrics")
    result = {}
    columns = zip(*per_rank, strict=True)
    for place, target, column in zip(plan.borrowing, targets, columns, strict=True):
        updated = plan.updated[place]
        values = borrowed(target.path, column, updated, header, comm.rank)
        if comm.rank not in updated:
            result[place] = values
    return result


def borrowed(
    path: str,
    per_rank: Sequence[Mapping[str, Attribute]],
    updated: Sequence[int],
    header: Header,
    rank: int,
) -> dict[str, Any]:
    """Return what ranks without an update borrow of one metric, by name.

    Args:
        path: of the metric.
        per_rank: every rank's attributes.
        updated: the ranks with updates.
        header: of the sync, for errors.
        rank: this one, for errors.

    Raises:
        StateError: ranks with updates differ in an attribute, or it cannot be sent; on every rank.
    """
    others = [r for r in range(len(per_rank)) if r not in updated]
    result: dict[str, Any] = {}
    for name in sorted({name for r in updated for name in per_rank[r]}):
        column = [attributes.get(name, _NO_ATTRIBUTE) for attributes in per_rank]
        about = [attribute.about for attribute in column]
        if len({each.text for each in about}) == 1:
            continue
        travels = all(about[r].travels for r in updated)
        is_needed = any(about[r].text in _LACKING for r in others)
        if travels and len({about[r].text for r in updated}) == 1:
            result[name] = column[updated[-1]].value
        elif travels or is_needed or any(about[r].is_partial for r in updated):
            texts = {r: about[r].text[:_SHOWN] for r in updated}
            raise _refused(f"{path}.{name}".lstrip("."), texts, travels, header, rank, len(column))
    return result


def _refused(
    path: str, texts: Mapping[int, str], travels: bool, header: Header, rank: int, world: int
) -> StateError:
    """Build the error for an attribute that ranks without an update cannot borrow."""
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

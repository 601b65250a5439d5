"""Attributes that an update sets and that are not states: the dtype of the last input, say.

A rank without data lacks them. So where its attributes are not those of the ranks with data, all
ranks tell each other theirs. If all ranks with data agree on an attribute, the rank without data
takes it over for as long as the state of all ranks is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.header import Header
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.wire import DEEPEST
from distmetrics.comm.communicator import Communicator, brief
from distmetrics.errors import StateError
from distmetrics.message import reading
from distmetrics.metrics.adapters.base import Target
from distmetrics.metrics.plan import SyncPlan

PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
_SAMPLE = 1000  # elements of a larger tensor that are compared
_SHOWN = 60  # characters of a value


class Attribute(NamedTuple):
    """What ranks compare of an attribute."""

    text: str = ""  # equal where values are; "" where there is no such attribute
    travels: bool = True  # plain values, small tensors, and containers of such
    value: Any = None


def described(value: Any, depth: int = 0) -> Attribute:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    kind = type(value)
    if kind in PLAIN:
        return Attribute(repr(value), value=value)
    if kind in (list, tuple, dict, set, frozenset):
        if depth > DEEPEST or len(value) > _LONGEST:
            text = f"a {kind.__name__} of {len(value)}, too large to be sent"
            return Attribute(text, travels=False)
        texts = []
        for item in value.items() if isinstance(value, dict) else value:
            part = described(item, depth + 1)
            if not part.travels:
                return part
            texts.append(part.text)
        ordered = texts if isinstance(value, list | tuple) else sorted(texts)
        return Attribute(f"{kind.__name__}({', '.join(ordered)})", value=value)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
    elif kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        flat = value.reshape(-1)
    else:
        return Attribute("an object that is no data", travels=False)
    is_small = value.nbytes <= _LARGEST
    sample = flat[:: 1 if is_small else 2 + len(flat) // _SAMPLE]
    data = to_bytes(sample) if kind is Tensor else sample.tobytes()
    text = f"{brief(value.dtype, value.shape)} {hashlib.blake2b(data, digest_size=8).hexdigest()}"
    if not is_small:
        return Attribute(f"{text}, too large to be sent", travels=False)
    return Attribute(text, value=value)


def borrow(
    plan: SyncPlan, targets: Sequence[Target], header: Header, comm: Communicator
) -> dict[int, dict[str, Any]]:
    """Return the attributes that metrics without an update take over, by the metric's place."""
    mine = []
    for place in plan.borrowing:
        attributes = targets[place].adapter.attributes(targets[place].metric)
        mine.append({name: tuple(described(value)) for name, value in attributes.items()})
    about = header.name, header.site
    per_rank = gather_objects(mine, list, *about, comm=comm, op="attributes of metrics")
    result = {}
    with reading("attributes"):  # of as many metrics
        for place, *column in zip(plan.borrowing, *per_rank, strict=True):
            updated = plan.updated[place]
            values = agreed(targets[place].path, column, updated, header, comm.rank)
            if comm.rank not in updated:
                result[place] = values
    return result


def agreed(
    path: str,
    per_rank: Sequence[Mapping[str, Sequence[Any]]],
    updated: Sequence[int],
    header: Header,
    rank: int,
) -> dict[str, Any]:
    """Return what ranks without an update take over of one metric, by name; or raise StateError."""
    result: dict[str, Any] = {}
    for name in sorted({name for r in updated for name in per_rank[r]}):
        column = [Attribute(*attributes.get(name, ())) for attributes in per_rank]
        if len({each.text for each in column}) == 1:
            continue
        have = [column[r] for r in updated]
        can_be_sent = all(each.travels for each in have)
        if can_be_sent and len({each.text for each in have}) == 1:
            result[name] = have[0].value
            continue
        why, do = "cannot be sent", f"set self.{name} in __init__, alike on every rank"
        if can_be_sent:
            why = "differs between ranks with data"
            do = f'in __init__ self.add_state("{name}", default=…, dist_reduce_fx=…)'
        texts = {r: f"{name} = {column[r].text[:_SHOWN]}" for r in updated}
        where = f"{path}.{name}".lstrip(".")
        raise StateError(
            f"{header.call().op}: the attribute {where} is no state, {why}, and is missing on "
            "ranks without data",
            per_rank={r: texts.get(r, "no update") for r in range(len(column))},
            notes=["Every metric keeps its local state."],
            likely=f"update() sets {name} and compute() reads it, so ranks without data lack it.",
            do=f"{do}; or see to it that every rank has data.",
            rank=rank,
            peers=updated,
            site=header.site,
        )
    return result

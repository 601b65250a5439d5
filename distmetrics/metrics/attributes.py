"""Attributes that an update sets and that are not states.

Some metrics set attributes in update() that are not states: the dtype of the last input, a shape
that they have seen. A rank without data lacks them. So where its attributes are not those of the
ranks with data, all ranks tell each other theirs. If all ranks with data agree on an attribute, the
rank without data takes it over for as long as the state of all ranks is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.header import Header
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.wire import DEEPEST
from distmetrics.comm.communicator import Communicator, brief
from distmetrics.errors import Ranks, StateError
from distmetrics.metrics.adapters.base import Target
from distmetrics.metrics.plan import SyncPlan

PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
_SAMPLE = 1000  # elements of a larger tensor that are compared
_SHOWN = 60  # characters of a value
_OBJECT = "an object that is no data"


class Attribute(NamedTuple):
    """What ranks compare of an attribute."""

    text: str = ""  # equal where values are; "" where there is no such attribute
    # Plain values, small tensors, and lists, tuples, sets and dicts of such travel.
    travels: bool = True
    value: Any = None  # what travels


def described(value: Any, depth: int = 0) -> Attribute:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    kind = type(value)
    name = kind.__name__
    if kind in PLAIN:
        return Attribute(repr(value), value=value)
    if kind in (list, tuple, dict, set, frozenset):
        if depth > DEEPEST or len(value) > _LONGEST:
            return Attribute(f"a {name} of {len(value)}, too large to be sent", travels=False)
        texts = []
        for item in value.items() if isinstance(value, dict) else value:
            part = described(item, depth + 1)
            if not part.travels:
                return part
            texts.append(part.text)
        ordered = texts if isinstance(value, list | tuple) else sorted(texts)
        return Attribute(f"{name}({', '.join(ordered)})", value=value)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        name = brief(value.dtype, value.shape)
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        sample = to_bytes(flat[:: _step(value.nbytes, len(flat))])
    elif kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        name = f"{value.dtype}{list(value.shape)}"
        sample = value.reshape(-1)[:: _step(value.nbytes, value.size)].tobytes()
    else:
        return Attribute(_OBJECT, travels=False)
    text = f"{name} {hashlib.blake2b(sample, digest_size=8).hexdigest()}"
    if value.nbytes > _LARGEST:
        return Attribute(f"{text}, too large to be sent", travels=False)
    return Attribute(text, value=value)


def _step(nbytes: int, count: int) -> int:
    """Return the distance of the elements that are compared."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def borrow(
    plan: SyncPlan, every: Sequence[Target], header: Header, comm: Communicator
) -> dict[int, dict[str, Any]]:
    """Return the attributes that metrics without an update take over, by the metric's place."""
    targets = [every[place] for place in plan.borrowing]
    mine = []
    for target in targets:
        attributes = target.adapter.attributes(target.metric)
        mine.append({name: tuple(described(value)) for name, value in attributes.items()})
    read = partial(_read, count=len(mine))
    about = header.name, header.site
    per_rank = gather_objects(mine, read, *about, comm=comm, op="attributes of metrics")
    result = {}
    for target, place, *column in zip(targets, plan.borrowing, *per_rank, strict=True):
        updated = plan.updated[place]
        values = agreed(target.path, column, updated, header, comm.rank)
        if comm.rank not in updated:
            result[place] = values
    return result


def _read(data: Any, count: int) -> list[dict[str, Attribute]]:
    """Return what a peer has told of so many metrics; raises if it is malformed."""
    if len(data) != count:
        raise ValueError(f"attributes of {len(data)} metrics, not of {count}")
    return [
        {
            str(name): Attribute(str(text), bool(travels), value)
            for name, (text, travels, value) in attributes.items()
        }
        for attributes in data
    ]


def agreed(
    path: str,
    per_rank: Sequence[Mapping[str, Attribute]],
    updated: Sequence[int],
    header: Header,
    rank: int,
) -> dict[str, Any]:
    """Return what ranks without an update take over of one metric, by name.

    Raises:
        StateError: ranks with updates differ in an attribute, or it cannot be sent; on every rank.
    """
    result: dict[str, Any] = {}
    for name in sorted({name for r in updated for name in per_rank[r]}):
        column = [attributes.get(name, Attribute()) for attributes in per_rank]
        if len({each.text for each in column}) == 1:
            continue
        have = [column[r] for r in updated]
        can_be_sent = all(each.travels for each in have)
        if not can_be_sent or len({each.text for each in have}) > 1:
            texts = {r: column[r].text[:_SHOWN] for r in updated}
            why = "differs between ranks with data" if can_be_sent else "cannot be sent"
            raise _refused(f"{path}.{name}".lstrip("."), why, texts, header, rank, len(column))
        result[name] = have[-1].value
    return result


def _refused(
    path: str, why: str, texts: Mapping[int, str], header: Header, rank: int, world: int
) -> StateError:
    name = path.rpartition(".")[2]
    lacking = Ranks(sorted(set(range(world)) - texts.keys()))
    return StateError(
        [
            f"{header.call().op}: the attribute {path} is no state, {why}, and is missing on ",
            lacking,
        ],
        per_rank={r: f"{name} = {texts[r]}" if r in texts else "no update" for r in range(world)},
        notes=["Every metric keeps its local state."],
        likely=f"update() sets {name} and compute() reads it, so ranks without data lack it.",
        do=f'in __init__ self.add_state("{name}", default=…, dist_reduce_fx=…); or see to it that '
        "every rank has data.",
        rank=rank,
        peers=texts,
        site=header.site,
    )

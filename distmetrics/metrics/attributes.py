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
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

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
_LACKING = ("", "None")  # texts


class Attribute(NamedTuple):
    """What ranks compare of an attribute."""

    text: str = ""  # equal where values are; "" where there is no such attribute
    # Plain values, small tensors, and lists, tuples, sets and dicts of such travel.
    travels: Literal["yes", "no", "too large"] = "yes"
    value: Any = None  # what travels


def described(value: Any, depth: int = 0) -> Attribute:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    kind = type(value)
    name = kind.__name__
    if kind in PLAIN:
        return Attribute(repr(value), value=value)
    if kind in (list, tuple, dict, set, frozenset):
        if depth > DEEPEST or len(value) > _LONGEST:
            return Attribute(f"a {name} of {len(value)}, too large to be sent", "too large")
        texts = []
        for item in value.items() if isinstance(value, dict) else value:
            part = described(item, depth + 1)
            if part.travels != "yes":
                return Attribute(f"a {name}", part.travels)
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
        name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
        return Attribute(f"a {name}", "no")
    text = f"{name} {hashlib.blake2b(sample, digest_size=8).hexdigest()}"
    if value.nbytes > _LARGEST:
        return Attribute(f"{text}, too large to be sent", "too large")
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
        {str(name): _attribute(*about) for name, about in attributes.items()} for attributes in data
    ]


def _attribute(text: str, travels: str, value: Any) -> Attribute:
    if travels not in ("yes", "no", "too large"):
        raise ValueError(f"{travels!r} of an attribute")
    return Attribute(str(text), travels, value)  # type: ignore[arg-type]


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
        ways = {each.travels for each in have}
        is_needed = any(e.text in _LACKING for r, e in enumerate(column) if r not in updated)
        if ways == {"yes"} and len({each.text for each in have}) == 1:
            result[name] = have[-1].value
        elif ways != {"no"} or is_needed:
            texts = {r: column[r].text[:_SHOWN] for r in updated}
            why = "cannot be sent" if ways - {"yes"} else "differs between ranks with data"
            raise _refused(f"{path}.{name}".lstrip("."), why, texts, header, rank, len(column))
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

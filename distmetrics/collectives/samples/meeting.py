"""The first round: every rank tells its ids and what its samples are made of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from distmetrics.collectives.header import Header, agree_on_tree
from distmetrics.collectives.message import Message, Size, decode, encode, reading
from distmetrics.collectives.samples.ids import Ids, from_part, to_part
from distmetrics.collectives.samples.rounds import Sending
from distmetrics.collectives.samples.schema import Schema, merge, read_schema, structure
from distmetrics.comm.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's samples.

    Attributes:
        ids: theirs.
        tree: what belongs to them.
        schema: of the tree.
        nbytes: of all samples, about.
    """

    ids: Ids
    tree: Any
    schema: Schema
    nbytes: int


class ShardSpec(Message, frozen=True):
    """What a rank tells of its samples: how many, their bytes, the kind of ids, the columns."""

    samples: Size
    nbytes: Size
    is_text: bool
    schema: Any


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks know after the first round: the ids of each, the schema of all, the bytes."""

    ids: list[Ids]
    schema: Schema
    nbytes: int


def meet(
    comm: Communicator,
    header: Header,
    shard: Shard | None,
) -> Meeting:
    """Exchange ids and schemas; a rank whose header has a problem has no shard.

    Raises:
        MismatchError: the samples of two ranks are not of the same kind.
        InputError: a rank cannot make the call at all.
    """
    parts: list[Tensor] = []
    if shard is not None:
        count = len(shard.ids)
        parts = [to_part(shard.ids)]
        is_text = isinstance(shard.ids, list)
        kind = "strings" if is_text else "integers"
        text = f"ids: {kind}, samples: {structure(shard.schema)}"
        spec = ShardSpec(count, shard.nbytes, is_text, shard.schema)
        header = header.but(tree=text, body=encode(spec))
    sending = Sending.of(comm, header, parts)
    headers = sending.met.headers()
    agree_on_tree(_filled(headers), comm.rank)
    told, ids = [], []
    for rank, (theirs, sent) in enumerate(zip(headers, sending.receive(headers), strict=True)):
        about = _spec(theirs, rank)
        told.append(about.but(schema=read_schema(about.schema)))
        with reading("its ids", rank):
            (part,) = sent
            ids.append(from_part(part, about.samples, about.is_text))
    with reading("its columns"):
        schemas = [each.schema for each in told if each.samples] or [told[0].schema]
        schema = functools.reduce(merge, schemas)
    return Meeting(ids, schema, sum(each.nbytes for each in told))


def _filled(headers: Sequence[Header]) -> list[Header]:
    """Give ranks without samples the tree of those that have some."""
    if len({header.op for header in headers}) > 1 or any(each.problem for each in headers):
        return [*headers]
    counts = [_spec(each, rank).samples for rank, each in enumerate(headers)]
    trees = [each.tree for each, count in zip(headers, counts, strict=True) if count]
    first = trees[0] if trees else headers[0].tree
    return [
        each if count else each.but(tree=first) for each, count in zip(headers, counts, strict=True)
    ]


def _spec(header: Header, rank: int) -> ShardSpec:
    return decode(ShardSpec, header.body, "its samples", rank)

"""The first round: every rank tells its ids and what its samples are made of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from distmetrics.collectives.manifest import Manifest, agree_on_tree
from distmetrics.collectives.reading import LARGEST_DATA, reading
from distmetrics.collectives.samples.ids import Ids, from_part, to_part
from distmetrics.collectives.samples.rounds import decode_all, exchange_parts
from distmetrics.collectives.samples.schema import Schema, merge, read_schema, structure
from distmetrics.comm.base import Communicator


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


class _Told(NamedTuple):
    """What a rank tells of its samples: how many, their bytes, the kind of ids, the columns."""

    samples: int
    nbytes: int
    is_text: bool
    schema: Schema

    @classmethod
    def read(
        cls,
        count: Any,
        nbytes: Any,
        is_text: Any,
        schema: Any,
    ) -> _Told:
        """Return what a peer has told; raise anything for what is none."""
        if not 0 <= int(count) <= LARGEST_DATA or not 0 <= int(nbytes) <= LARGEST_DATA:
            raise ValueError(f"{count} samples of {nbytes} bytes")
        return cls(int(count), int(nbytes), bool(is_text), read_schema(schema))


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks know after the first round: the ids of each, the schema of all, the bytes."""

    ids: list[Ids]
    schema: Schema
    nbytes: int


def meet(
    comm: Communicator,
    manifest: Manifest,
    shard: Shard | None,
) -> Meeting:
    """Exchange ids and schemas; a rank whose manifest has a problem has no shard.

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
        details = (count, shard.nbytes, is_text, shard.schema)
        manifest = replace(manifest, tree=text, details=details)

    def check(blobs: Sequence[bytes]) -> list[Manifest]:
        manifests = decode_all(blobs)
        agree_on_tree(_filled(manifests), comm.rank)
        return manifests

    manifests, received = exchange_parts(comm, manifest, parts, check)
    told = []
    ids = []
    for rank, (theirs, sent) in enumerate(zip(manifests, received, strict=True)):
        with reading("its ids", rank):
            about = _Told.read(*theirs.details)
            told.append(about)
            (part,) = sent
            ids.append(from_part(part, about.samples, about.is_text))
    with reading("its columns"):
        schemas = [each.schema for each in told if each.samples] or [told[0].schema]
        schema = functools.reduce(merge, schemas)
    return Meeting(ids, schema, sum(each.nbytes for each in told))


def _filled(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Give ranks without samples the tree of those that have some."""
    trees = [each.tree for each in manifests if _count(each)] or [manifests[0].tree]
    filled = []
    for each in manifests:
        is_empty = each.problem is None and _count(each) == 0
        filled.append(replace(each, tree=trees[0]) if is_empty else each)
    return filled


def _count(manifest: Manifest) -> int:
    """Return how many samples a rank has, or 0 where it means another call."""
    details = manifest.details
    is_told = isinstance(details, list) and len(details) == 4 and isinstance(details[0], int)
    return details[0] if is_told else 0

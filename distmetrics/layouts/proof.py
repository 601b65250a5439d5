"""The proof that ranks which are said to hold the same samples would send the same bytes.

Every rank's digest, times a number of its own, is summed over all ranks. The numbers of ranks that
must be alike add up to zero, so the sum is zero if all of them are alike, and if not it is another
number (but for a chance of one in 2 to the 64 and more). So one reduction of 32 bytes tells every
rank of the mesh; only where it fails do digests travel, to say what differs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import to_bytes
from distmetrics.errors import LayoutError, Ranks
from distmetrics.layouts.mesh import SAME, Mesh

_WORDS = struct.Struct("<4Q")
_WRAP = 1 << 64
CALL, ERROR = "the call", "an error"


class Part(NamedTuple):
    """What a rank would send of one state or leaf: its name and its digest."""

    name: str
    digest: str


def parts_of(manifest: Manifest, tensors: Mapping[str, Tensor]) -> list[Part]:
    """Return what would be sent: the manifest, but for the line that makes the call, and data."""
    parts = [Part(CALL, _digest(replace(manifest, site=None, reported_site=None).encode()))]
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        parts.append(Part(name, _digest(to_bytes(plain.view(-1).view(torch.uint8)))))
    return parts


def _digest(data: bytes) -> str:
    # Ranks are compared by it, not guarded from each other; where the processor has no instructions
    # for it, it is still no slower than others.
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:32]


def share(mesh: Mesh, rank: int, text: str) -> Tensor:
    """Return what a rank adds to the sum that must be zero.

    Args:
        mesh: with the roles.
        rank: of the mesh.
        text: what must be the same.

    >>> mesh = Mesh.of({"tp": 2}, {"tp": "same"})
    >>> share(mesh, 0, "equal") + share(mesh, 1, "equal")
    tensor([0, 0, 0, 0])
    """
    alike = mesh.along(rank, mesh.axes(SAME))
    factor = _factor(rank)
    if rank == alike[-1]:
        factor = -sum(map(_factor, alike[:-1])) % _WRAP
    digest = hashlib.blake2b(text.encode(), digest_size=_WORDS.size).digest()
    words = [word * factor % _WRAP for word in _WORDS.unpack(digest)]
    signed = struct.unpack("<4q", _WORDS.pack(*words))
    return torch.tensor(signed, dtype=torch.int64)


def _factor(rank: int) -> int:
    """Return a number that looks random; odd, so that no difference is lost by multiplying."""
    digest = hashlib.blake2b(str(rank).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


class Difference(NamedTuple):
    """Where a claim fails.

    Attributes:
        axis: that was said to hold the same.
        name: of the first state that differs.
        ranks: that should be alike, with their digests.
    """

    axis: str
    name: str
    ranks: dict[int, str]


def differences(mesh: Mesh, parts: Mapping[int, Sequence[Part]]) -> list[Difference]:
    """Return, for each axis that is said to hold the same and does not, the first difference.

    Args:
        mesh: with the roles.
        parts: what each rank that has values would send.
    """
    found = []
    for axis in mesh.axes(SAME):
        for rank in parts:
            line = mesh.along(rank, [axis])
            if rank == line[0] and (different := _first(axis, {r: parts[r] for r in line})):
                found.append(different)
                break
    return found


def _first(axis: str, parts: Mapping[int, Sequence[Part]]) -> Difference | None:
    """Return the first part in which ranks differ."""
    by_name = {rank: dict(each) for rank, each in parts.items()}
    names = dict.fromkeys(name for each in by_name.values() for name in each)
    for name in sorted(names, key=lambda name: (name != ERROR, name == CALL)):
        digests = {rank: each.get(name, "nothing") for rank, each in by_name.items()}
        if len(set(digests.values())) > 1:
            return Difference(axis, name, digests)
    return None


def part_of(error: Exception | None) -> list[Part]:
    """Return an error of this rank as a part, for it to be compared."""
    if error is None:
        return []
    text = getattr(error, "compared", "") or str(error)
    return [Part(ERROR, f"{type(error).__name__}: {text}")]


def read_parts(told: Any) -> list[Part]:
    """Return what a peer would send; raise anything for what is none."""
    return [Part(str(name), str(digest)) for name, digest in told]


def refusal(mesh: Mesh, rank: int, parts: Mapping[int, Sequence[Part]]) -> LayoutError:
    """Return the error for ranks that are said to hold the same samples and do not."""
    first, *others = differences(mesh, parts)
    axes = " and ".join([first.axis, *(each.axis for each in others)])
    what: list[str | Ranks] = [f"{first.name} differs between ", Ranks(first.ranks)]
    if "nothing" in first.ranks.values():
        what = ["only some of ", Ranks(first.ranks), f" have {first.name}"]
    return LayoutError(
        [f'along the axis {axes}, said to hold the "same" samples, ', *what],
        per_rank={place: f"{first.name} {digest[:200]}" for place, digest in first.ranks.items()},
        notes=["Every rank keeps what it had."],
        likely=f"the ranks along {first.axis} hold other samples, or only one of them has values.",
        do=f'say {first.axis}="shard", or which coordinate has the values; where the samples are '
        'the same and only rounding differs, same="close".',
        rank=rank,
        peers=first.ranks,
    )

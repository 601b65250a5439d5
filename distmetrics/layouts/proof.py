"""Whether ranks that are said to hold the same samples would send the same. Pure.

Each rank notes digests of what it would send. Ranks along an axis that is "same" add shares that
sum to zero if they have noted the same, so one small reduction over all ranks proves it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.errors import LayoutError, Ranks
from distmetrics.layouts.mesh import SAME, Mesh
from distmetrics.message import Message, encode
from distmetrics.tree import flatten

# Sums of bfloat16 in another order differ by about one part in a thousand.
RELATIVE, ABSOLUTE = 1e-3, 1e-6
_WORDS = struct.Struct("<4Q")
_WRAP = 1 << 64
_CALL, _ERROR = "the call", "an error"


class Digest(Message, frozen=True):
    """What a rank would send of one state or leaf: its name and a hash, or the value in short."""

    name: str
    text: str


class Proof(Message, frozen=True):
    """What a rank would send in a call."""

    digests: tuple[Digest, ...]


def digests_of(call: bytes, tensors: Mapping[str, Tensor]) -> list[Digest]:
    """Return digests of what would be sent: the call, without the line that makes it, and data."""
    digests = [Digest(_CALL, _hash(call))]
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        digests.append(Digest(name, _hash(to_bytes(plain.view(-1).view(torch.uint8)))))
    return digests


def _hash(data: bytes) -> str:
    # Ranks are compared by it, not guarded from each other; where the processor has no instructions
    # for it, it is still no slower than others.
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:32]


def digest_of_error(error: Exception) -> Digest:
    """Return an error of this rank, to be compared with that of others."""
    text = getattr(error, "compared", "") or str(error)
    return Digest(_ERROR, f"{type(error).__name__}: {text}")


def far_apart(first: Any, mine: Any) -> list[Digest]:
    """Return what differs by more than rounding, with both values, by its path.

    >>> far_apart({"loss": torch.tensor(1.0), "n": 3}, {"loss": torch.tensor(1.0001), "n": 4})
    [Digest(name="['n']", text='4 for 3')]
    """
    theirs, spec = flatten(first)
    own, own_spec = flatten(mine)
    if spec.text != own_spec.text:
        return [Digest("the result", f"{own_spec.text} for {spec.text}")]
    apart = []
    for path, one, other in zip(spec.paths, theirs, own, strict=True):
        if not _is_close(one, other):
            shown = [" ".join(f"{value}".split())[:40] for value in (other, one)]
            apart.append(Digest(path or "the value", " for ".join(shown)))
    return apart


def _is_close(first: Any, mine: Any) -> bool:
    if not isinstance(first, Tensor | Number) or not isinstance(mine, Tensor | Number):
        return bool(first == mine)
    one, other = (torch.as_tensor(each).detach().cpu() for each in (first, mine))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_complex():
        one, other = one.double(), other.double()
    near = torch.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    return bool(near.all())


def share(mesh: Mesh, rank: int, proof: Proof) -> Tensor:
    """Return what a rank adds to the sum that must be zero.

    >>> mesh = Mesh.of({"tp": 2}, {"tp": "same"})
    >>> share(mesh, 0, Proof(())) + share(mesh, 1, Proof(()))
    tensor([0, 0, 0, 0])
    """
    alike = mesh.along(rank, mesh.axes(SAME))
    factor = _factor(rank)
    if rank == alike[-1]:
        factor = -sum(map(_factor, alike[:-1])) % _WRAP
    digest = hashlib.blake2b(encode(proof), digest_size=_WORDS.size).digest()
    words = [word * factor % _WRAP for word in _WORDS.unpack(digest)]
    return torch.tensor(struct.unpack("<4q", _WORDS.pack(*words)), dtype=torch.int64)


def _factor(rank: int) -> int:
    """Return a number that looks random; odd, so that no difference is lost by multiplying."""
    digest = hashlib.blake2b(str(rank).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def refusal(mesh: Mesh, rank: int, proofs: Mapping[int, Proof]) -> LayoutError:
    """Return the error for ranks that are said to hold the same samples and do not."""
    found = _differences(mesh, proofs)
    axis, (name, digests) = next(iter(found.items()))
    what: list[str | Ranks] = [f"{name} differs between ", Ranks(digests)]
    if "nothing" in digests.values():
        what = ["only some of ", Ranks(digests), f" have {name}"]
    axes = " and ".join(found)
    return LayoutError(
        [f'along the axis {axes}, said to hold the "same" samples, ', *what],
        per_rank={place: f"{name} {digest[:200]}" for place, digest in digests.items()},
        notes=["Every rank keeps what it had."],
        likely=f"the ranks along {axis} hold other samples, or only one of them has values.",
        do=f'say {axis}="shard", or which coordinate has the values; where the samples are '
        'the same and only rounding differs, same="close".',
        rank=rank,
        peers=digests,
    )


def _differences(mesh: Mesh, proofs: Mapping[int, Proof]) -> dict[str, tuple[str, dict[int, str]]]:
    """Return the first difference along each axis: its name, and the digest of each rank."""
    by_rank = {rank: {each.name: each.text for each in p.digests} for rank, p in proofs.items()}
    names = dict.fromkeys(name for each in by_rank.values() for name in each)
    found: dict[str, tuple[str, dict[int, str]]] = {}
    for axis in mesh.axes(SAME):
        lines = dict.fromkeys(tuple(mesh.along(rank, [axis])) for rank in proofs)
        for line in lines:
            # An error tells more than what it has kept from being sent, and the call least.
            for name in sorted(names, key=lambda name: (name != _ERROR, name == _CALL)):
                digests = {rank: by_rank[rank].get(name, "nothing") for rank in line}
                if axis not in found and len({*digests.values()}) > 1:
                    found[axis] = name, digests
    return found

"""Whether ranks that are said to hold the same samples would send the same. Pure.

Each rank notes digests of what it would send. Ranks along an axis that is "same" add shares that
sum to zero if they have noted the same, so one small reduction over all ranks proves it.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import LayoutError, Ranks
from distmetrics.layouts.mesh import SAME, Mesh
from distmetrics.message import Message, encode, not_ours
from distmetrics.tree import flatten

# Sums of bfloat16 in another order differ by about one part in a thousand.
RELATIVE, ABSOLUTE = 1e-3, 1e-6
_WORDS = struct.Struct("<4q")
ERROR = "an error"  # it is compared as what is sent is


class Proof(Message, frozen=True):
    """What a rank would send in a call: of each state or leaf a hash, or the value in short."""

    digests: Mapping[str, str]


def far_apart(first: Any, mine: Any) -> dict[str, str]:
    """Return what differs by more than rounding, with both values, by its path.

    >>> far_apart({"loss": torch.tensor(1.0), "n": 3}, {"loss": torch.tensor(1.0001), "n": 4})
    {"['n']": '4 for 3'}
    """
    theirs, spec = flatten(first)
    own, own_spec = flatten(mine)
    if spec.text != own_spec.text:
        return {"the result": f"{own_spec.text} for {spec.text}"}
    apart = {}
    for path, one, other in zip(spec.paths, theirs, own, strict=True):
        if not _is_close(one, other):
            apart[path or "the value"] = f"{other!s:.40} for {one!s:.40}"
    return apart


def _is_close(first: Any, mine: Any) -> bool:
    if not isinstance(first, Tensor | Number):
        return bool(first == mine)
    try:
        torch.testing.assert_close(
            mine, first, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True, check_device=False
        )
    except (AssertionError, TypeError):
        return False
    return True


def share(mesh: Mesh, rank: int, proof: Proof) -> Tensor:
    """Return what a rank adds to the sum that must be zero.

    >>> mesh = Mesh.of({"tp": 3}, {"tp": "same"})
    >>> sum(share(mesh, rank, Proof({})) for rank in range(3))
    tensor([0, 0, 0, 0])
    """
    alike = mesh.along(rank, mesh.axes(SAME))
    # Of other ranks equal proofs have other digests, so that differences of two groups cannot
    # cancel out.
    text = encode((alike[0], proof))
    digest = hashlib.blake2b(text, digest_size=_WORDS.size).digest()
    return torch.tensor(_WORDS.unpack(digest)) * (1 - len(alike) if rank == alike[-1] else 1)


def refusal(mesh: Mesh, rank: int, proofs: Mapping[int, Proof]) -> LayoutError:
    """Return the error for ranks that are said to hold the same samples and do not."""
    names = [name for proof in proofs.values() for name in proof.digests]
    # An error tells more than what it has kept from being sent.
    for name in dict.fromkeys([ERROR, *names]):
        for axis, start in itertools.product(mesh.axes(SAME), proofs):
            line = mesh.along(start, [axis])
            digests = {each: proofs[each].digests.get(name, "nothing") for each in line}
            if len({*digests.values()}) == 1:
                continue
            where = (
                f'along the axis {axis}, said to hold the "same" samples, {name} differs between '
            )
            return LayoutError(
                [where, Ranks(line)],
                per_rank={each: f"{name}: {digest[:200]}" for each, digest in digests.items()},
                notes=["Every rank keeps what it had."],
                likely=f"the ranks along {axis} hold other samples, or only one of them has "
                "values.",
                do=f'say {axis}="shard", or which coordinate has the values; where the samples are '
                'the same and only rounding differs, same="close".',
                rank=rank,
                peers=line,
            )
    raise not_ours("proofs that are the same, whose sum is not zero")

"""What a rank tells of its states, and whether it can be so. Pure.

A plan is made of what all ranks tell. What no version of distmetrics would tell is refused before,
so that making the plan and following it need no checks of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import get_args

import torch

from distmetrics.collectives.pack import LeafSpec, dtype_of
from distmetrics.state.adapters.base import Kind

REDUCED = ("sum", "mean", "max", "min")  # kinds of states that are folded to one tensor
# Of a size that does not depend on the data: rides in the first round.
FIXED = (*REDUCED, "stack")
UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
SIZES = "sizes"  # the kind of what travels beside a list, so that it can be cut into its items
_CAN_BE_ADDED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


def check_leaves(leaves: Sequence[LeafSpec], order: Sequence[str]) -> None:
    """Raise ValueError or KeyError for states that no rank describes so.

    Args:
        leaves: of one rank's manifest.
        order: paths of all states of the metrics.
    """
    places = {path: place for place, path in enumerate(order)}
    previous = -1
    own: dict[str, LeafSpec] = {}  # those that share no other's tensor
    for leaf in leaves:
        kind, shared, _ = parse_note(leaf.note)
        if kind == SIZES and leaf.dtype == "int64":
            continue
        is_known = kind in get_args(Kind) and is_reducible(kind, dtype_of(leaf.dtype))
        if leaf.path == UPDATES:
            is_known = (kind, leaf.dtype) == ("sum", "int64")
        if not is_known or places[leaf.path] <= previous:
            raise ValueError(f"a state {leaf} in this place")
        previous = places[leaf.path]
        if not shared:
            own[leaf.path] = leaf
        elif (own[shared].dtype, own[shared].shape) != (leaf.dtype, leaf.shape):
            raise ValueError(f"a state {leaf} of another shape than {shared}")


@functools.cache
def is_reducible(kind: str, dtype: torch.dtype) -> bool:
    """Return True if torch can reduce tensors of this dtype in this way, or need not."""
    if kind in ("max", "min") and dtype.is_complex:
        return False
    return kind not in REDUCED or dtype in _CAN_BE_ADDED


def parse_note(note: str) -> tuple[str, str, str]:
    """Read a leaf's note: its kind, the path whose tensor it shares, the form of its items.

    >>> parse_note("items rows [4] =boxes")
    ('items', 'boxes', 'rows [4]')
    """
    text, _, shared = note.partition(" =")
    kind, _, form = text.partition(" ")
    return kind, shared, form

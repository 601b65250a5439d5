"""Find ranks that hold the same data, as those of a tensor-parallel group do. Pure.

A sync over all of them counts each sample as often as there are such ranks. What the ranks have
sent shows it: they fall into groups of one size, in each of which the data is the same bit for bit.
Small counts may be equal by chance, and one number may be the same everywhere by nature, as a
learning rate is: so there must be several numbers, or many large counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.metrics.plan import SyncPlan

Runs = Sequence[tuple[Tensor, Tensor]]
_SAMPLE = 256  # bytes of each run that are compared first
_LOOKED_AT = 4096  # numbers of each state: far more than it takes
_ENOUGH = 60  # bits
_FRACTION = 20  # bits of a number that is no integer


def duplicates(plan: SyncPlan, runs: Runs) -> list[list[int]]:
    """Return the groups of ranks that hold the same data; [] unless all ranks are in such groups.

    Ranks without an update have no data, and are in none: other pipeline stages than the last, say.

    Args:
        plan: of the sync.
        runs: what every rank has sent, in rank order.
    """
    updated = sorted(set().union(*plan.updated))
    if not _groups({rank: _key(runs[rank], _SAMPLE) for rank in updated}):
        return []
    groups = _groups({rank: _key(runs[rank]) for rank in updated})
    firsts = [group[0] for group in groups]
    return groups if groups and all(_tells(plan, runs, rank) for rank in firsts) else []


def _groups(keys: Mapping[int, tuple[bytes, bytes]]) -> list[list[int]]:
    """Return ranks by key, if there are equally many of each, and more than one."""
    by_key: dict[tuple[bytes, bytes], list[int]] = {}
    for rank, key in keys.items():
        by_key.setdefault(key, []).append(rank)
    sizes = {len(group) for group in by_key.values()}
    return [*by_key.values()] if len(sizes) == 1 and sizes != {1} else []


def _key(run: tuple[Tensor, Tensor], most: int | None = None) -> tuple[bytes, bytes]:
    """Return a rank's bytes; of the last ``most`` of each run only."""
    inline, bulk = run
    if most is not None:
        inline, bulk = inline[-most:], bulk[-most:]
    return to_bytes(inline), to_bytes(bulk)


def _tells(plan: SyncPlan, runs: Runs, rank: int) -> bool:
    """True if a rank has data that another rank hardly has by chance."""
    sent, (inline, bulk) = plan.sent[rank], runs[rank]
    tensors = sent.bulk.unpack(bulk)
    if plan.is_inline:
        tensors |= sent.inline.unpack(inline)
    values: set[float] = set()
    for path, tensor in tensors.items():
        is_state = path in plan.states and plan.states[path].kind not in ("object", "each")
        if is_state and not tensor.is_complex():
            values.update(tensor.view(-1)[:_LOOKED_AT].double().tolist())
    return sum(map(_bits, values)) >= _ENOUGH


def _bits(value: float) -> float:
    """Return how much it says that two ranks have this number: a count says what it is, in bits."""
    if not math.isfinite(value):
        return 0
    return _FRACTION if value % 1 else math.log2(1 + abs(value))

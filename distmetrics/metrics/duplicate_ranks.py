"""Find ranks that hold the same data, as those of a tensor-parallel group do. Pure.

A sync over all of them counts each sample as often as there are such ranks. What they have sent
shows it: they fall into groups of one size, whose data is the same bit for bit. Small counts may be
equal by chance, and a learning rate is the same everywhere: so there must be several numbers, or
many large counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.metrics.plan import SyncPlan

Runs = Sequence[tuple[Tensor, Tensor]]
_SAMPLE = 256  # bytes of each run
_LOOKED_AT = 4096  # numbers of each state: far more than it takes
_ENOUGH = 60  # bits
_FRACTION = 20  # bits of a number that is no integer


def duplicates(plan: SyncPlan, runs: Runs) -> list[list[int]]:
    """Return the groups of ranks that hold the same data; [] unless all ranks are in such groups.

    Ranks without an update have no data, and are in none: other pipeline stages than the last, say.
    """
    groups: list[list[int]] = []
    for start in (-_SAMPLE, None):  # a few bytes first: most ranks differ in them
        by_key: dict[tuple[bytes, ...], list[int]] = {}
        for rank in sorted(set().union(*plan.updated)):
            key = tuple(to_bytes(run[start:]) for run in runs[rank])
            by_key.setdefault(key, []).append(rank)
        groups = [*by_key.values()]
        if len(sizes := {*map(len, groups)}) != 1 or sizes == {1}:
            return []
    return groups if all(_tells(plan, runs, group[0]) for group in groups) else []


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

"""Which calls bring the values of ranks together, told by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.tree import keyword, number, positional, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_TELLING = ("gather", "all_reduce", "allreduce", "mesh_reduce", "sync_and_compute")
_BEGINNINGS = ("reduce_", "sync_", "synchronize", "broadcast", "average_across", "mean_across", "avg_across")
_NAMESAKES = ("torch.gather", "torch.scatter", "einops.", "functools.", "numpy.")


def is_gathering(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a call brings the ranks' values together, told by its name; ``x.gather(1, index)`` does not."""
    name = tail(call.func) or ""
    lower = name.lower().lstrip("_")
    if lower in ("gather", "reduce"):
        return _is_distributed(facts, call, lower)
    return any(word in lower for word in _TELLING) or lower.startswith(_BEGINNINGS)


def _is_distributed(facts: ModuleFacts, call: cst.Call, name: str) -> bool:
    full, given = facts.resolve(call.func) or "", positional(call)
    if full.startswith("torch.distributed."):
        return True
    if full.startswith(_NAMESAKES):
        return False
    if name == "reduce":  # einops.reduce(x, "b c -> b", "mean"), functools.reduce(lambda …)
        return not any(isinstance(value, cst.Lambda) or "->" in (text_of(value) or "") for value in given)
    is_index = len(given) > 1 and (number(given[0]) is not None or number(given[1]) is not None)
    return not is_index and not any(keyword(call, word) is not None for word in ("dim", "index"))

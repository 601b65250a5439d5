"""What a metric of torchmetrics was made with, as far as its value depends on it.

States alone do not tell: F1 scores of ``average="macro"`` and ``average="micro"`` hold the same
states, and with one on some ranks and the other on the rest every rank would compute another value
from the same sums.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from distmetrics.state.adapters.assigned import assigned

if TYPE_CHECKING:
    from torchmetrics import Metric

_PLAIN = frozenset((bool, int, float, str))
# What may well differ between ranks: where things are, how fast they are done, what is printed, who
# syncs.
_OWN = frozenset((
    "baseline_path", "baseline_url", "batch_size", "dist_sync_on_step", "embedding_device", "model_name_or_path",
    "n_processes", "num_threads", "sync_on_compute", "validate_args", "verbose", "compute_on_cpu",
    "compute_with_cache", "distributed_available_fn", "dist_sync_fn", "process_group", "training",
))  # fmt: skip


def arguments(metric: Metric, base: type) -> tuple[tuple[str, Any], ...]:
    """Return the plain attributes of a metric of torchmetrics' own that its value may depend on, by
    name.

    Those of other classes may differ between ranks for reasons of theirs, and are not read.
    ``base`` is the class that torchmetrics' metrics have in common: what its methods set is
    bookkeeping.

    >>> from torchmetrics import Metric, MeanSquaredError
    >>> arguments(MeanSquaredError(squared=False), Metric)
    (('squared', False), ('num_outputs', 1))
    """
    kind = type(metric)
    if not kind.__module__.startswith("torchmetrics."):
        return ()
    ours = _ours(kind, base)
    return tuple([
        (name, value)
        for name, value in vars(metric).items()
        if type(value) in _PLAIN and name[0] != "_" and name not in ours and name not in metric._defaults
    ])  # fmt: skip


@functools.cache
def _ours(kind: type, base: type) -> frozenset[str]:
    """Return the attributes of a class that are left alone: what updating or computing sets is no
    argument.
    """
    return _OWN | assigned(kind, base).changed

"""The faults in the ``validation_step`` of a LightningModule, where its own calls are others.

The programs of the rest are those of ``programs``, by Lightning's calls: a reduction is
``self.log(..., sync_dist=True)``, which Lightning does at the end of the epoch, a gather is
``self.all_gather``. Lines are marked as in ``programs``. What is absent cannot be expressed:
``self.log`` takes single numbers, so they have no other length.
"""

from __future__ import annotations

import sys
import time

from benchmarks.faults.job import Job, share_of
from benchmarks.faults.programs import (
    dtype_other_size,
    dtype_same_size,
    gather_length,
    gather_shape,
    os_exits,
    raises,
    skipped,
    slow,
    sum_max,
    swapped,
)

__all__ = [
    "compute_raises",
    "dtype_other_size",
    "dtype_same_size",
    "exits",
    "extra",
    "gather_length",
    "gather_shape",
    "lost",
    "os_exits",
    "raises",
    "skipped",
    "skipped_unlike",
    "slow",
    "stuck",
    "subgroups",
    "sum_max",
    "swapped",
]


def skipped_unlike(job: Job) -> None:
    """One rank does not gather, and goes on to what it logs."""
    if not job.faulty:
        job.check("scores", job.all_gather(job.mine()), job.everyone())
    job.fault()
    job.check("count", job.all_reduce(job.mine(10), "sum", name="val/count"), job.total(10))  # here


def extra(job: Job) -> None:
    """One rank waits at a barrier that the others do not come to."""
    if job.faulty:
        job.fault()
        job.module.trainer.strategy.barrier("before saving")  # here
    _log_loss(job)


def exits(job: Job) -> None:
    """One rank ends."""
    if job.faulty:
        job.fault()
        sys.exit(0)  # here
    _log_loss(job)


def lost(job: Job) -> None:
    """One rank gets a signal while the others wait for it."""
    job.module.all_gather(job.mine())  # here: its last call
    if job.faulty:
        job.rest()  # here
    job.calls()
    _log_loss(job)


def stuck(job: Job) -> None:
    """One rank never leaves a loop of its own."""
    job.module.all_gather(job.mine())  # here: its last call
    if job.faulty:
        job.fault()
        while True:  # here
            time.monotonic()  # here
    _log_loss(job)


def compute_raises(job: Job) -> None:
    """A metric that is logged raises in compute on one rank; the others go on to the next name."""
    job.module.share = share_of(job)
    job.module.log("val/share", job.module.share)  # here
    job.later["val/share"] = job.total()[0] / job.world_size
    _log_loss(job)


def subgroups(job: Job) -> None:
    """Two groups of the same ranks, used in another order by one of them."""
    everyone = list(range(job.world_size))
    first, second = job.group(everyone), job.group(everyone)
    job.fault()
    for group in (second, first) if job.faulty else (first, second):
        rows = job.module.all_gather(job.mine(), group=group)  # here
        job.check("scores", rows, job.everyone())


def _log_loss(job: Job) -> None:
    """Log what all ranks log."""
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())

"""The same faults in the ``validation_step`` of a LightningModule, by its own calls.

A reduction is ``self.log(..., sync_dist=True)``, which Lightning does at the end of the epoch, a
gather is ``self.all_gather``, and what one rank does alone is ``trainer.strategy.barrier``. Lines
are marked as in ``programs``. What is absent cannot be expressed: ``self.log`` takes single
numbers, so they have no other length.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from benchmarks.faults.job import Job, share_of


def skipped(job: Job) -> None:
    """One rank does not log a name."""
    if not job.faulty:
        job.module.log("val/loss", job.mine()[0], sync_dist=True, reduce_fx="sum")
        job.later["val/loss"] = job.total()[0]
    job.fault()
    job.module.log("val/count", job.mine(10)[0], sync_dist=True, reduce_fx="sum")  # here
    job.later["val/count"] = job.total(10)[0]


def skipped_unlike(job: Job) -> None:
    """One rank does not gather, and goes on to what it logs."""
    if not job.faulty:
        rows = job.module.all_gather(job.mine())
        job.check("scores", rows, job.everyone())
    job.fault()
    job.module.log("val/count", job.mine(10)[0], sync_dist=True, reduce_fx="sum")  # here
    job.later["val/count"] = job.total(10)[0]


def swapped(job: Job) -> None:
    """One rank logs two names in the other order."""
    units = {"val/loss": 1.0, "val/count": 10.0}
    job.fault()
    for name in reversed(units) if job.faulty else units:
        job.module.log(name, job.mine(units[name])[0], sync_dist=True, reduce_fx="sum")  # here
        job.later[name] = job.total(units[name])[0]


def extra(job: Job) -> None:
    """One rank waits at a barrier that the others do not come to."""
    if job.faulty:
        job.fault()
        job.module.trainer.strategy.barrier("before saving")  # here
    job.module.log("val/loss", job.mine()[0], sync_dist=True, reduce_fx="sum")
    job.later["val/loss"] = job.total()[0]


def sum_max(job: Job) -> None:
    """One rank takes the maximum where the others add."""
    job.fault()
    op = "max" if job.faulty else "sum"
    job.module.log("val/loss", job.mine()[0], sync_dist=True, reduce_fx=op)  # here
    job.later["val/loss"] = job.total()[0]


def dtype_same_size(job: Job) -> None:
    """One rank logs int32 where the others log float32."""
    job.fault()
    mine = job.mine().to(torch.int32) if job.faulty else job.mine()
    job.module.log("val/loss", mine[0], sync_dist=True, reduce_fx="sum")  # here
    job.later["val/loss"] = job.total()[0]


def dtype_other_size(job: Job) -> None:
    """One rank logs float64 where the others log float32."""
    job.fault()
    mine = job.mine().double() if job.faulty else job.mine()
    job.module.log("val/loss", mine[0], sync_dist=True, reduce_fx="sum")  # here
    job.later["val/loss"] = job.total()[0]


def gather_shape(job: Job) -> None:
    """One rank gathers [3, 2] where the others gather [2, 3]."""
    job.fault()
    rows = job.grids()
    job.check("scores", job.module.all_gather(rows[job.rank]), rows)  # here


def gather_length(job: Job) -> None:
    """One rank gathers [3] where the others gather [4]."""
    job.fault()
    rows = job.lengths()
    job.check("scores", job.module.all_gather(rows[job.rank]), rows)  # here


def exits(job: Job) -> None:
    """One rank ends."""
    if job.faulty:
        job.fault()
        sys.exit(0)  # here
    _log_loss(job)


def raises(job: Job) -> None:
    """One rank raises."""
    if job.faulty:
        job.fault()
        raise ValueError("no such label: 7")  # here
    _log_loss(job)


def os_exits(job: Job) -> None:
    """One rank is gone without a word."""
    if job.faulty:
        job.fault()
        os._exit(1)  # here
    _log_loss(job)


def lost(job: Job) -> None:
    """One rank gets a signal while the others wait for it."""
    job.module.all_gather(job.mine())  # here: its last call
    if job.faulty:
        job.rest()  # here
    job.calls()
    _log_loss(job)


def slow(job: Job) -> None:
    """One rank is three seconds late, which is no fault."""
    if job.faulty:
        job.fault()
        time.sleep(3)  # here
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
    job.module.log("val/loss", job.mine()[0], sync_dist=True, reduce_fx="sum")
    job.later["val/loss"] = job.total()[0]

"""The programs, one a fault.

A line of the rank at fault, by which a text may name it, ends in the comment "here".

The calls are direct: the tool sees the program's line, and not one of the benchmark's. All ranks
have met before in a call of the tool's, but in the programs that are marked ``first_call``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults.job import Job, share_of


def first_call(program: Callable[[Job], None]) -> Callable[[Job], None]:
    """Mark a program before which the ranks have made no call of the tool's."""
    vars(program)["is_first_call"] = True
    return program


@first_call
def never_called(job: Job) -> None:
    """One rank leaves out the tool's first call, and goes on into a collective of torch's own."""
    if not job.faulty:
        rows = job.all_gather(job.mine(), name="val/scores")
        job.check("scores", rows, job.everyone())
    job.fault()
    dist.barrier()  # here


@first_call
def skipped_backward(job: Job) -> None:
    """One rank skips a backward pass, for a loss that is no number, say; then all call the tool."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(3):
        loss = model(job.mine()).sum()
        if job.faulty and step == 1:
            job.fault()
            continue
        loss.backward()
    job.check("loss", job.all_reduce(job.mine(), "sum", name="train/loss"), job.total())  # here


@first_call
def os_exits_first(job: Job) -> None:
    """One rank is gone by an error of its own before it has called the tool."""
    try:
        raises(job)  # here
    except ValueError:
        os._exit(1)


def interrupted(job: Job) -> None:
    """A timer ends a call on one rank, which catches it and goes on."""

    def end(*_: object) -> None:
        raise TimeoutError

    if job.faulty:
        job.fault()
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            job.all_reduce(job.mine(), "sum", name="val/loss")  # here
        except TimeoutError:
            time.sleep(1.0)
    else:
        time.sleep(1.0)
        job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())
    job.check("count", job.all_reduce(job.mine(10), "sum", name="val/count"), job.total(10))  # here


def skipped(job: Job) -> None:
    """One rank leaves a collective out; the next one is of the same kind."""
    if not job.faulty:
        job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())
    job.fault()
    job.check("count", job.all_reduce(job.mine(10), "sum", name="val/count"), job.total(10))  # here


def skipped_unlike(job: Job) -> None:
    """One rank leaves a collective out; the next one is another."""
    if not job.faulty:
        job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())
    job.fault()
    rows = job.all_gather(job.mine(10), name="val/scores")  # here
    job.check("scores", rows, job.everyone(10))


def skipped_ddp(job: Job) -> None:
    """One rank leaves a collective out in a step of training, and goes on into backward."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(3):
        loss = model(job.mine()).sum()
        if job.faulty and step == 2:
            job.fault()
        else:
            job.check("loss", job.all_reduce(job.mine(), "sum", name="train/loss"), job.total())
        loss.backward()  # here


def swapped(job: Job) -> None:
    """One rank computes two metrics in the other order."""
    if job.faulty:
        job.fault()
        count = job.all_reduce(job.mine(10), "sum", name="val/count")  # here
        loss = job.all_reduce(job.mine(), "sum", name="val/loss")  # here
    else:
        loss = job.all_reduce(job.mine(), "sum", name="val/loss")
        count = job.all_reduce(job.mine(10), "sum", name="val/count")
    job.check("loss", loss, job.total())
    job.check("count", count, job.total(10))


def extra(job: Job) -> None:
    """One rank makes a collective that the others do not make."""
    if job.faulty:
        job.fault()
        norm = job.all_reduce(job.mine(100), "sum", name="debug/norm")  # here
        job.check("norm", norm, job.total(100))
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def sum_max(job: Job) -> None:
    """One rank takes the maximum where the others add."""
    job.fault()
    op = "max" if job.faulty else "sum"
    job.check("loss", job.all_reduce(job.mine(), op, name="val/loss"), job.total())  # here


def dtype_same_size(job: Job) -> None:
    """One rank sends int32 where the others send float32."""
    job.fault()
    mine = job.mine().to(torch.int32) if job.faulty else job.mine()
    job.check("loss", job.all_reduce(mine, "sum", name="val/loss"), job.total())  # here


def dtype_other_size(job: Job) -> None:
    """One rank sends float64 where the others send float32."""
    job.fault()
    mine = job.mine().double() if job.faulty else job.mine()
    job.check("loss", job.all_reduce(mine, "sum", name="val/loss"), job.total())  # here


def length(job: Job) -> None:
    """One rank sends three numbers where the others send four."""
    job.fault()
    mine = job.mine()[:3] if job.faulty else job.mine()
    loss = job.all_reduce(mine, "sum", name="val/loss")  # here
    job.check("loss", loss, job.total(size=len(mine)))


def gather_shape(job: Job) -> None:
    """One rank gathers [3, 2] where the others gather [2, 3]."""
    job.fault()
    rows = job.grids()
    job.check("scores", job.all_gather(rows[job.rank], name="val/scores"), rows)  # here


def gather_length(job: Job) -> None:
    """One rank gathers [3] where the others gather [4]."""
    job.fault()
    rows = job.lengths()
    job.check("scores", job.all_gather(rows[job.rank], name="val/scores"), rows)  # here


def exits(job: Job) -> None:
    """One rank has nothing more to do, and ends as programs end."""
    if job.faulty:
        job.fault()
        return  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def raises(job: Job) -> None:
    """One rank raises."""
    if job.faulty:
        job.fault()
        raise ValueError("no such label: 7")  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def os_exits(job: Job) -> None:
    """One rank is gone without a word."""
    if job.faulty:
        job.fault()
        os._exit(1)  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def lost(job: Job) -> None:
    """One rank gets a signal while the others wait for it."""
    step = job.all_reduce(job.mine(), "sum", name="train/step")  # here: its last call
    job.check("step", step, job.total())
    if job.faulty:
        job.rest()  # here
    job.calls()
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def slow(job: Job) -> None:
    """One rank is three seconds late, which is no fault."""
    if job.faulty:
        job.fault()
        time.sleep(3)  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def stuck(job: Job) -> None:
    """One rank never leaves a loop of its own."""
    step = job.all_reduce(job.mine(), "sum", name="train/step")  # here: its last call
    job.check("step", step, job.total())
    if job.faulty:
        job.fault()
        while True:  # here
            time.monotonic()  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def compute_raises(job: Job) -> None:
    """A metric's compute raises on one rank; the others go on to the next collective."""
    metric = share_of(job)
    job.check("share", job.compute(metric), job.total()[0] / job.world_size)  # here
    job.check("loss", job.all_reduce(job.mine(), "sum", name="val/loss"), job.total())


def subgroups(job: Job) -> None:
    """Two groups of the same ranks, used in another order by one of them."""
    everyone = list(range(job.world_size))
    first, second = job.group(everyone), job.group(everyone)
    if job.faulty:
        job.fault()
        count = job.all_reduce(job.mine(10), "sum", name="val/count", comm=second)  # here
        loss = job.all_reduce(job.mine(), "sum", name="val/loss", comm=first)  # here
    else:
        loss = job.all_reduce(job.mine(), "sum", name="val/loss", comm=first)
        count = job.all_reduce(job.mine(10), "sum", name="val/count", comm=second)
    job.check("loss", loss, job.total())
    job.check("count", count, job.total(10))

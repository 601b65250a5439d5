"""The tools' own calls, and the start of a job with each of them."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.debug as debug
from torch import Tensor

from benchmarks.faults.events import Log, text_of
from benchmarks.faults.job import Job

__all__ = ["JOBS", "Program"]

DUMP_EVERY = 2.0  # seconds

Program = Callable[[Job], None]
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def plain(
    program: Program,
    wrong: int,
    log: Log,
    patience: timedelta | None,
    *,
    monitored: bool = False,
    dumps: Path | None = None,
) -> None:
    """Run with torch.distributed alone; its functions work in place and know no names.

    With ``dumps``, its debug server writes the stacks of all ranks into that folder.
    """

    def before(group: Any) -> None:
        if monitored:
            dist.monitored_barrier(group, timeout=patience, wait_all_ranks=True)

    def all_reduce(x: Tensor, op: str, *, name: str = "", comm: Any = None) -> Tensor:
        before(comm)
        total = x.clone()
        dist.all_reduce(total, _OPS[op], group=comm)
        return total

    def all_gather(x: Tensor, *, name: str = "") -> list[Tensor]:
        before(None)
        rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, x)
        return rows

    def compute(metric: Any) -> Any:
        before(None)
        return metric.compute()

    dist.init_process_group("gloo", timeout=patience)
    if dumps is not None:
        debug.start_debug_server(
            port=0, start_method="spawn", dump_dir=str(dumps), dump_interval=DUMP_EVERY
        )
    group = functools.partial(dist.new_group, timeout=patience)
    _run(program, Job(_rank(), _size(), wrong, log, all_reduce, all_gather, compute, group))
    dist.destroy_process_group()


def default(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run with torch.distributed as it is."""
    plain(program, wrong, log, None)


def debug_server(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run as it is, with torch's debug server, which needs tabulate, aiohttp and Jinja2."""
    plain(program, wrong, log, None, dumps=log.path.parent / "dumps")


def monitored(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run with a monitored_barrier before each collective."""
    plain(program, wrong, log, patience, monitored=True)


def distmetrics(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run with distmetrics in a job that somebody else has started."""
    import distmetrics as dm

    def group(ranks: list[int]) -> Any:
        return dm.GroupCommunicator(dist.new_group(ranks))

    dist.init_process_group("gloo")
    _run(
        program,
        Job(_rank(), _size(), wrong, log, dm.all_reduce, dm.all_gather, dm.sync_and_compute, group),
    )
    dist.destroy_process_group()


def launched(comm: Any, program: Program, wrong: int, folder: Path) -> None:
    """Be one rank that distmetrics has started."""
    import distmetrics as dm

    def group(ranks: list[int]) -> Any:
        return dm.GroupCommunicator(dist.new_group(ranks))

    log = Log(folder, comm.rank)
    log.write("start", pid=os.getpid())
    job = Job(
        comm.rank,
        comm.world_size,
        wrong,
        log,
        dm.all_reduce,
        dm.all_gather,
        dm.sync_and_compute,
        group,
    )
    try:
        _run(program, job)
    except Exception as error:
        log.write("raised", text=text_of(error))
        raise
    log.write("done")


def lightning(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run in the ``validation_step`` of a LightningModule."""
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class Net(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def on_validation_start(self) -> None:
            self.trainer.strategy.barrier("start")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            program(job)

    module = Net()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = functools.partial(dist.new_group, timeout=patience)
    job = Job(rank, size, wrong, log, _absent, _absent, _absent, group, module)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=DDPStrategy(process_group_backend="gloo", timeout=patience),
        devices=size,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(log.path.parent),
    )
    samples: Any = [torch.zeros(1)]
    trainer.validate(module, torch.utils.data.DataLoader(samples), verbose=False)
    for name, right in job.later.items():
        job.check(name, float(trainer.callback_metrics[name]), right)


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("Lightning's programs call the module's methods")


def _run(program: Program, job: Job) -> None:
    """Let the ranks meet, so that all connections are made, and run."""
    if vars(program).get("is_first_call"):
        dist.barrier()
    else:
        job.all_reduce(torch.ones(1), "sum", name="start")
    program(job)


def _rank() -> int:
    return dist.get_rank()


def _size() -> int:
    return dist.get_world_size()


JOBS: dict[str, Callable[[Program, int, Log, timedelta], None]] = {
    "torch": default,
    "torch-timeout": plain,
    "detail": plain,
    "monitored": monitored,
    "debug-server": debug_server,
    "lightning": lightning,
    "distmetrics": distmetrics,
}

"""The tools' own calls, and what runs in the processes.

``python -m benchmarks.faults.tools TOOL FAULT FOLDER TIMEOUT``: the environment says which rank it
is. For distmetrics' own launch it is the one program that starts the ranks.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.debug as debug
from torch import Tensor

from benchmarks.faults.catalogue import FAULTS, program_of
from benchmarks.faults.cell import LAUNCH
from benchmarks.faults.job import ENDS, Job, Log, text_of

DUMP_EVERY = 2.0  # seconds
Program = Callable[[Job], None]
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def plain(
    program: Program, wrong: int, log: Log, patience: timedelta | None, *, how: str = ""
) -> None:
    """Run with torch.distributed alone; its functions work in place and know no names.

    ``how``: "monitored", with a monitored_barrier before each collective, or "debug-server", which
    writes the stacks of all ranks (it needs tabulate, aiohttp and Jinja2).
    """

    def before(group: Any) -> None:
        if how == "monitored":
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
    if how == "debug-server":
        dumps: dict[str, Any] = {"dump_interval": DUMP_EVERY}
        dumps["dump_dir"] = str(log.path.parent / "dumps")
        debug.start_debug_server(port=0, start_method="spawn", **dumps)
    group = functools.partial(dist.new_group, timeout=patience)
    rank, size = dist.get_rank(), dist.get_world_size()
    _run(program, Job(rank, size, wrong, log, all_reduce, all_gather, compute, group))
    dist.destroy_process_group()


def with_distmetrics(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run with distmetrics in a job that somebody else has started."""
    dist.init_process_group("gloo")
    _ours(program, wrong, log)
    dist.destroy_process_group()


def _ours(program: Program, wrong: int, log: Log) -> None:
    import distmetrics as dm

    def group(ranks: list[int]) -> Any:
        return dm.GroupCommunicator(dist.new_group(ranks))

    calls = (dm.all_reduce, dm.all_gather, dm.sync_and_compute, group)
    _run(program, Job(dist.get_rank(), dist.get_world_size(), wrong, log, *calls))


def lightning(program: Program, wrong: int, log: Log, patience: timedelta) -> None:
    """Run in the ``validation_step`` of a LightningModule."""
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    def all_reduce(x: Tensor, op: str, *, name: str = "") -> str:
        module.log(name, x[0], sync_dist=True, reduce_fx=op)
        return name  # the number is there at the end of the epoch

    def all_gather(x: Tensor, *, name: str = "") -> Any:
        return module.all_gather(x)

    class Net(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def on_validation_start(self) -> None:
            self.trainer.strategy.barrier("start")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            program(job)

    module = Net()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = functools.partial(dist.new_group, timeout=patience)
    job = Job(rank, size, wrong, log, all_reduce, all_gather, _absent, group, module)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=DDPStrategy(process_group_backend="gloo", timeout=patience),
        devices=size,
        use_distributed_sampler=False,
        default_root_dir=str(log.path.parent),
        **dict.fromkeys(quiet, False),  # type: ignore[arg-type]
    )
    samples: Any = [torch.zeros(1)]
    trainer.validate(module, torch.utils.data.DataLoader(samples), verbose=False)
    for name, right in job.later.items():
        job.check(name, float(trainer.callback_metrics[name]), right)


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("Lightning computes the metrics that are logged")


def _run(program: Program, job: Job) -> None:
    """Let the ranks meet, so that all connections are made, and run."""
    if vars(program).get("is_first_call"):
        dist.barrier()
    else:
        job.all_reduce(torch.ones(1), "sum", name="start")
    program(job)


def _told(log: Log, run: Callable[[], None]) -> None:
    """Run a job on this rank, and tell how it ended."""
    log.write("start", pid=os.getpid())
    try:
        run()
    except Exception as error:
        log.write("raised", text=text_of(error))
        raise
    log.write("done")


def launched(comm: Any, program: Program, wrong: int, folder: Path) -> None:
    """Be one rank that distmetrics has started."""
    log = Log(folder, comm.rank)
    _told(log, functools.partial(_ours, program, wrong, log))


def _launch(program: Program, ranks: int, wrong: int, folder: Path) -> None:
    """Start the ranks, and tell of those that could not do so themselves."""
    from distmetrics.launch.spawn import launch

    for outcome in launch(launched, ranks, program, wrong, folder):
        log = Log(folder, outcome.rank)
        told = any(event["kind"] in ENDS for event in log.read())
        if outcome.error is not None and not told:
            log.write("raised", text=text_of(outcome.error))


def main() -> None:
    """Be one rank, and tell how it ended."""
    tool, name, place, patience = sys.argv[1:]
    fault, folder = FAULTS[name], Path(place)
    program: Program = getattr(program_of(tool), fault.program)
    if tool == LAUNCH:
        _launch(program, fault.ranks, fault.wrong, folder)
        return
    log, limit = Log(folder, int(os.environ["RANK"])), timedelta(seconds=float(patience))
    job = {"lightning": lightning, "distmetrics": with_distmetrics}.get(tool)
    if job is None:
        has_patience = tool not in ("torch", "debug-server")
        _told(
            log, lambda: plain(program, fault.wrong, log, limit if has_patience else None, how=tool)
        )
    else:
        _told(log, functools.partial(job, program, fault.wrong, log, limit))


if __name__ == "__main__":
    main()

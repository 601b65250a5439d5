"""``python -m distmetrics doctor``: what is wrong with a machine or a job, before a training run.

Alone it looks at this machine and starts two processes. Under a launcher every rank looks at its
own, they meet, and compare: the table and the exit code are the same on all of them. Nothing waits
for longer than it is told to.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.cli.console import console, counted, first_line, table
from distmetrics.cli.doctor_checks import Finding, launcher, merged, of_error, own_checks
from distmetrics.cli.doctor_meeting import Meeting, open_store
from distmetrics.cli.doctor_ranks import RankFacts, compared, measured, on_gpus, own_facts
from distmetrics.collectives.ops import all_gather_object
from distmetrics.comm.base import Communicator
from distmetrics.comm.group import GroupCommunicator
from distmetrics.errors import DistmetricsError, PeerLostError, who
from distmetrics.launch.clusters import reachable
from distmetrics.launch.environment import Environment
from distmetrics.launch.processes import launch
from distmetrics.liveness.settings import Settings, put_in_force

_ALONE = 2  # processes that are started where nothing launched a job
_SPARE = 10.0  # seconds in which a wait that is over is also told
_NEXT_LINE = "\n" + 21 * " "
_COLOUR = {"fail": "bold red", "warn": "yellow", "ok": "green"}


def doctor(*, timeout: float, backend: str, as_json: bool) -> int:
    """Check, show the findings; return 1 if a check failed, else 0.

    Args:
        timeout: seconds that ranks have to come, and that a collective may take.
        backend: "gloo" or "nccl", or "auto" for nccl where each rank has a GPU to itself.
        as_json: print JSON.
    """
    # It watches over itself, whatever the guard's variables say.
    with put_in_force(Settings("off")):
        place, launched = launcher(os.environ)
        own = [launched, *own_checks(os.environ, place)]
        if place is not None:
            return _Rank(place, own, timeout, backend, as_json).run()
        if launched.status == "ok":
            own += _two_processes(timeout, backend)
        else:
            text = "not tried: who the ranks are is not known"
            own.append(Finding("rendezvous", "warn", text, launched.do))
        show(own, as_json)
        return failed(own)


def failed(findings: Sequence[Finding]) -> int:
    """Return 1 if a check failed, else 0."""
    return int(any(finding.status == "fail" for finding in findings))


def _two_processes(timeout: float, backend: str) -> list[Finding]:
    """Start two processes of this machine, and examine them as a job of two ranks."""
    if backend == "auto" and torch.cuda.device_count() < _ALONE:
        backend = "gloo"
    connect = partial(dist.init_process_group, timeout=timedelta(seconds=timeout))
    job = (time.time(), timeout, backend)
    outcomes = launch(_one_of_two, _ALONE, *job, connect=connect, limit=2 * timeout)
    if errors := [outcome.error for outcome in outcomes if outcome.error is not None]:
        do = "see the other checks; if the machine is just slow, give a longer --timeout."
        return [replace(of_error("rendezvous", errors[0]), do=do)]
    findings: list[Finding] = outcomes[0].value
    return findings


def _one_of_two(comm: Communicator, started: float, timeout: float, backend: str) -> list[Finding]:
    return _examined(comm, own_facts(comm.rank, time.time() - started), timeout, backend)


def _examined(comm: Communicator, facts: RankFacts, timeout: float, backend: str) -> list[Finding]:
    """Gather the findings and facts of all ranks, compare, and measure."""
    ranks = all_gather_object(facts, comm=comm, name="facts")
    findings = [*merged([rank.findings for rank in ranks]), *compared(ranks, backend)]
    if not on_gpus(ranks, backend):
        return findings + measured(comm)
    torch.cuda.set_device(facts.local_rank % torch.cuda.device_count())
    group = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout))
    return findings + measured(comm, GroupCommunicator(group))


@dataclass(frozen=True, slots=True)
class _Rank:
    """This process as one rank of a job that a launcher started."""

    place: Environment
    own: list[Finding]
    timeout: float
    backend: str
    as_json: bool

    def run(self) -> int:
        """Meet, compare, measure, show; end the process where it failed, for groups may hang."""
        limit = 3 * self.timeout + _SPARE
        watchdog = threading.Timer(limit, self._give_up, [limit])
        watchdog.daemon = True
        watchdog.start()
        try:
            findings, whole = self._examined_or_broken()
        finally:
            watchdog.cancel()
        if not whole:
            _exit_now()
        dist.destroy_process_group()
        return failed(findings)

    def _examined_or_broken(self) -> tuple[list[Finding], bool]:
        """Return the findings once they were shown, and whether the group is whole."""
        meeting, started = None, time.monotonic()
        try:
            place = reachable(self.place)
            meeting = Meeting(open_store(place, os.environ, self.timeout), place, self.timeout)
            meeting.sign_in()
            findings, whole = self._connected(meeting, started), True
        except (DistmetricsError, RuntimeError) as error:
            findings, whole = [*self.own, of_error("rendezvous", error)], False
        self._tell(findings, alone=not whole)
        if meeting is not None:
            meeting.part()
        return findings, whole

    def _connected(self, meeting: Meeting, started: float) -> list[Finding]:
        """Connect all ranks, and examine them; an error names the ranks that no longer answer."""
        rank = self.place.rank
        try:
            dist.init_process_group(
                "gloo",
                store=PrefixStore("group", meeting.store),
                rank=rank,
                world_size=self.place.world_size,
                timeout=timedelta(seconds=self.timeout),
            )
            comm = GroupCommunicator()
            GroupCommunicator.register(comm)
            facts = own_facts(self.place.local_rank, time.monotonic() - started, self.own)
            return _examined(comm, facts, self.timeout, self.backend)
        except (DistmetricsError, RuntimeError) as error:
            lost = meeting.lost()
            if not lost:
                raise
            raise PeerLostError(
                f"{who(lost)} stopped answering",
                per_rank={rank: f"waited: {first_line(error)}"}
                | dict.fromkeys(lost, "does not answer"),
                likely="the process was killed or stopped, or its machine is gone.",
                do=f"read the log of {who(lost)}, and the kernel's log of its machine (dmesg: out "
                "of memory?).",
            ) from error

    def _give_up(self, limit: float) -> None:
        """End this process, which hangs in a call; in the watchdog's thread."""
        error = PeerLostError(
            f"no end after {limit:g} s, and the store of the job does not answer",
            likely="the process or machine of rank 0 is stopped, or another program has "
            "MASTER_PORT there.",
            do="see that rank 0 runs, and that nothing else listens on its port.",
        )
        try:
            self._tell([*self.own, of_error("rendezvous", error)], alone=True)
        finally:
            _exit_now()

    def _tell(self, findings: list[Finding], *, alone: bool) -> None:
        """Show the findings on rank 0; others speak too where rank 0 could not hear of them."""
        if self.place.rank == 0:
            show(findings, self.as_json, self.place.launcher, self.place.world_size)
        elif alone:
            bad = [finding for finding in findings if finding.status != "ok"]
            sys.stderr.write(f"distmetrics doctor, rank {self.place.rank}:\n{plain(bad)}\n")


def _exit_now() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def show(
    findings: Sequence[Finding], as_json: bool, launcher: str = "", world_size: int = 1
) -> None:
    """Print JSON, or a table (plain lines where rich is not installed) and how it came out."""
    if as_json:
        report = {"ok": not failed(findings), "launcher": launcher, "world_size": world_size}
        report["findings"] = [asdict(finding) for finding in findings]
        print(json.dumps(report, indent=1), flush=True)  # noqa: T201
        return
    if importlib.util.find_spec("rich") is None:
        print(plain(findings))  # noqa: T201
    else:
        from rich.text import Text

        grid = table("", "check", "found")
        for finding in findings:
            status = Text(finding.status, _COLOUR[finding.status])
            grid.add_row(status, finding.name, Text(finding.text))
        console().print(grid)
    counts = {status: sum(each.status == status for each in findings) for status in _COLOUR}
    warnings = f"{counted(counts['warn'], 'warning')}, {counts['ok']} ok."
    print(f"{counted(counts['fail'], 'check')} failed, {warnings}", flush=True)  # noqa: T201


def plain(findings: Sequence[Finding]) -> str:
    """Return one finding a line, with further lines below it.

    >>> print(plain([Finding("names", "fail", "no address", "mend it", (1,))]))
    fail  names          rank 1: no address
                         Do: mend it
    """
    texts = (f"{each.status:<4}  {each.name:<14} {each.text}" for each in findings)
    return "\n".join(text.replace("\n", _NEXT_LINE) for text in texts)

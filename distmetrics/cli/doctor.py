"""``python -m distmetrics doctor``: what is wrong with a machine or a job, before a training run.

Alone it looks at this machine and starts two processes. Under a launcher every rank looks at its
own, they meet, and compare: the table and the exit code are the same on all of them. Nothing waits
for longer than it is told to.
"""

import faulthandler
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.cli.console import counted
from distmetrics.cli.doctor_checks import Finding, launcher, merged, of_error, own_checks
from distmetrics.cli.doctor_meeting import open_store, sign_in
from distmetrics.cli.doctor_ranks import (
    devices,
    measured,
    on_gpus,
    own_gpu,
    own_versions,
    rendezvous,
    versions,
)
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import DistmetricsError
from distmetrics.guard.settings import Settings, put_in_force
from distmetrics.launch.environment import Environment, reachable
from distmetrics.launch.joining import exit_now
from distmetrics.launch.spawn import launch

_SPARE = 10.0  # seconds in which a wait that is over is also told
_PARTING = 3.0  # seconds for the other ranks to say why, before a launcher ends them
_NEXT_LINE = "\n" + 21 * " "


def doctor(*, timeout: float, backend: str, as_json: bool) -> int:
    """Check, show the findings; return 1 if a check failed, else 0.

    Args:
        timeout: seconds that ranks have to come, and that a collective may take.
        backend: "gloo" or "nccl", or "auto" for nccl where each rank has a GPU to itself.
        as_json: print JSON.
    """
    place, launched = launcher(os.environ)
    findings = [launched, *own_checks(os.environ, place)]
    # It watches over itself, whatever the guard's variables say.
    with put_in_force(Settings("off")):
        if place is not None:
            return _in_job(place, findings, backend, timeout, as_json)
        # Nobody knows who the ranks are where the variables contradict.
        if launched.status == "ok":
            findings += _two_processes(timeout, backend)
    show(findings, as_json)
    return min(1, failed(findings))


def _examined(
    comm: Communicator,
    started: float,
    place: Environment | None,
    own: Sequence[Finding],
    backend: str,
    timeout: float,
) -> list[Finding]:
    """Gather the findings and facts of all ranks, compare, and measure.

    Args:
        comm: of all ranks.
        started: when this rank was, by the clock.
        place: who this process is, where a launcher says so.
        own: findings of this process alone.
        backend: whose speed is measured.
        timeout: seconds that a collective may take.
    """
    local_rank = place.local_rank if place else comm.rank
    facts = [asdict(finding) for finding in own], own_versions(), own_gpu(local_rank)
    heard = gather_objects((*facts, time.time() - started), _read, "facts", comm=comm)
    of_ranks, versions_of, gpus, seconds = zip(*heard, strict=True)
    findings = merged(of_ranks)
    findings += [rendezvous(seconds), versions(versions_of), devices(gpus, backend)]
    if on_gpus(gpus, backend):
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        limit = timedelta(seconds=timeout)
        comm = GroupCommunicator(dist.new_group(backend="nccl", timeout=limit))
    return findings + measured(comm)


def _read(facts: Any) -> tuple[list[Finding], str, str, float]:
    """Return what a peer has told; raise anything for what is none."""
    findings, versions_of, gpu, seconds = facts
    return [Finding(**fields) for fields in findings], str(versions_of), str(gpu), float(seconds)


def _two_processes(timeout: float, backend: str) -> list[Finding]:
    """Start two processes of this machine, and examine them as a job of two ranks."""
    if backend == "auto" and torch.cuda.device_count() < 2:
        backend = "gloo"
    job = time.time(), None, (), backend, timeout
    connect = partial(dist.init_process_group, timeout=timedelta(seconds=timeout))
    outcomes = launch(_examined, 2, *job, connect=connect, limit=2 * timeout)
    for outcome in outcomes:
        if outcome.error is not None:
            return [of_error("rendezvous", outcome.error)]
    findings: list[Finding] = outcomes[0].value
    return findings


def _in_job(
    place: Environment,
    own: Sequence[Finding],
    backend: str,
    timeout: float,
    as_json: bool,
) -> int:
    """Meet the other ranks, compare, measure, show; end the process where that fails."""
    started = time.time()
    # Where a call hangs that nobody answers, this shows where, and ends the process.
    faulthandler.dump_traceback_later(3 * timeout + _SPARE, exit=True)
    try:
        comm = _connected(place, timeout)
        findings = _examined(comm, started, place, own, backend, timeout)
    except (DistmetricsError, RuntimeError) as error:
        findings = [*own, of_error("rendezvous", error)]
        if place.rank == 0:
            show(findings, as_json, place)
        else:
            bad = [finding for finding in findings if finding.status != "ok"]
            sys.stderr.write(f"distmetrics doctor, rank {place.rank}:\n{plain(bad)}\n")
        time.sleep(_PARTING)
        # The ordinary way out may hang in a broken group.
        exit_now()
    finally:
        faulthandler.cancel_dump_traceback_later()
    if place.rank == 0:
        show(findings, as_json, place)
    # Launchers end a job when one process fails: none does before rank 0 has shown all.
    dist.barrier()
    dist.destroy_process_group()
    return min(1, failed(findings))


def _connected(place: Environment, timeout: float) -> Communicator:
    """Return the communicator of all ranks, once they have met.

    Raises:
        PeerLostError: a rank did not come in time.
        ConfigurationError: the ranks contradict each other.
        RuntimeError: the ranks came, and can't reach each other.
    """
    place = reachable(place)
    store = open_store(place, os.environ, timeout)
    sign_in(store, place, timeout)
    dist.init_process_group(
        "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout),
    )
    return GroupCommunicator.of(dist.group.WORLD)


def failed(findings: Sequence[Finding]) -> int:
    """Return the number of checks that failed."""
    return sum(finding.status == "fail" for finding in findings)


def show(findings: Sequence[Finding], as_json: bool, place: Environment | None = None) -> None:
    """Print JSON, or a line for each finding and how it came out."""
    if as_json:
        report = {
            "ok": not failed(findings),
            "launcher": place.launcher if place else "",
            "world_size": place.world_size if place else 1,
            "findings": [asdict(finding) for finding in findings],
        }
        text = json.dumps(report, indent=1)
    else:
        text = f"{plain(findings)}\n{counted(failed(findings), 'check')} failed."
    print(text, flush=True)  # noqa: T201


def plain(findings: Sequence[Finding]) -> str:
    """Return one finding a line, with further lines below it.

    >>> print(plain([Finding("names", "fail", "no address", "mend it", (1,))]))
    fail  names          rank 1: no address
                         Do: mend it
    """
    lines = []
    for each in findings:
        text = each.text.replace("\n", _NEXT_LINE)
        lines.append(f"{each.status:<4}  {each.name:<14} {text}")
    return "\n".join(lines)

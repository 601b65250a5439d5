"""``python -m distmetrics doctor``: what is wrong with a machine, or with a job, before a training
run finds out.

Alone it looks at this machine and starts two processes. Under a launcher every rank looks at its
own, they meet, and compare: what is shown, and the exit code, are the same on all of them. Nothing
waits for longer than it is told to.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from distmetrics.cli import doctor_environ, doctor_table
from distmetrics.cli.doctor_checks import machine_checks
from distmetrics.cli.doctor_finding import Finding, Status, failed, merged, of_error
from distmetrics.cli.doctor_join import Meeting, Watchdog, found_store
from distmetrics.cli.doctor_machine import Machine, this_machine
from distmetrics.cli.doctor_measure import measure
from distmetrics.cli.doctor_ranks import Facts, chosen_backend, compared
from distmetrics.collectives.ops import all_gather_object
from distmetrics.comm.base import Communicator
from distmetrics.comm.group import GroupCommunicator
from distmetrics.errors import DistmetricsError, PeerLostError, compose, who
from distmetrics.launch.environment import reachable
from distmetrics.launch.place import Environment
from distmetrics.launch.processes import launch
from distmetrics.liveness.settings import Settings, put_in_force

_ALONE = 2  # processes that are started where nothing launched a job
_LOOKUP = 10.0  # seconds for an answer of a name server, of a longer time-out
_BACKEND_SAYS = "The backend says: "  # in an error of a communicator
_SPARE = 10.0  # seconds in which a wait that is over is also told


@dataclass(frozen=True, slots=True)
class Options:
    """How to look.

    Attributes:
        timeout: seconds that ranks have to come, and that a collective may take.
        backend: "gloo" or "nccl", or "auto" for nccl where each rank has a GPU to itself.
        as_json: print JSON.
    """

    timeout: float = 30.0
    backend: str = "auto"
    as_json: bool = False


def doctor(options: Options) -> int:
    """Check, show what was found; return 1 if a check failed, else 0."""
    with put_in_force(
        Settings("off")
    ):  # it watches over itself, whatever the variables say, which it looks at
        return _look(options)


def _look(options: Options) -> int:
    machine = this_machine(min(_LOOKUP, options.timeout / 4))
    environment, launcher = doctor_environ.launcher(os.environ)
    local = _local(machine, environment, launcher)
    if environment is not None:
        return _Job(options, machine, environment, local).run()
    if launcher.status == "ok":
        found = [*local, _gpus(machine, options.backend), *_two_processes(options, machine)]
    else:
        found = [
            *local,
            Finding("rendezvous", "warn", "not tried: who the ranks are is not known", launcher.do),
        ]
    _show(found, options, "", 1)
    return int(failed(found))


def _local(machine: Machine, environment: Environment | None, launcher: Finding) -> list[Finding]:
    environ = os.environ
    several = environment is not None and environment.local_world_size < environment.world_size
    versions, *others = machine_checks(machine, environ, several=several)
    return [
        versions,
        launcher,
        doctor_environ.main_address(environ, environment, machine),
        doctor_environ.main_port(environ, environment, machine),
        doctor_environ.threads(environ, environment, machine),
        doctor_environ.settings(environ),
        *others,
    ]


def _show(findings: list[Finding], options: Options, launcher: str, world_size: int) -> None:
    if options.as_json:
        print(doctor_table.as_json(findings, launcher=launcher, world_size=world_size), flush=True)  # noqa: T201
    else:
        doctor_table.show(findings)


def _gpus(machine: Machine, backend: str) -> Finding:
    """Tell of this machine's GPUs; that ranks share one can only be seen in their job."""
    if not machine.gpus and backend == "nccl":
        return Finding(
            "devices", "fail", "no GPU", "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use gloo."
        )
    if not machine.gpus:
        return Finding("devices", "ok", "no GPU")
    kinds = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    said = f"{len(machine.gpus)} GPU{'s' * (len(machine.gpus) > 1)}: {kinds}"
    if "nccl" not in machine.backends:
        bad: Status = "fail" if backend == "nccl" else "warn"
        return Finding(
            "devices",
            bad,
            f"{said}, and torch has no nccl",
            "install a build of torch that has it.",
        )
    if len(machine.gpus) < _ALONE and backend == "nccl":
        return Finding(
            "devices", "fail", f"{said}: too few for two ranks of nccl", "leave out --backend nccl."
        )
    return Finding("devices", "ok", said)


def _two_processes(options: Options, machine: Machine) -> list[Finding]:
    """Start two processes of this machine, and measure between them."""
    fast = len(machine.gpus) >= _ALONE and "nccl" in machine.backends and options.backend != "gloo"
    connect = functools.partial(dist.init_process_group, timeout=timedelta(seconds=options.timeout))
    started, limit = time.time(), 2 * options.timeout
    ended = launch(
        _one_of_two, _ALONE, fast, started, options.timeout, connect=connect, limit=limit
    )
    errors = [outcome.error for outcome in ended if outcome.error is not None]
    if errors:
        do = "see the other checks; if the machine is just slow, give a longer --timeout."
        return [replace(of_error("rendezvous", errors[0]), do=do)]
    found: list[Finding] = ended[0].value
    return found


def _one_of_two(comm: Communicator, fast: bool, started: float, timeout: float) -> list[Finding]:
    seconds = max(all_gather_object(time.time() - started, comm=comm, name="start"))
    said = f"{_ALONE} processes of this machine started and connected in {seconds:.1f} s"
    group = _over_gpus(comm.rank, timeout) if fast else None
    begin: Callable[[str], None] = lambda what: None  # noqa: E731  (the parent has the clock)
    return [
        Finding("rendezvous", "ok", said, numbers={"seconds": seconds}),
        *measure(comm, group, step=begin),
    ]


def _over_gpus(local_rank: int, timeout: float) -> GroupCommunicator:
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return GroupCommunicator(dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout)))


class _Job:
    """This process as one rank of a job that a launcher started."""

    def __init__(
        self, options: Options, machine: Machine, environment: Environment, local: list[Finding]
    ) -> None:
        self._options, self._machine = options, machine
        self._environment, self._local = environment, local
        self._meeting: Meeting | None = None
        self._step = ""
        self._deaf = (
            options.timeout
        )  # seconds that a rank may wait for a lost one, and hear of nothing
        # A collective that waits for a lost rank ends after the time-out; only then it is asked who
        # is left.
        self._watchdog = Watchdog(2 * options.timeout + _SPARE, self._give_up)

    def run(self) -> int:
        """Meet, compare, measure, show; end the process where the group is broken, which could hang
        the way out.
        """
        with self._watchdog:
            try:
                waited = self._meet()
            except (DistmetricsError, RuntimeError) as error:
                self._tell([*self._local, of_error("rendezvous", error)], alone=True)
                return 1
            try:
                found = self._examine(waited)
            except (DistmetricsError, RuntimeError) as error:
                self._tell([*self._local, of_error("group", self._named(error))], alone=True)
                _exit_now()
            self._tell(found)
            dist.destroy_process_group()
        return int(failed(found))

    def _begin(self, step: str) -> None:
        self._step = step
        self._watchdog.step(step)

    def _meet(self) -> float:
        """Meet the other ranks at the store; return how many seconds this one waited."""
        self._begin("the meeting of all ranks")
        deadline = time.monotonic() + self._options.timeout
        self._environment = found = reachable(self._environment)
        store = found_store(found, os.environ, deadline)
        where = f"{found.main_address}:{found.main_port}"
        self._meeting = Meeting(store, found, where, self._options.timeout)
        return self._meeting.sign_in(deadline)

    def _examine(self, waited: float) -> list[Finding]:
        """Connect, gather what each rank found, compare it, and measure."""
        assert self._meeting is not None
        self._begin("the connection of all ranks")
        started, timeout, place = time.monotonic(), self._options.timeout, self._environment
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("group", self._meeting.store),  # type: ignore[attr-defined]
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout),
        )
        comm = GroupCommunicator(departures=self._meeting.departures)
        GroupCommunicator.register(comm)
        self._deaf = 0.0
        mine = self._facts(waited, time.monotonic() - started)
        self._begin("the exchange of what ranks found")
        facts = all_gather_object(mine, comm=comm, name="facts")
        found = [
            *merged([fact.findings for fact in facts]),
            *compared(facts, self._options.backend),
        ]
        group = None
        if chosen_backend(facts, self._options.backend) == "nccl":
            self._begin("the connection of all GPUs")
            group = _over_gpus(place.local_rank, timeout)
        return [*found, *measure(comm, group, step=self._begin)]

    def _facts(self, waited: float, connected: float) -> Facts:
        return Facts(
            findings=tuple(self._local),
            host=self._machine.host,
            boot=self._machine.boot,
            local_rank=self._environment.local_rank,
            local_world_size=self._environment.local_world_size,
            versions=self._machine.versions,
            backends=self._machine.backends,
            gpus=self._machine.gpus,
            waited=waited,
            connected=connected,
        )

    def _named(self, error: Exception) -> Exception:
        """Name the ranks that do not answer any more, if there are such."""
        assert self._meeting is not None
        me = self._environment.rank
        self._watchdog.step("the roll call")
        try:
            missing = self._meeting.roll_call(f"failed during {self._step}", self._deaf)
        except (
            RuntimeError
        ):  # the store went, with the process that hosts it: nobody can be told any more
            missing, self._meeting = [0], None
        if not missing or me in missing:
            return error
        said = [line for line in str(error).splitlines() if line.startswith(_BACKEND_SAYS)]
        text = compose(
            f"{who(missing)} stopped answering during {self._step}",
            {me: f"waited for {'it' if len(missing) == 1 else 'them'}"}
            | dict.fromkeys(missing, "does not answer"),
            notes=said or [f"{_BACKEND_SAYS}{error}"],
            likely="the process was killed or stopped, or its machine is gone.",
            do=f"read the log of {who(missing)}, and the kernel's log of its machine (dmesg: out "
            "of memory?).",
        )
        return PeerLostError(text, rank=me, peers=missing)

    def _give_up(self, step: str, limit: float) -> None:
        """End this process, which hangs in a call; in the watchdog's thread."""
        text = compose(
            f"{step} has not ended after {limit:g} s, and the store of the job does not answer",
            {},
            likely="the process or machine of rank 0 is stopped, or another program has "
            "MASTER_PORT there.",
            do="see that rank 0 runs, and that nothing else listens on its port.",
        )
        self._meeting = None  # it may be the store that hangs
        try:
            self._tell(
                [*self._local, of_error("group", PeerLostError(text, rank=self._environment.rank))],
                alone=True,
            )
        finally:
            _exit_now()

    def _tell(self, found: list[Finding], *, alone: bool = False) -> None:
        """Show what was found on rank 0; the others speak too where rank 0 could not hear of them."""
        rank, world_size = self._environment.rank, self._environment.world_size
        if rank == 0:
            _show(found, self._options, self._environment.launcher, world_size)
        elif alone:
            doctor_table.complain(rank, found)
        if self._meeting is not None:
            self._meeting.part()


def _exit_now() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)

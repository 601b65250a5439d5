"""``python -m distmetrics doctor``: what is wrong with a machine or a job, before a training run.

Alone it looks at this machine and starts two processes. Under a launcher every rank looks at its
own machine, the ranks meet, and compare: rank 0 prints, and all ranks have the same exit code.
Nothing waits for longer than it is told to.
"""

import faulthandler
import ipaddress
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics._version import __version__
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    PeerLostError,
    by_line,
    compose,
    first_line,
    who,
)
from distmetrics.guard.settings import Settings, put_in_force
from distmetrics.launch.environment import Environment, detect, reachable
from distmetrics.launch.joining import exit_now
from distmetrics.launch.spawn import launch

_SPARE = 10.0  # seconds in which a wait that is over is also told
_PARTING = 3.0  # seconds for the other ranks to say why, before a launcher ends them
_POLL = 0.02  # seconds between looks into the store, and between tries to reach rank 0
_SLOW_LOOKUP = 1.0  # seconds; a name server that works takes milliseconds
_PAYLOAD = 16 << 20  # bytes
_SLOW, _STALL = 0.010, 0.100  # seconds of 8 bytes: the median, the 99th percentile
_NARROW = {"cpu": 0.1e9, "cuda": 1e9}  # bytes a second: gigabit Ethernet; any bus of GPUs
_NETWORK = "look for a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) or a slow network."
_LATER = "if the ranks are just slow, give a longer --timeout."


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``ranks`` is empty where it is about the job as a whole."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""
    ranks: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)  # what was measured

    def __str__(self) -> str:
        text = f"{who(self.ranks)}: {self.found}" if self.ranks else self.found
        lines = [*text.splitlines(), *([f"Do: {self.do}"] if self.do else [])]
        return f"{self.status:<4}  {self.name:<14} " + f"\n{'':21}".join(lines)


def doctor(*, timeout: float, backend: str, as_json: bool) -> int:
    """Check, show the findings; return 1 if a check failed, else 0.

    Args:
        timeout: seconds that ranks have to come, and that a collective may take.
        backend: "gloo" or "nccl", or "auto" for nccl where each rank has a GPU to itself.
        as_json: print JSON.
    """
    place = detect()
    several = place is not None and place.local_world_size < place.world_size
    there = [name for _, name in socket.if_nameindex()]
    # gloo looks the name up for each group, unless it is told an interface.
    is_used = several and "GLOO_SOCKET_IFNAME" not in os.environ
    own = [host_name(socket.gethostname(), is_used), interfaces(there, os.environ, several)]
    # It watches over itself, whatever the guard's variables say.
    with put_in_force(Settings("off")):
        if place is not None:
            return _in_job(place, own, timeout, backend, as_json)
        findings = [*own, *_two_processes(timeout, backend)]
    return show(findings, as_json)


def _two_processes(timeout: float, backend: str) -> list[Finding]:
    """Start two processes of this machine, and examine them as a job of two ranks."""
    if backend == "auto" and torch.cuda.device_count() < 2:
        backend = "gloo"
    connect = partial(dist.init_process_group, timeout=timedelta(seconds=timeout))
    job: tuple[Any, ...] = ([], None, time.time(), timeout, backend)
    outcomes = launch(_examined, 2, *job, connect=connect, limit=2 * timeout)
    errors = [of_error(outcome.error) for outcome in outcomes if outcome.error is not None]
    return errors[:1] or outcomes[0].value


def _in_job(
    place: Environment, own: list[Finding], timeout: float, backend: str, as_json: bool
) -> int:
    """Meet the other ranks, compare, measure, show; end the process where that fails."""
    started = time.time()
    # Where a call hangs that nobody answers, this shows where, and ends the process.
    faulthandler.dump_traceback_later(3 * timeout + _SPARE, exit=True)
    try:
        comm = _connected(reachable(place), timeout)
        findings = _examined(comm, own, place.local_rank, started, timeout, backend)
    except (DistmetricsError, RuntimeError) as error:
        findings = [*own, of_error(error)]
        show(findings, as_json, place)
        if place.rank > 0:
            bad = [f"{finding}\n" for finding in findings if finding.status != "ok"]
            sys.stderr.writelines([f"distmetrics doctor, rank {place.rank}:\n", *bad])
        time.sleep(_PARTING)
        # The ordinary way out may hang in a broken group.
        exit_now()
    finally:
        faulthandler.cancel_dump_traceback_later()
    exit_code = show(findings, as_json, place)
    # Launchers end a job when one process fails: none does before rank 0 has shown all.
    dist.barrier()
    dist.destroy_process_group()
    return exit_code


def _connected(place: Environment, timeout: float) -> Communicator:
    """Return the communicator of all ranks, once all have come."""
    store, limit = open_store(place, timeout), timedelta(seconds=timeout)
    sign_in(store, place, timeout)
    at: dict[str, Any] = {"rank": place.rank, "world_size": place.world_size, "timeout": limit}
    dist.init_process_group("gloo", store=PrefixStore("group", store), **at)
    return GroupCommunicator.of(dist.group.WORLD)


def sign_in(store: Any, place: Environment, timeout: float) -> None:
    """Sign in at rank 0's store, and return once all ranks have.

    Torch's own rendezvous waits for minutes and says how many came, not who.
    """
    rank = place.rank
    if store.add(f"here/{rank}", 1) > 1:
        raise ConfigurationError(
            f"two processes say that they are rank {rank}; one is on {socket.gethostname()}",
            do="give each process a RANK of its own, or start the job by torchrun.",
        )
    keys, deadline = [f"here/{r}" for r in range(place.world_size)], time.monotonic() + timeout
    while not store.check(keys) and not store.check(["verdict"]) and time.monotonic() < deadline:
        time.sleep(_POLL)
    missing = [r for r, key in enumerate(keys) if not store.check([key])]
    # The first verdict counts, also for those who see more by now: all who came read the same.
    missing = json.loads(store.compare_set("verdict", "", json.dumps(missing)))
    if missing:
        where = f"{place.main_address}:{place.main_port}"
        raise PeerLostError(
            f"{who(missing)} of {place.world_size} never came to {where} within {timeout:g} s",
            likely="the process did not start or failed before it came here, or can't reach that "
            "address (a firewall), or has another MASTER_ADDR, MASTER_PORT or WORLD_SIZE.",
            do=f"read the log of {who(missing)}; {_LATER}",
        )


def open_store(place: Environment, timeout: float) -> Any:
    """Open the job's store at rank 0's address, or reach it there."""
    # A restarted job has the same store of torchrun's agent, in which the first one's ranks signed.
    # Ranks that disagree on how many they are do not meet.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    host, port = place.main_address, place.main_port
    hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    limit, deadline = timedelta(seconds=timeout), time.monotonic() + timeout
    try:
        while not hosts:  # torch's own waiting for a listener writes pages of stacks
            try:
                socket.create_connection((host, port), timeout).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)
        tcp: Any = dist.TCPStore  # type: ignore[attr-defined]
        store = tcp(host, port, None, hosts, limit, wait_for_workers=False)
    except (OSError, OverflowError, UnicodeError, RuntimeError) as error:
        raise PeerLostError(
            f"rank {place.rank} can't open rank 0's store at {host}:{port} within {timeout:g} s; "
            f"the last answer: {first_line(error)}",
            likely="rank 0 did not start or failed early, another program has its port, a firewall "
            "is between them, or MASTER_ADDR and MASTER_PORT are not those of rank 0.",
            do="read rank 0's log; set MASTER_ADDR to its machine and MASTER_PORT to a free port "
            f"of it, the same on all ranks; {_LATER}",
        ) from error
    return PrefixStore(f"distmetrics doctor {attempt} of {place.world_size}", store)


def _examined(
    comm: Communicator,
    own: list[Finding],
    local_rank: int | None,
    started: float,
    timeout: float,
    backend: str,
) -> list[Finding]:
    """Gather the findings and facts of all ranks, compare, and measure."""
    local_rank = comm.rank if local_rank is None else local_rank
    version, came = f"torch {torch.__version__}, distmetrics {__version__}", time.time() - started
    facts = [asdict(one) for one in own], version, _own_gpu(local_rank), came
    ranks = gather_objects(facts, _read, "facts", comm=comm)
    of_ranks, versions_of, gpus, seconds = zip(*ranks, strict=True)
    text = f"{len(seconds)} ranks connected in {max(seconds):.1f} s"
    rendezvous = Finding("rendezvous", "ok", text, numbers={"seconds": max(seconds)})
    device = devices(gpus, backend)
    if device.found.startswith("nccl"):
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        limit = timedelta(seconds=timeout)
        comm = GroupCommunicator(dist.new_group(backend="nccl", timeout=limit))
    measured = speeds(_times(comm, 8, 200), _times(comm, _PAYLOAD, 5), comm)
    return [*merged(of_ranks), rendezvous, versions(versions_of), device, *measured]


def _read(facts: Any) -> tuple[list[Finding], str, str, float]:
    """Return what a peer has told. Raises if it is malformed."""
    findings, version, gpu, seconds = facts
    return [Finding(**fields) for fields in findings], str(version), str(gpu), float(seconds)


def _own_gpu(local_rank: int) -> str:
    """Return kind and uuid of the GPU that a script takes by its local rank, "" without NCCL."""
    count = torch.cuda.device_count()
    if not count or not dist.is_nccl_available():
        return ""
    properties = torch.cuda.get_device_properties(local_rank % count)
    return f"{properties.name} {properties.uuid}"


def _times(comm: Communicator, size: int, rounds: int) -> list[float]:
    """Return the seconds of all_reduces by this rank's clock, after one to warm up."""
    data = torch.zeros(size // 8, dtype=torch.float64, device=comm.device)
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        comm.all_reduce(data, "sum")
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def host_name(name: str, is_used: bool) -> Finding:
    """Look up this machine's own name; ``is_used``: by other machines too."""
    text = f"the host name {name}"
    do = f"put {name} with the address of its network into /etc/hosts, or set GLOO_SOCKET_IFNAME."
    started = time.perf_counter()
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        status: Literal["warn", "fail"] = "fail" if is_used else "warn"
        return Finding("names", status, f"{text} does not resolve: {error}", do)
    seconds = time.perf_counter() - started
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    text += f" resolves to {', '.join(addresses)}"
    if is_used and all(ipaddress.ip_address(each).is_loopback for each in addresses):
        return Finding("names", "fail", f"{text}, where other machines can't reach it", do)
    if seconds >= _SLOW_LOOKUP:
        text += f", after {seconds:.1f} s: each connection waits for that"
        return Finding("names", "warn", text, f"mend the name server (/etc/resolv.conf), or {do}")
    return Finding("names", "ok", text)


def interfaces(there: Sequence[str], environ: Mapping[str, str], several: bool) -> Finding:
    """Refuse interfaces that gloo or NCCL are told to take and that are not there, or not reached.

    ``there`` are the interfaces of this machine; ``several``: the job is on several machines.
    """
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = environ.get(variable, "")
        # NCCL takes exact names after =, and all others after ^.
        if not value or value[0] in "=^":
            continue
        names = tuple(value.split(","))
        if variable == "NCCL_SOCKET_IFNAME":  # which are prefixes
            taken = [name for name in there if name.startswith(names)]
        else:
            taken = [*names] if {*names} <= {*there} else []
        if not taken or (several and all(name.startswith("lo") for name in taken)):
            problem = "is not reached from other machines" if taken else "is not there"
            text = f"{variable}={value} {problem}; there are: {', '.join(there)}"
            do = f"unset {variable}, or set it to the interface of the job's network."
            return Finding("interfaces", "fail", text, do)
    return Finding("interfaces", "ok", ", ".join(there))


def versions(of_ranks: Sequence[str]) -> Finding:
    """Compare the ranks' versions."""
    if len({*of_ranks}) == 1:
        return Finding("versions", "ok", of_ranks[0])
    text = compose("ranks have different versions", dict(enumerate(of_ranks)))
    return Finding("versions", "fail", text, "install the same versions on all machines.")


def devices(gpus: Sequence[str], backend: str) -> Finding:
    """Check that each rank has a GPU to itself, and NCCL to use it, unless all is done on gloo."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    if backend == "gloo" or (backend == "auto" and len(without) == len(gpus)):
        return Finding("devices", "ok", "gloo, on the processors")
    if without:
        text = f"no GPU, or a torch without nccl, for {who(without)}"
        do = "see nvidia-smi, CUDA_VISIBLE_DEVICES, and what the scheduler was asked for."
        return Finding("devices", "fail", text, do)
    if len({*gpus}) < len(gpus):
        text = compose("ranks share a GPU", dict(enumerate(gpus)))
        do = "start no more ranks than GPUs, and let each see its own or take cuda:LOCAL_RANK."
        return Finding("devices", "fail", text, do)
    return Finding("devices", "ok", f"nccl, a GPU of its own for each rank: {gpus[0]}")


def speeds(small: Sequence[float], large: Sequence[float], comm: Communicator) -> list[Finding]:
    """Judge the seconds that collectives of 8 bytes took, and those of 16 MiB."""
    median = statistics.median(small)
    late = statistics.quantiles(small, n=100, method="inclusive")[-1]
    # As if all moved over one wire of each rank: out to the others, and back.
    speed = 2 * _PAYLOAD * (1 - 1 / comm.world_size) / statistics.median(large)
    times = f"median {median * 1e3:.2f} ms, 99th percentile {late * 1e3:.2f} ms"
    wide = f"all_reduce of {_PAYLOAD >> 20} MiB: {speed / 1e9:.2f} GB/s over the bus of each rank"
    numbers: dict[str, float] = {"median_s": median, "p99_s": late}
    findings = [
        Finding("latency", "ok", f"all_reduce of 8 bytes: {times}", numbers=numbers),
        Finding("bandwidth", "ok", wide, numbers={"all_reduce_bytes_per_s": speed}),
    ]
    slow = median >= _SLOW or late >= _STALL, 0 < speed < _NARROW[comm.device.type]
    for place, is_slow in enumerate(slow):
        if is_slow:
            findings[place] = replace(findings[place], status="warn", do=_NETWORK)
    return findings


def of_error(error: BaseException) -> Finding:
    """Return an error as a rendezvous that failed, whose advice stands apart."""
    if isinstance(error, DistmetricsError):
        text = compose(error.what, error.per_rank, notes=error.notes, likely=error.likely)
        return Finding("rendezvous", "fail", text, error.do)
    do = f"see the other checks, and that no firewall is between the ranks; {_LATER}"
    return Finding("rendezvous", "fail", f"{type(error).__name__}: {error}", do)


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return each check's findings: one where all ranks agree, else one for each that differs.

    Ranks on which a check is fine are told together, in the words of the first of them.

    >>> ok, bad = Finding("names", "ok", "fine"), Finding("names", "fail", "no address", "mend it")
    >>> [(finding.status, finding.ranks) for finding in merged([[ok], [bad], [ok]])]
    [('ok', (0, 2)), ('fail', (1,))]
    """
    findings = []
    for of_check in zip(*by_rank, strict=True):
        texts = ["" if finding.status == "ok" else finding.found for finding in of_check]
        groups = by_line(dict(enumerate(texts)))
        for ranks in groups.values():
            mine = tuple(ranks) if len(groups) > 1 else ()
            findings.append(replace(of_check[ranks[0]], ranks=mine))
    return findings


def show(findings: Sequence[Finding], as_json: bool, place: Environment | None = None) -> int:
    """Print JSON, or a line for each finding, on rank 0; return the exit code."""
    failed = sum(finding.status == "fail" for finding in findings)
    if as_json:
        report = {
            "ok": not failed,
            "launcher": place.launcher if place else "",
            "world_size": place.world_size if place else 1,
            "findings": [asdict(finding) for finding in findings],
        }
        lines = [json.dumps(report, indent=1)]
    else:
        lines = [*map(str, findings), f"{failed or 'no'} check{'s' * (failed != 1)} failed."]
    if place is None or place.rank == 0:
        print(*lines, sep="\n", flush=True)  # noqa: T201
    return min(1, failed)

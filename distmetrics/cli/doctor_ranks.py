"""The checks of ``doctor`` between ranks: versions, devices, latency and bandwidth."""

from __future__ import annotations

import platform
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics._version import __version__
from distmetrics.cli.console import counted
from distmetrics.cli.doctor_checks import Finding, Status
from distmetrics.collectives.ops import all_gather_object
from distmetrics.comm.base import Communicator
from distmetrics.errors import compose, who

_MUST_AGREE = {"torch", "distmetrics"}  # what talks to itself on the other ranks
_PAYLOAD = 16 << 20  # bytes
_SECONDS = 2.0  # for the collectives of one size
_SLOW, _STALL = 0.010, 0.100  # seconds of 8 bytes: the median, the 99th percentile
_NARROW = {"cpu": 0.1e9, "cuda": 1e9}  # bytes a second: gigabit Ethernet; any bus of GPUs
_NETWORK = "look for a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) or a slow network."


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What a rank tells the others of itself.

    Attributes:
        findings: of its own checks.
        host: the name of its machine.
        versions: of Python and packages.
        nccl: this build of torch has it.
        local_rank: its place on its machine.
        gpu: kind and uuid of the one that a script takes by its local rank; "" if there is none.
        seconds: from its start until all ranks were connected.
    """

    findings: Sequence[Finding] = ()
    host: str = "localhost"
    versions: Mapping[str, str] = field(default_factory=dict)
    nccl: bool = False
    local_rank: int = 0
    gpu: str = ""
    seconds: float = 0.0


def own_facts(local_rank: int, seconds: float, findings: Sequence[Finding] = ()) -> RankFacts:
    """Return what this process tells the others of itself."""
    gpu = ""
    if count := torch.cuda.device_count():
        properties = torch.cuda.get_device_properties(local_rank % count)
        gpu = f"{properties.name} {properties.uuid}"
    known = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "distmetrics": __version__,
    }
    return RankFacts(
        findings=findings,
        host=socket.gethostname(),
        versions=known,
        nccl=dist.is_nccl_available(),
        local_rank=local_rank,
        gpu=gpu,
        seconds=seconds,
    )


def compared(ranks: Sequence[RankFacts], backend: str) -> list[Finding]:
    """Compare the ranks; ``backend``: "auto", "gloo" or "nccl"."""
    return [rendezvous(ranks), versions(ranks), devices(ranks, backend)]


def rendezvous(ranks: Sequence[RankFacts]) -> Finding:
    """Tell how long it took until all ranks were connected, and for whom the others waited."""
    seconds = [rank.seconds for rank in ranks]
    machines = counted(len({rank.host for rank in ranks}), "machine")
    last = f"rank {seconds.index(min(seconds))} came last"
    text = f"{counted(len(ranks), 'rank')} on {machines} connected in {max(seconds):.1f} s; {last}"
    return Finding("rendezvous", "ok", text, numbers={"seconds": max(seconds)})


def versions(ranks: Sequence[RankFacts]) -> Finding:
    """Compare versions: those of torch and of distmetrics must be the same, Python's should."""
    known = ranks[0].versions
    differ = [name for name in known if any(r.versions[name] != known[name] for r in ranks)]
    if not differ:
        text = ", ".join(f"{name} {version}" for name, version in known.items())
        return Finding("versions", "ok", text)
    lines = {
        number: ", ".join(f"{name} {rank.versions[name]}" for name in differ)
        for number, rank in enumerate(ranks)
    }
    text = compose(f"ranks have different versions of {', '.join(differ)}", lines)
    status: Status = "fail" if _MUST_AGREE & set(differ) else "warn"
    return Finding("versions", status, text, "install the same versions on all machines.")


def on_gpus(ranks: Sequence[RankFacts], backend: str) -> bool:
    """Return True if the speed of NCCL is measured: where each rank has a GPU to itself."""
    own = {rank.gpu for rank in ranks if rank.nccl and rank.gpu}
    return len(own) == len(ranks) and backend != "gloo"


def devices(ranks: Sequence[RankFacts], backend: str) -> Finding:
    """Check that each rank has a GPU to itself, and NCCL to use it, unless all is done on gloo."""
    gpus: dict[str, list[int]] = {}
    for number, rank in enumerate(ranks):
        gpus.setdefault(rank.gpu, []).append(number)
    if backend == "gloo" or (backend == "auto" and [*gpus] == [""]):
        return Finding("devices", "ok", "gloo, on the processors")
    if "" in gpus:
        do = "see nvidia-smi, CUDA_VISIBLE_DEVICES, and what the scheduler was asked for."
        return Finding("devices", "fail", f"no GPU for {who(gpus[''])}", do)
    if len(gpus) < len(ranks):
        shared = "\n".join(f"{who(group)}: {gpu}" for gpu, group in gpus.items())
        do = "start no more ranks than GPUs, and let each see its own or take cuda:LOCAL_RANK."
        return Finding("devices", "fail", f"ranks share a GPU\n{shared}", do)
    if not all(rank.nccl for rank in ranks):
        text = "each rank has a GPU, and torch has no nccl: tensors go through the processors"
        do = "install a build of torch that has nccl, or use --backend gloo."
        return Finding("devices", "fail" if backend == "nccl" else "warn", text, do)
    return Finding("devices", "ok", f"nccl, a GPU of its own for each rank: {ranks[0].gpu}")


class Speed(NamedTuple):
    """What a rank measured.

    Attributes:
        median: seconds of a collective of 8 bytes.
        late: the 99th percentile of these.
        bandwidth: bytes a second of large collectives.
        device: "cpu" or "cuda".
    """

    median: float
    late: float
    bandwidth: float
    device: str = "cpu"


def measured(comm: Communicator, fast: Communicator | None = None) -> list[Finding]:
    """Measure collectives, gather, judge; the same findings on every rank.

    Args:
        comm: over gloo.
        fast: over the GPUs, if there are; then speeds are theirs.
    """
    transport = fast or comm
    small = _times(transport, torch.zeros(1, dtype=torch.float64), 200)
    large = _times(transport, torch.zeros(_PAYLOAD // 4), 10)
    # As if all moved over one wire of each rank: out to the others, and back.
    moved = 2 * _PAYLOAD * (comm.world_size - 1) / comm.world_size
    speed = Speed(
        statistics.median(small),
        statistics.quantiles(small, n=100, method="inclusive")[-1],
        moved / statistics.median(large),
        transport.device.type,
    )
    speeds = all_gather_object(speed, comm=comm, name="speeds")
    return [latency(speeds), bandwidth(speeds)]


def _times(comm: Communicator, data: Tensor, most: int) -> list[float]:
    """Return the seconds of all_reduces: as many as fit into two seconds, after one to warm up."""
    data = data.to(comm.device)

    def timed() -> float:
        started = time.perf_counter()
        comm.all_reduce(data, "sum")
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
        return time.perf_counter() - started

    timed()
    slowest = comm.all_reduce(torch.tensor(timed(), device=comm.device), "max")
    rounds = int(_SECONDS / max(float(slowest), 1e-9))  # the same on all ranks
    return [timed() for _ in range(max(2, min(most, rounds)))]


def latency(speeds: Sequence[Speed]) -> Finding:
    """Judge how long a collective of 8 bytes takes."""
    median = statistics.median(speed.median for speed in speeds)
    late = max(speed.late for speed in speeds)
    numbers = {"median_s": median, "p99_s": late}
    text = f"all_reduce of 8 bytes: median {median * 1e3:.2f} ms"
    text += f", 99th percentile {late * 1e3:.2f} ms"
    if median >= _SLOW or late >= _STALL:
        text += ": each small collective of training waits for that"
        return Finding("latency", "warn", text, f"{_NETWORK} Is a machine busy?", numbers=numbers)
    return Finding("latency", "ok", text, numbers=numbers)


def bandwidth(speeds: Sequence[Speed]) -> Finding:
    """Judge how fast large tensors move."""
    middle = statistics.median(speed.bandwidth for speed in speeds)
    text = f"all_reduce of {_PAYLOAD >> 20} MiB: {middle / 1e9:.2f} GB/s over the bus of each rank"
    numbers = {"all_reduce_bytes_per_s": middle}
    if len(speeds) > 1 and middle < _NARROW[speeds[0].device]:
        text += ": gradients will take long"
        return Finding("bandwidth", "warn", text, _NETWORK, numbers=numbers)
    return Finding("bandwidth", "ok", text, numbers=numbers)

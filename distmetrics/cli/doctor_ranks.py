"""The checks of ``doctor`` between ranks: versions, devices, latency and bandwidth."""

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics._version import __version__
from distmetrics.cli.console import counted
from distmetrics.cli.doctor_checks import Finding
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import compose, who

_PAYLOAD = 16 << 20  # bytes
_SLOW, _STALL = 0.010, 0.100  # seconds of 8 bytes: the median, the 99th percentile
_NARROW = {"cpu": 0.1e9, "cuda": 1e9}  # bytes a second: gigabit Ethernet; any bus of GPUs
_NETWORK = "look for a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) or a slow network."


def own_versions() -> str:
    """Return the versions of what talks to itself on the other ranks."""
    return f"torch {torch.__version__}, distmetrics {__version__}"


def own_gpu(local_rank: int) -> str:
    """Return kind and uuid of the GPU that a script takes by its local rank.

    "" if there is none, or torch has no NCCL to use it.
    """
    count = torch.cuda.device_count()
    if not count or not dist.is_nccl_available():
        return ""
    properties = torch.cuda.get_device_properties(local_rank % count)
    return f"{properties.name} {properties.uuid}"


def rendezvous(seconds: Sequence[float]) -> Finding:
    """Tell how many ranks met; ``seconds``: from each one's start until all were connected."""
    most = max(seconds)
    text = f"{counted(len(seconds), 'rank')} connected in {most:.1f} s"
    return Finding("rendezvous", "ok", text, numbers={"seconds": most})


def versions(of_ranks: Sequence[str]) -> Finding:
    """Compare the ranks' versions."""
    if len(set(of_ranks)) == 1:
        return Finding("versions", "ok", of_ranks[0])
    text = compose("ranks have different versions", dict(enumerate(of_ranks)))
    return Finding("versions", "fail", text, "install the same versions on all machines.")


def on_gpus(gpus: Sequence[str], backend: str) -> bool:
    """Return True if the speed of NCCL is measured: where each rank has a GPU to itself."""
    return len({*gpus} - {""}) == len(gpus) and backend != "gloo"


def devices(gpus: Sequence[str], backend: str) -> Finding:
    """Check that each rank has a GPU to itself, and NCCL to use it, unless all is done on gloo."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    if backend == "gloo" or (backend == "auto" and len(without) == len(gpus)):
        return Finding("devices", "ok", "gloo, on the processors")
    if without:
        do = "see nvidia-smi, CUDA_VISIBLE_DEVICES, and what the scheduler was asked for."
        text = f"no GPU, or a torch without nccl, for {who(without)}"
        return Finding("devices", "fail", text, do)
    if not on_gpus(gpus, backend):
        do = "start no more ranks than GPUs, and let each see its own or take cuda:LOCAL_RANK."
        text = compose("ranks share a GPU", dict(enumerate(gpus)))
        return Finding("devices", "fail", text, do)
    return Finding("devices", "ok", f"nccl, a GPU of its own for each rank: {gpus[0]}")


def measured(comm: Communicator) -> list[Finding]:
    """Measure collectives, by this rank's clock: each of them waits for the slowest rank."""
    small = _times(comm, torch.zeros(1, dtype=torch.float64), 200)
    large = _times(comm, torch.zeros(_PAYLOAD // 4), 5)
    # As if all moved over one wire of each rank: out to the others, and back.
    moved = 2 * _PAYLOAD * (comm.world_size - 1) / comm.world_size
    speed = moved / statistics.median(large)
    return [latency(small), bandwidth(speed, comm.device.type)]


def _times(comm: Communicator, data: Tensor, rounds: int) -> list[float]:
    """Return the seconds of all_reduces, after one to warm up."""
    data = data.to(comm.device)
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        comm.all_reduce(data, "sum")
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def latency(seconds: Sequence[float]) -> Finding:
    """Judge how long collectives of 8 bytes took."""
    median = statistics.median(seconds)
    late = statistics.quantiles(seconds, n=100, method="inclusive")[-1]
    numbers = {"median_s": median, "p99_s": late}
    text = (
        f"all_reduce of 8 bytes: median {median * 1e3:.2f} ms, 99th percentile {late * 1e3:.2f} ms"
    )
    if median >= _SLOW or late >= _STALL:
        text += ": each small collective of training waits for that"
        do = f"{_NETWORK} Is a machine busy?"
        return Finding("latency", "warn", text, do, numbers=numbers)
    return Finding("latency", "ok", text, numbers=numbers)


def bandwidth(speed: float, device: str) -> Finding:
    """Judge how many bytes a second of large tensors move; 0 where there is one rank."""
    text = f"all_reduce of {_PAYLOAD >> 20} MiB: {speed / 1e9:.2f} GB/s over the bus of each rank"
    numbers = {"all_reduce_bytes_per_s": speed}
    if 0 < speed < _NARROW[device]:
        text += ": gradients will take long"
        return Finding("bandwidth", "warn", text, _NETWORK, numbers=numbers)
    return Finding("bandwidth", "ok", text, numbers=numbers)

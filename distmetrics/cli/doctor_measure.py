"""What ``doctor`` measures between ranks: clocks, latency, bandwidth, and how fast each rank itself
is.

Each rank measures, all measurements are gathered, and the verdicts are functions of those: the same
on every rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.cli.doctor_finding import Finding
from distmetrics.collectives.ops import all_gather_object
from distmetrics.comm.base import Communicator
from distmetrics.errors import who
from distmetrics.launch.script import naming_the_lost

PAYLOAD = 16 << 20  # bytes
_PINGS = 10
_ROUNDS = (20, 200)  # of small collectives: at least, at most
_PATIENCE = 2.0  # seconds for them
_SLOW_ROUND = 0.5  # seconds; one such round of large collectives is enough
_WORK = {"cpu": 256, "cuda": 2048}  # side of the matrices that a rank multiplies
_SKEWED = 0.1  # seconds; logs of ranks can't be put in order
_SLOW, _STALL = 0.010, 0.100  # seconds of a collective of 8 bytes: the median, the 99th percentile
_NARROW = {
    "cpu": 0.1e9,
    "cuda": 1e9,
}  # bytes a second: gigabit Ethernet; any bus or network of GPUs
_FAR_SLOWER = 3.0
_NOTICED = 0.001  # seconds that an answer must take longer besides: cores of one machine answer 3 times faster


@dataclass(frozen=True, slots=True)
class Clock:
    """What rank 0 learnt of another rank by asking for its time.

    Attributes:
        offset: seconds that its clock is ahead of rank 0's.
        uncertainty: half the fastest round trip: where in it the other looked at its clock is not
            known.
        trip: the median round trip in seconds.
    """

    offset: float
    uncertainty: float
    trip: float


@dataclass(frozen=True, slots=True)
class Speed:
    """What one rank measured.

    Attributes:
        latencies: seconds of each collective of 8 bytes.
        reduce: bytes a second through the bus of an ``all_reduce`` of :data:`PAYLOAD` bytes.
        gather: those of an ``all_gather`` of that much in all.
        work: seconds of a fixed piece of work of its own.
        device: "cpu" or "cuda".
    """

    latencies: tuple[float, ...]
    reduce: float
    gather: float
    work: float
    device: str = "cpu"


def work(device: torch.device) -> float:
    """Return the seconds of a fixed piece of work: the fastest of some, so that a neighbour's
    moment does not count.
    """
    side = _WORK[device.type]
    matrix = torch.ones(side, side, device=device)
    return min([_timed(device, lambda: matrix @ matrix) for _ in range(10)][1:])


def measure(
    comm: Communicator,
    fast: Communicator | None = None,
    *,
    step: Callable[[str], None],
    alone: float | None = None,
) -> list[Finding]:
    """Measure, gather, judge; the same findings on every rank.

    Args:
        comm: over gloo.
        fast: over the GPUs, if there are; then speeds are theirs.
        step: told what is measured next.
        alone: seconds of this rank's own work, if the caller has measured them.
    """
    step("the exchange of clocks")
    seen = all_gather_object(ask_clocks(comm), comm=comm, name="clocks")[0]
    fast = fast or comm
    step("the work of each rank")
    mine = work(fast.device) if alone is None else alone
    step("the latency of collectives")
    latencies = _small(fast)
    step("the bandwidth of collectives")
    speed = Speed(tuple(latencies), *_large(fast), mine, fast.device.type)
    speeds = all_gather_object(speed, comm=comm, name="speeds")
    return [clocks(seen), latency(speeds), bandwidth(speeds), stragglers(speeds, seen)]


def ask_clocks(comm: Communicator, clock: Callable[[], float] = time.time) -> dict[int, Clock]:
    """On rank 0, ask each other rank of the whole job for its time, again and again; the others
    answer. On gloo.
    """
    found = {}
    with naming_the_lost(comm):  # type: ignore[arg-type]
        for peer in range(1, comm.world_size):
            if comm.rank == 0:
                found[peer] = _clock([_ask(peer, clock) for _ in range(_PINGS)])
            elif comm.rank == peer:
                for _ in range(_PINGS):
                    dist.recv(torch.empty(1), src=0)
                    dist.send(torch.tensor([clock()], dtype=torch.float64), dst=0)
    return found


def _ask(peer: int, clock: Callable[[], float]) -> tuple[float, float, float]:
    answer = torch.empty(1, dtype=torch.float64)
    before, started = clock(), time.perf_counter()
    dist.send(torch.zeros(1), dst=peer)
    dist.recv(answer, src=peer)
    return before, float(answer), time.perf_counter() - started


def _clock(pings: Sequence[tuple[float, float, float]]) -> Clock:
    """Estimate another's clock from the fastest of some questions, as NTP does."""
    before, answer, trip = min(pings, key=lambda ping: ping[2])
    return Clock(
        answer - (before + trip / 2), trip / 2, statistics.median(ping[2] for ping in pings)
    )


def _timed(device: torch.device, call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _small(comm: Communicator) -> list[float]:
    """Return the seconds of collectives of 8 bytes; as many as fit into two seconds."""
    x = torch.zeros(1, dtype=torch.float64, device=comm.device)
    first = [_timed(comm.device, lambda: comm.all_reduce(x, "sum")) for _ in range(6)]
    each = float(
        comm.all_reduce(torch.tensor(statistics.median(first[1:]), device=comm.device), "max")
    )
    fewest, most = _ROUNDS
    rounds = max(fewest, min(most, int(_PATIENCE / max(each, 1e-9))))
    return [_timed(comm.device, lambda: comm.all_reduce(x, "sum")) for _ in range(rounds)]


def _large(comm: Communicator) -> tuple[float, float]:
    """Return bytes a second of large collectives, as if they moved over one wire of each rank (as
    nccl-tests count).
    """
    size = comm.world_size
    whole = torch.zeros(PAYLOAD // 4, dtype=torch.float32, device=comm.device)
    part = torch.zeros(PAYLOAD // size, dtype=torch.uint8, device=comm.device)
    reduced = _rounds(comm, lambda: comm.all_reduce(whole, "sum"))
    gathered = _rounds(comm, lambda: comm.all_gather(part))
    moved = (size - 1) / size
    return 2 * moved * PAYLOAD / reduced, moved * part.numel() * size / gathered


def _rounds(comm: Communicator, call: Callable[[], Tensor | list[Tensor]]) -> float:
    """Return the seconds of a collective: the median of five, or the first where that is slow."""
    first = torch.tensor(_timed(comm.device, call), device=comm.device)
    slowest = float(comm.all_reduce(first, "max"))
    return (
        slowest
        if slowest > _SLOW_ROUND
        else statistics.median(_timed(comm.device, call) for _ in range(5))
    )


def clocks(seen: Mapping[int, Clock]) -> Finding:
    """Judge the clocks of the ranks by what rank 0 saw of them."""
    if not seen:
        return Finding("clocks", "ok", "one rank: nothing to compare")
    off = {
        rank: clock
        for rank, clock in seen.items()
        if abs(clock.offset) - clock.uncertainty > _SKEWED
    }
    furthest = max(seen, key=lambda rank: abs(seen[rank].offset))
    offset, unsure = seen[furthest].offset, seen[furthest].uncertainty
    numbers = {"offset_s": offset, "uncertainty_s": unsure}
    said = f"{_seconds(abs(offset))} ± {_seconds(unsure)}"
    if off:
        ahead = "ahead of" if offset > 0 else "behind"
        what = (
            f"the clock of {who(off)} differs from rank 0's: rank {furthest} is {said} {ahead} it"
        )
        do = "run a time service (chrony, systemd-timesyncd) on all machines, or logs and files can't be put in order."
        return Finding("clocks", "warn", what, do, numbers=numbers)
    return Finding(
        "clocks", "ok", f"rank {furthest} is furthest from rank 0, by {said}", numbers=numbers
    )


def latency(speeds: Sequence[Speed]) -> Finding:
    """Judge how long a collective of 8 bytes takes."""
    medians = [statistics.median(speed.latencies) for speed in speeds]
    late = [percentile(speed.latencies, 0.99) for speed in speeds]
    middle, worst = statistics.median(medians), max(late)
    numbers = {"median_s": middle, "p99_s": worst, "rounds": len(speeds[0].latencies)}
    said = f"all_reduce of 8 bytes: median {_seconds(middle)}, 99th percentile {_seconds(worst)}"
    do = "look for a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), a slow network or a busy machine."
    if middle >= _SLOW or worst >= _STALL:
        return Finding(
            "latency",
            "warn",
            f"{said}: each small collective of training waits for that",
            do,
            (),
            numbers,
        )
    return Finding("latency", "ok", said, numbers=numbers)


def bandwidth(speeds: Sequence[Speed]) -> Finding:
    """Judge how fast large tensors move."""
    if len(speeds) == 1:
        return Finding("bandwidth", "ok", "one rank: nothing moves")
    reduced = statistics.median(speed.reduce for speed in speeds)
    gathered = statistics.median(speed.gather for speed in speeds)
    numbers = {"all_reduce_bytes_per_s": reduced, "all_gather_bytes_per_s": gathered}
    said = f"{PAYLOAD >> 20} MiB over the bus of each rank: all_reduce {reduced / 1e9:.2f} GB/s"
    said += f", all_gather {gathered / 1e9:.2f} GB/s"
    if min(reduced, gathered) < _NARROW[speeds[0].device]:
        do = "look for a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) or a slow network of the machines."
        return Finding("bandwidth", "warn", f"{said}: gradients will take long", do, (), numbers)
    return Finding("bandwidth", "ok", said, numbers=numbers)


def stragglers(speeds: Sequence[Speed], seen: Mapping[int, Clock]) -> Finding:
    """Name ranks that work or answer at least three times slower than the median: all others wait
    for them.
    """
    busy = outliers({rank: speed.work for rank, speed in enumerate(speeds)})
    far = outliers({rank: clock.trip for rank, clock in seen.items()}, _NOTICED)
    said = [
        f"rank {rank} takes {times:.1f} times the median's time for the same work"
        for rank, times in busy.items()
    ]
    said += [
        f"rank {rank} answers rank 0 {times:.1f} times slower than the median"
        for rank, times in far.items()
    ]
    numbers = {"slowest_work_s": max(speed.work for speed in speeds)}
    if said:
        do = f"look at {who({*busy, *far})}: other processes, OMP_NUM_THREADS, heat, power limits, its network."
        return Finding("stragglers", "warn", "\n".join(said), do, (), numbers)
    return Finding("stragglers", "ok", "no rank is 3 times slower than the median", numbers=numbers)


def outliers(values: Mapping[int, float], least: float = 0.0) -> dict[int, float]:
    """Return how many times the (lower) median each rank takes that is at least three times slower
    than it.

    >>> outliers({0: 1.0, 1: 1.1, 2: 3.5}), outliers({0: 1.0, 1: 2.9}), outliers({0: 1.0, 1: 4.0})
    ({2: 3.18...}, {}, {1: 4.0})
    """
    if not values:
        return {}
    middle = statistics.median_low(values.values())
    slow = {
        rank: value
        for rank, value in values.items()
        if value >= _FAR_SLOWER * middle and value - middle >= least
    }
    return {rank: value / middle for rank, value in slow.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed.

    >>> percentile(range(1, 101), 0.99), percentile([5], 0.99)
    (99, 5)
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _seconds(value: float) -> str:
    """Write a duration.

    >>> _seconds(0.000123), _seconds(0.0456), _seconds(3.21)
    ('123 µs', '45.6 ms', '3.2 s')
    """
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"

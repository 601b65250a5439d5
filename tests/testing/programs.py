"""What ranks do in the tests of routed calls; light to import, since every process imports it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.communicator import Communicator

DTYPES = (torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


def mine(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[rank + 1, 2, 0], [rank, 1, 3]]).to(dtype)


def room(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.full((2, 3), 7).to(dtype) for _ in range(count)]


def asks(comm: Communicator) -> Any:
    return [
        dist.is_available(),
        dist.is_initialized(),
        dist.get_rank(),
        dist.get_rank(dist.group.WORLD),
        dist.get_world_size(),
        str(dist.get_backend()),
        dist.get_process_group_ranks(None),
        dist.barrier(),
        dist.barrier(async_op=True).wait(),
        dist.monitored_barrier(),
    ]


def all_gathers(comm: Communicator) -> Any:
    """Of every dtype; empty, 0-d, not contiguous, with a gradient, one list of views."""
    wide = torch.arange(12.0).reshape(3, 4) + comm.rank
    odd = [torch.empty(0, 3), torch.tensor(float(comm.rank)), wide.t(), wide.clone().requires_grad_()]
    found = []
    for x in (*odd, *(mine(comm.rank, dtype) for dtype in (*DTYPES, *FLOATS))):
        rows = [torch.zeros(x.shape, dtype=x.dtype) for _ in range(comm.world_size)]
        dist.all_gather(rows, x)
        found.append(rows)
    base, out = torch.zeros(comm.world_size, 4, 3), torch.zeros(2 * comm.world_size, 3)
    dist.all_gather(list(base.unbind()), wide.t())
    dist.all_gather_into_tensor(out, mine(comm.rank))
    return [*found, base, out]


def to_one_and_from_one(comm: Communicator) -> Any:
    """Only the destination's tensor of a reduction means anything."""
    found = []
    for dst in (0, 1, 2, None):
        rows = room(comm.world_size) if comm.rank == (dst or 0) else None
        dist.gather(mine(comm.rank), rows, dst=dst)
        found.append(rows)
    out, parts = torch.zeros(2, 3), [mine(10 * rank) for rank in range(comm.world_size)]
    dist.scatter(out, parts if comm.rank == 1 else None, src=1)
    x, y = mine(comm.rank), mine(comm.rank, torch.int64)
    dist.broadcast(x, src=1)
    dist.broadcast(y, group_src=2)
    total, most = mine(comm.rank), mine(comm.rank)
    dist.reduce(total, 1)
    dist.reduce(most, dst=0, op=dist.ReduceOp.MAX)
    return [found, out, x, y, total if comm.rank == 1 else None, most if comm.rank == 0 else None]


def from_each_to_each(comm: Communicator) -> Any:
    rows, single = room(comm.world_size), torch.zeros(2 * comm.world_size)
    dist.all_to_all(rows, [mine(10 * comm.rank + to) for to in range(comm.world_size)])
    dist.all_to_all_single(single, torch.arange(2.0 * comm.world_size) + 100 * comm.rank)
    out, other = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(out, [mine(comm.rank + to) for to in range(comm.world_size)])
    dist.reduce_scatter_tensor(other, torch.arange(2 * comm.world_size) + comm.rank, op=dist.ReduceOp.PRODUCT)
    return [rows, single, out, other]


def all_reduces(comm: Communicator) -> Any:
    """Each operation on each dtype; what is refused is refused by both."""
    found: list[Any] = []
    for op, dtype in product(OPS, (*DTYPES, *FLOATS)):
        x = mine(comm.rank, dtype)
        try:
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        except Exception:  # noqa: BLE001  (that it is refused, by both)
            found.append((op, dtype, "refused"))
        else:
            found.append((op, dtype, x))
    return found


def asynchronous(comm: Communicator) -> Any:
    x, rows = mine(comm.rank), room(comm.world_size)
    handles = [dist.all_reduce(x, async_op=True), dist.all_gather(rows, mine(comm.rank), async_op=True)]
    waited = [handle.wait() for handle in handles]
    return [waited, [handle.is_completed() for handle in handles], x, rows]


def objects(comm: Communicator) -> Any:
    everyone: list[Any] = [None] * comm.world_size
    dist.all_gather_object(everyone, {"rank": comm.rank, "rows": ["x"] * comm.rank})
    at_one: list[Any] | None = [None] * comm.world_size if comm.rank == 2 else None
    dist.gather_object((comm.rank, torch.ones(comm.rank)), at_one, dst=2)
    from_one: list[Any] = [comm.rank, "text" * comm.rank] if comm.rank == 1 else [None, None]
    dist.broadcast_object_list(from_one, src=1)
    return [everyone, at_one, from_one]


def groups(comm: Communicator) -> Any:
    """Talk in groups that overlap, by numbers of the world and of the group."""
    found: list[Any] = []
    for pair in (dist.new_group([0, 2]), dist.new_group([2, 1])):
        x = torch.tensor(comm.rank)
        dist.all_reduce(x, group=pair)
        found += [dist.get_rank(pair), dist.get_world_size(pair), int(x)]
        if dist.get_rank(pair) < 0:
            continue
        found += [dist.get_process_group_ranks(pair), dist.get_global_rank(pair, 1), dist.get_group_rank(pair, 2)]
        y, objects = torch.tensor(comm.rank), [None, None]
        dist.broadcast(x, src=2, group=pair)
        dist.broadcast(y, group_src=0, group=pair)
        dist.all_gather_object(objects, comm.rank, group=pair)
        found += [int(x), int(y), objects]
    return found


def own_syncs(comm: Communicator) -> Any:
    """Of torchmetrics and torcheval."""
    import torcheval.metrics as te
    import torchmetrics.classification as tm
    from torcheval.metrics.toolkit import sync_and_compute

    results = []
    for library in (tm, te):
        for kind in (library.BinaryF1Score, library.BinaryAUROC):
            metric = kind()
            for batch in batches(comm.rank):
                metric.update(*batch)
            results.append(metric.compute() if library is tm else sync_and_compute(metric))
    return results


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Uneven: rank r has r + 1 batches of unequal sizes."""
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.rand(3 + index, generator=generator), torch.randint(0, 2, (3 + index,), generator=generator))
        for index in range(rank + 1)
    ]


PROGRAMS: dict[str, Callable[[Communicator], Any]] = {
    program.__name__: program
    for program in (
        asks,
        all_gathers,
        to_one_and_from_one,
        from_each_to_each,
        all_reduces,
        asynchronous,
        objects,
        groups,
        own_syncs,
    )
}


def every_program(comm: Communicator) -> dict[str, Any]:
    """All of them in one start of processes."""
    return {name: program(comm) for name, program in PROGRAMS.items()}

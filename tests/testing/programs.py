"""What ranks do in the tests of routed calls; light to import, since every process imports it."""

from __future__ import annotations

from collections.abc import Callable
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
    found = []
    for dtype in (*DTYPES, *FLOATS):
        rows = room(comm.world_size, dtype)
        dist.all_gather(rows, mine(comm.rank, dtype))
        found.append(rows)
    return found


def odd_all_gathers(comm: Communicator) -> Any:
    """Empty, 0-d, not contiguous, with a gradient, one list of views."""
    found = []
    wide = torch.arange(12.0).reshape(3, 4) + comm.rank
    for x in (torch.empty(0, 3), torch.tensor(float(comm.rank)), wide.t(), wide.clone().requires_grad_()):
        rows = [torch.zeros(x.shape) for _ in range(comm.world_size)]
        dist.all_gather(rows, x)
        found.append(rows)
    base = torch.zeros(comm.world_size, 4, 3)
    dist.all_gather(list(base.unbind()), wide.t())
    return [*found, base]


def gathers_into_tensor(comm: Communicator) -> Any:
    out = torch.zeros(2 * comm.world_size, 3)
    dist.all_gather_into_tensor(out, mine(comm.rank))
    return out


def gathers_to_one(comm: Communicator) -> Any:
    found = []
    for dst in range(comm.world_size):
        rows = room(comm.world_size) if comm.rank == dst else None
        dist.gather(mine(comm.rank), rows, dst=dst)
        found.append(rows)
    rows = room(comm.world_size) if comm.rank == 0 else None
    dist.gather(mine(comm.rank), rows)
    return [*found, rows]


def scatters(comm: Communicator) -> Any:
    out = torch.zeros(2, 3)
    parts = [mine(10 * rank) for rank in range(comm.world_size)]
    dist.scatter(out, parts if comm.rank == 1 else None, src=1)
    return out


def broadcasts(comm: Communicator) -> Any:
    x, y = mine(comm.rank), mine(comm.rank, torch.int64)
    dist.broadcast(x, src=1)
    dist.broadcast(y, group_src=2)
    return [x, y]


def all_to_alls(comm: Communicator) -> Any:
    rows, single = room(comm.world_size), torch.zeros(2 * comm.world_size)
    dist.all_to_all(rows, [mine(10 * comm.rank + to) for to in range(comm.world_size)])
    dist.all_to_all_single(single, torch.arange(2.0 * comm.world_size) + 100 * comm.rank)
    return [rows, single]


def all_reduces(comm: Communicator) -> Any:
    """Each operation on each dtype; what is refused is refused by both."""
    found: list[Any] = []
    for op in OPS:
        for dtype in (*DTYPES, *FLOATS):
            x = mine(comm.rank, dtype)
            try:
                dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
            except Exception:  # noqa: BLE001  (that it is refused, by both)
                found.append((op, dtype, "refused"))
            else:
                found.append((op, dtype, x))
    return found


def reduces(comm: Communicator) -> Any:
    """Only the destination's tensor means anything."""
    x, y = mine(comm.rank), mine(comm.rank)
    dist.reduce(x, 1)
    dist.reduce(y, dst=0, op=dist.ReduceOp.MAX)
    return [x if comm.rank == 1 else None, y if comm.rank == 0 else None]


def reduce_scatters(comm: Communicator) -> Any:
    out, other = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(out, [mine(comm.rank + to) for to in range(comm.world_size)])
    dist.reduce_scatter_tensor(other, torch.arange(2 * comm.world_size) + comm.rank, op=dist.ReduceOp.PRODUCT)
    return [out, other]


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
    part: list[Any] = [None]
    dist.scatter_object_list(part, [1, {2: 3}, "x" * 99] if comm.rank == 0 else None, src=0)
    return [everyone, at_one, from_one, part]


def torchmetrics_own(comm: Communicator) -> Any:
    from torchmetrics.classification import BinaryAUROC, BinaryF1Score

    results = []
    for kind in (BinaryF1Score, BinaryAUROC):
        metric = kind()
        for batch in batches(comm.rank):
            metric.update(*batch)
        results.append(metric.compute())
    return results


def torcheval_own(comm: Communicator) -> Any:
    from torcheval.metrics import BinaryAUROC, BinaryF1Score
    from torcheval.metrics.toolkit import sync_and_compute

    results = []
    for kind in (BinaryF1Score, BinaryAUROC):
        metric = kind()
        for batch in batches(comm.rank):
            metric.update(*batch)
        results.append(sync_and_compute(metric))
    return results


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Uneven: rank r has r + 1 batches of unequal sizes."""
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.rand(3 + index, generator=generator), torch.randint(0, 2, (3 + index,), generator=generator))
        for index in range(rank + 1)
    ]


PROGRAMS: dict[str, Callable[[Communicator], Any]] = {
    function.__name__: function
    for function in (
        asks,
        all_gathers,
        odd_all_gathers,
        gathers_into_tensor,
        gathers_to_one,
        scatters,
        broadcasts,
        all_to_alls,
        all_reduces,
        reduces,
        reduce_scatters,
        asynchronous,
        objects,
        torchmetrics_own,
        torcheval_own,
    )
}


def every_program(comm: Communicator) -> dict[str, Any]:
    """All of them in one start of processes."""
    return {name: program(comm) for name, program in PROGRAMS.items()}


def auroc_with_an_empty_rank(comm: Communicator) -> Any:
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC()
    if comm.rank:
        metric.update(torch.tensor([0.1, 0.7]), torch.tensor([0, 1]))
    return metric.compute()

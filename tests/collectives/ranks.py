"""What ranks do in the tests of the collectives; light to import, since every process imports it."""

from __future__ import annotations

from typing import Any

import torch

import distmetrics as dm
from distmetrics.collectives.exchange import inline_capacity
from distmetrics.comm.communicator import Communicator
from tests.comm.ranks import DTYPES, odd_tensors, of_rank, same_bits


def gathers_every_dtype(comm: Communicator) -> None:
    """Together in one tree, so that every bucket has a neighbour it must not run into."""
    tree = {str(dtype): of_rank(comm.rank, dtype) for dtype in DTYPES}
    gathered, joined, received = dm.all_gather(tree), dm.all_gather_cat(tree), dm.broadcast(tree, comm.world_size - 1)
    for dtype in DTYPES:
        everyone = [of_rank(rank, dtype) for rank in range(comm.world_size)]
        assert same_bits(gathered[str(dtype)], torch.stack(everyone)), dtype
        assert same_bits(joined[str(dtype)], torch.cat(everyone)), dtype
        assert same_bits(received[str(dtype)], everyone[-1]), dtype


def gathers_odd_memory(comm: Communicator) -> None:
    everyone = [[x.detach() for x in odd_tensors(rank)] for rank in range(comm.world_size)]
    for index, stack in enumerate(dm.all_gather(odd_tensors(comm.rank))):
        assert torch.equal(stack, torch.stack([tensors[index] for tensors in everyone])), index
        assert not stack.requires_grad
    for index, total in enumerate(dm.all_reduce(odd_tensors(comm.rank))):
        torch.testing.assert_close(total, torch.stack([tensors[index] for tensors in everyone]).sum(0))


def gathers_around_the_inline_capacity(comm: Communicator) -> None:
    """Data that just rides along, and data that just does not."""
    room = max(32, inline_capacity(comm.world_size))  # nothing rides along in a large world
    for size in (room - 16, room, room + 1, 5 * room):
        mine = torch.full((size,), comm.rank, dtype=torch.uint8)
        assert dm.all_gather(mine)[:, -1].tolist() == list(range(comm.world_size))
        assert dm.broadcast(mine, 0).sum() == 0
        uneven = dm.all_gather_cat(mine if comm.rank else mine[:3])
        assert uneven.numel() == 3 + size * (comm.world_size - 1)
        assert dm.all_reduce(mine, "max").tolist() == [comm.world_size - 1] * size


def reduces_large_as_small(comm: Communicator) -> None:
    """The two ways must agree: what rides along is folded here, what doesn't by the transport."""
    generator = torch.Generator().manual_seed(comm.rank)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64, torch.uint8):
        x = torch.randint(0, 3, (26_000,), generator=generator).to(dtype)
        for op in ("sum", "prod") + (() if dtype.is_complex else ("max", "min")):
            large = dm.all_reduce(x, op)  # type: ignore[arg-type]
            small = torch.cat([dm.all_reduce(part, op) for part in x.split(5200)])  # type: ignore[arg-type]
            assert torch.equal(large, small), (dtype, op)
            gathered = dm.all_gather(large)
            assert all(torch.equal(row, large) for row in gathered)


def keeps_nan(comm: Communicator) -> None:
    """NaN on one rank is NaN on all, in small and large data; infinities are ordinary numbers."""
    for size in (4, 40_000):
        x = torch.full((size,), float(comm.rank))
        if comm.rank == 0:
            x[:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
        for op in ("sum", "max", "min", "prod"):
            got = dm.all_reduce(x, op)  # type: ignore[arg-type]
            assert got[0].isnan(), op
            assert not got[3:].isnan().any(), op
        last = comm.world_size - 1
        assert dm.all_reduce(x, "max")[1:3].tolist() == [float("inf"), last or float("-inf")]
        assert dm.all_reduce(x, "min")[1:3].tolist() == [1.0 if last else float("inf"), float("-inf")]


WORKS = [gathers_every_dtype, gathers_odd_memory, gathers_around_the_inline_capacity, reduces_large_as_small, keeps_nan]


def everything(comm: Communicator) -> None:
    for work in WORKS:
        work(comm)


def gradients(comm: Communicator, seed: int) -> list[Any]:
    """Gather leaves with gradients, use them in a loss that differs between ranks, return this rank's gradients."""
    a, b, unused, whole = leaves(comm.rank, seed)
    got = dm.all_gather({"a": a, "b": b * 2, "unused": unused, "whole": whole}, sync_grads=True)
    loss_of(comm.rank, got["a"], got["b"]).backward()
    assert not got["whole"].requires_grad
    return [x.grad for x in (a, b, unused)]


def leaves(rank: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    a, b, unused = (torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 2), (), (4,)))
    return a, b, unused, torch.arange(3) + rank


def loss_of(rank: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((rank + 1) * (a[rank] * a.sum(0)).sum() * b.prod()) + (a**2).mean()

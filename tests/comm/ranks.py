"""What ranks do in the tests of the transports; light to import, since every process imports it."""

from __future__ import annotations

from typing import Any

import torch

from distmetrics.comm.communicator import Communicator

# fmt: off
DTYPES = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.complex64, torch.complex128,
]
REDUCED = [
    torch.int8, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64,
]
# fmt: on


def of_rank(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([rank, 0, 1], dtype=torch.float64).to(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also for dtypes that torch cannot compare."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tolist() == other.tolist()


def odd_tensors(rank: int) -> list[torch.Tensor]:
    """Tensors whose memory is not what their shape suggests."""
    base = torch.arange(12.0).reshape(3, 4) + 100 * rank
    return [
        torch.tensor(float(rank)),
        torch.empty(0),
        torch.empty(0, 3),
        base.t(),
        base[:, 1::2],
        base[:1, 0],  # one element, and a stride of four
        torch.tensor([float(rank)]).expand(5),
        torch.complex(base, -base).conj(),
        torch.complex(base, base).conj().imag,
        base.clone().requires_grad_() * 2,
    ]


def every_dtype(comm: Communicator) -> None:
    """Move each dtype, and memory of each kind, by each operation."""
    ranks = range(comm.world_size)
    for dtype in DTYPES:
        parts = comm.all_to_all([of_rank(10 * comm.rank + to, dtype) for to in ranks])
        assert all(same_bits(parts[rank], of_rank(10 * rank + comm.rank, dtype)) for rank in ranks), dtype
    everyone = [[*[of_rank(rank, dtype) for dtype in DTYPES], *odd_tensors(rank)] for rank in ranks]
    for index, mine in enumerate(everyone[comm.rank]):
        wanted = [each[index].detach() for each in everyone]
        rows = comm.all_gather(mine)
        assert not any(row.requires_grad for row in rows)
        received = comm.all_to_all([mine] * comm.world_size)
        assert all(map(same_bits, [*rows, *received], [*wanted, *wanted])), index
        assert same_bits(comm.broadcast(mine, comm.world_size - 1), wanted[-1]), index
        if index >= len(DTYPES):
            assert torch.equal(comm.all_reduce(mine, "sum"), sum(wanted)), index


def every_reduction(comm: Communicator) -> None:
    everyone = torch.tensor([[rank + 1, 2] for rank in range(comm.world_size)])
    wanted = {"sum": everyone.sum(0), "prod": everyone.prod(0), "max": everyone.amax(0), "min": everyone.amin(0)}
    for dtype in REDUCED:
        for op, value in wanted.items():
            assert same_bits(comm.all_reduce(everyone[comm.rank].to(dtype), op), value.to(dtype)), (dtype, op)  # type: ignore[arg-type]


def never_in_place(comm: Communicator) -> None:
    """Neither the input changes, nor do results share memory with it or with another rank's."""
    mine = torch.full((3,), float(comm.rank))
    results = [*comm.all_gather(mine), comm.all_reduce(mine, "sum"), comm.broadcast(mine, 0)]
    results += comm.all_to_all([mine] * comm.world_size)
    comm.barrier()
    for result in results:
        result.fill_(-1.0 - comm.rank)
    comm.barrier()
    assert mine.tolist() == [float(comm.rank)] * 3
    assert all(result.tolist() == [-1.0 - comm.rank] * 3 for result in results)


def refuses_misuse(comm: Communicator) -> list[str]:
    """Wrong arguments are refused before anything is sent, so the world still works afterwards."""
    x = torch.ones(2)
    uneven = [torch.ones(1), *[x] * comm.world_size][: comm.world_size]
    texts = []
    for misuse in (
        lambda: comm.all_to_all([x]),
        lambda: comm.all_to_all(uneven),
        lambda: comm.broadcast(x, comm.world_size),
        lambda: comm.broadcast(x, -1),
    ):
        try:
            misuse()
        except ValueError as error:
            texts.append(str(error))
    assert comm.all_reduce(torch.tensor(1), "sum") == comm.world_size
    return texts


def raises_on_one(comm: Communicator, bad: int) -> Any:
    if comm.rank == bad:
        raise KeyError("no such column")
    comm.barrier()


def returns_early_on_one(comm: Communicator, bad: int) -> str:
    comm.barrier()
    if comm.rank == bad:
        return "early"
    comm.barrier()
    return "late"


def everything(comm: Communicator) -> list[str]:
    """All that a healthy world does, in one start of its processes."""
    every_dtype(comm)
    every_reduction(comm)
    never_in_place(comm)
    return refuses_misuse(comm)


def gathers_unequal_sizes(comm: Communicator) -> None:
    """Gather large data on rank 0 and little on the others, by direct use of the transport."""
    comm.all_gather(torch.ones(16 if comm.rank else 1 << 22, dtype=torch.uint8))

"""``grad_norm`` over layouts, beside one process and ``torch.nn.utils.get_total_norm``.

    python -m benchmarks.grad_norm                 # writes results/grad_norm.csv

A row of blocks, as of a transformer, on four or eight processes of gloo. One process runs it whole;
each rank then runs its blocks on its part of what went into them there, and back from its part of
the gradients that came out. ``get_total_norm`` is given the same gradients, and asked for
``full_tensor()`` where it returns a DTensor.
"""

from __future__ import annotations

import copy
import csv
import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.common import RESULTS, arguments
from distmetrics import grad_norm, layout
from distmetrics.testing import run

ROWS, LENGTH = 8, 4
ORDERS = (1.0, 2.0, 3.0, math.inf)
SIZES: dict[str, dict[str, int]] = {  # of the axes of each layout
    "plain": {"dp": 4},
    "ddp": {"dp": 4},
    "fsdp": {"dp": 4},
    "hsdp": {"replicate": 2, "dp": 2},
    "tp": {"tp": 4},
    "tp, norms partial": {"tp": 4},
    "pp": {"pp": 4},
    "fsdp 2 x tp 2": {"dp": 2, "tp": 2},
    "fsdp 2 x tp 2, mixed": {"dp": 2, "tp": 2},
    "pp 2 x dp 2 x tp 2": {"pp": 2, "dp": 2, "tp": 2},
}
PROCESSES = {name: math.prod(sizes.values()) for name, sizes in SIZES.items()}


class Block(nn.Module):
    """A feed-forward block with a norm before it, and a scale that no plan splits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.down(self.up(self.norm(x)).relu()) * self.scale
        return out


def alone(blocks: int, width: int) -> tuple[list[Any], list[Tensor], list[Tensor]]:
    """Run the blocks whole; return them, what went in, and the gradients of what came out."""
    torch.manual_seed(0)
    made = [Block(width) for _ in range(blocks)]
    x, went_in, came_out = torch.randn(ROWS, LENGTH, width), [], []
    for block in made:
        went_in.append(x.detach())
        came_out.append(block(x))
        came_out[-1].retain_grad()
        x = came_out[-1]
    x.square().mean().backward()  # type: ignore[no-untyped-call]
    return made, went_in, [out.grad for out in came_out if out.grad is not None]


def plan_of(partial: bool) -> dict[str, Any]:
    """Return how a block is split for tensor parallelism.

    With ``partial`` its norm runs on parts of the sequences, so that its gradients are terms.
    """
    from torch.distributed.tensor import Shard, parallel

    row = parallel.RowwiseParallel()
    if partial:
        up = parallel.ColwiseParallel(input_layouts=Shard(1))
        return {"norm": parallel.SequenceParallel(), "up": up, "down": row}
    return {"up": parallel.ColwiseParallel(), "down": row}


def split(blocks: list[Any], name: str) -> tuple[list[Any], dict[str, int], Any]:
    """Return this rank's blocks, split up, where it is on which axes, and the layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    sizes = SIZES[name]
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    place = {axis: mesh.get_local_rank(axis) for axis in sizes}
    comm = None
    if "pp" in sizes:
        count = len(blocks) // sizes["pp"]
        blocks = blocks[place["pp"] * count :][:count]
        roles: dict[str, Any] = {axis: "shard" if axis == "pp" else "same" for axis in sizes}
        comm = layout(mesh, **roles)
    for block in blocks:
        if "tp" in sizes:
            parallelize_module(block, mesh["tp"], plan_of("partial" in name))
        if name == "hsdp":
            fully_shard(block, mesh=mesh)
        elif name == "fsdp 2 x tp 2, mixed":
            fully_shard(block, mesh=mesh["dp"], ignored_params={block.scale})
        elif "dp" in sizes and name not in ("plain", "ddp"):
            fully_shard(block, mesh=mesh["dp"])
    if name == "ddp":
        blocks = [nn.parallel.DistributedDataParallel(block) for block in blocks]
    return blocks, place, comm


def gradients(name: str, blocks: int, width: int) -> tuple[list[Any], list[Any], Any]:
    """Return the parameters of one process and those of this rank, with gradients; the layout."""
    warnings.simplefilter("ignore")  # of torch, about its own future
    made, went_in, came_out = alone(blocks, width)
    mine, place, comm = split(copy.deepcopy(made), name)
    first = place.get("pp", 0) * len(mine)
    shards, shard = data_shards(name, place)
    for number, block in enumerate(mine, first):
        rows = slice(shard * ROWS // shards, (shard + 1) * ROWS // shards)
        x, out = went_in[number][rows], came_out[number][rows]
        if "partial" in name:
            x = x.chunk(LENGTH, dim=1)[place["tp"]]
        block(x.clone().requires_grad_()).backward(out * shards)  # a mean over shards follows
        if name == "fsdp 2 x tp 2, mixed":  # what FSDP is told to ignore is the user's to reduce
            dist.all_reduce(block.scale.grad, dist.ReduceOp.SUM)
            block.scale.grad /= dist.get_world_size()
    parameters = [parameter for each in made for parameter in each.parameters()]
    return parameters, [parameter for each in mine for parameter in each.parameters()], comm


def data_shards(name: str, place: dict[str, int]) -> tuple[int, int]:
    """Return the number of shards of the data, and which one is this rank's."""
    if name == "plain" or "dp" not in place:
        return 1, 0
    if name == "hsdp":
        return 4, 2 * place["replicate"] + place["dp"]
    return (4 if len(place) == 1 else 2), place["dp"]


def gradients_of(parameters: list[Any]) -> list[Any]:
    """Return the gradients that there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def right(parameters: list[Any], order: float = 2.0) -> float:
    """Return the norm of the gradients in double precision."""
    whole = torch.cat([grad.double().flatten() for grad in gradients_of(parameters)])
    return float(torch.linalg.vector_norm(whole, order))


def of_torch(parameters: list[Any]) -> float:
    """Return what torch's function gives, whole."""
    norm: Any = nn.utils.get_total_norm(gradients_of(parameters), 2.0)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def norms(comm: Any, name: str, blocks: int = 4, width: int = 10) -> dict[float, Any]:
    """Return the norms by order: of one process, and ours, on this rank."""
    wanted, mine, over = gradients(name, blocks, width)
    return {
        order: (right(wanted, order), float(grad_norm(mine, order, comm=over))) for order in ORDERS
    }


def compare(comm: Any, name: str) -> dict[str, Any]:
    """Return the norms of one layout by way; what torch's function says where it raises."""
    torch.set_num_threads(1)
    wanted, mine, over = gradients(name, blocks=8, width=128)
    try:
        theirs = f"{of_torch(mine):.7g}"
    except RuntimeError as error:
        theirs = str(error).partition("\n")[0][:60].replace(",", "")
    return {"right": right(wanted), "ours": float(grad_norm(mine, comm=over)), "torch": theirs}


def main() -> None:
    """Compare, print, write."""
    args = arguments(__doc__, layouts=(len(PROCESSES), 2))
    rows = []
    for name, processes in [*PROCESSES.items()][: args.layouts]:
        ranks = run(processes, compare, name, backend="gloo")
        ours, wanted, theirs = (ranks[0][key] for key in ("ours", "right", "torch"))
        assert {rank["ours"] for rank in ranks} == {ours}
        row: dict[str, Any] = {"layout": name, "processes": processes}
        row |= {"one process": f"{wanted:.7g}", "grad_norm": f"{ours:.7g}"}
        row |= {"difference": f"{abs(ours - wanted) / wanted:.0e}", "get_total_norm": theirs}
        print(row, flush=True)
        rows.append(row)
    if args.is_whole:
        with (RESULTS / "grad_norm.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

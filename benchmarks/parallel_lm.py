"""A toy language model on meshes: perplexity, accuracy and tokens, against one process.

    python -m benchmarks.parallel_lm            # writes results/parallel_lm.json

Processes of gloo, in float64. Tensor parallelism is torch's ``parallelize_module``, pipelining
torch's ``PipelineStage`` and ``ScheduleGPipe``, sharding of parameters torch's ``fully_shard``.
Context parallelism is our own: ranks hold parts of each sequence and gather keys and values.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torchmetrics import Accuracy
from torchmetrics.text import Perplexity

import distmetrics as dm
from benchmarks.common import arguments, versions, write_json
from distmetrics.testing import run

VOCABULARY, WIDTH, HEADS, LENGTH, SAMPLES, PADDING = 32, 16, 4, 12, 8, -100
MESHES = {
    4: [{"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "dp": 2}, {"fsdp": 2, "tp": 2}],
    8: [{"dp": 2, "cp": 2, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}],
}
ROLES = {"dp": "shard", "fsdp": "shard", "cp": "shard", "tp": "same", "pp": "last"}


class Attention(nn.Module):
    """Causal attention; under context parallelism keys and values of the whole sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.context: Any = None  # the group among which sequences are split

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of it."""
        parts = [layer(x) for layer in (self.query, self.key, self.value)]
        size = WIDTH // HEADS
        query, key, value = (p.unflatten(-1, (-1, size)).transpose(1, 2) for p in parts)
        first = 0
        if self.context is not None:
            first = dist.get_rank(self.context) * query.shape[2]
            key, value = (self._whole(part) for part in (key, value))
        rows = torch.arange(first, first + query.shape[2])[:, None]
        mask = rows >= torch.arange(key.shape[2])
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        result: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result

    def _whole(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part).contiguous() for _ in range(self.context.size())]
        dist.all_gather(parts, part.contiguous(), group=self.context)
        return torch.cat(parts, dim=2)


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of it."""
        x = x + self.attention(self.before(x))
        result: Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return result


class Model(nn.Module):
    """Two layers, and logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head: nn.Linear | None = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of it."""
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def data() -> tuple[Tensor, Tensor]:
    """Return tokens and targets; sequences have other lengths, the rest is padding."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    for row, length in enumerate((12, 3, 7, 9, 1, 12, 5, 2)):
        targets[row, length:] = PADDING
    return tokens[:, :-1], targets


def model() -> Model:
    """Return the model, the same on all ranks."""
    torch.manual_seed(0)
    return Model().double().eval()


def split_over_tensors(whole: Model, mesh: Any) -> None:
    """Split the layers as torchtitan does; logits come back whole."""
    from torch.distributed.tensor import Replicate, parallel

    columns, rows = parallel.ColwiseParallel, parallel.RowwiseParallel
    plan: dict[str, Any] = {"up": columns(), "down": rows(), "attention.out": rows()}
    plan |= {f"attention.{name}": columns() for name in ("query", "key", "value")}
    for block in whole.blocks:
        parallel.parallelize_module(block, mesh, plan)
    if whole.head is not None:
        head = columns(output_layouts=Replicate())
        parallel.parallelize_module(whole, mesh, {"head": head})


def logits_of(mesh: Any, tokens: Tensor) -> Tensor | None:
    """Return the logits of this rank's tokens, by a model split along a mesh; None without any."""
    axes = mesh.mesh_dim_names
    part = model()
    stage = mesh.get_local_rank("pp") if "pp" in axes else None
    if stage is not None:
        part.blocks = nn.ModuleList([part.blocks[stage]])
        part.embed, part.head = (part.embed, None) if stage == 0 else (None, part.head)
    if "tp" in axes:
        split_over_tensors(part, mesh["tp"])
    if "cp" in axes:
        for block in part.blocks:
            block.attention.context = mesh.get_group("cp")  # type: ignore[union-attr]
    if "fsdp" in axes:
        from torch.distributed.fsdp import fully_shard

        for block in part.blocks:
            fully_shard(block, mesh=mesh["fsdp"])
        fully_shard(part, mesh=mesh["fsdp"])
    with torch.no_grad():
        if stage is None:
            result: Tensor = part(tokens)
            return result
        return through_stages(part, mesh, stage, tokens)


def through_stages(part: Model, mesh: Any, stage: int, tokens: Tensor) -> Tensor | None:
    """Run micro-batches through the pipeline; the last stage has the logits."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    group = mesh.get_group("pp")
    micro = torch.zeros(2, LENGTH, WIDTH, dtype=torch.float64)
    example = torch.zeros(2, LENGTH, dtype=torch.int64) if stage == 0 else micro
    output = micro if stage == 0 else torch.zeros(2, LENGTH, VOCABULARY, dtype=torch.float64)
    shapes: Any = {"input_args": (example,), "output_args": (output,), "group": group}
    own = PipelineStage(part, stage, group.size(), torch.device("cpu"), **shapes)
    schedule = ScheduleGPipe(own, n_microbatches=len(tokens) // 2)
    logits: Tensor | None = schedule.eval(tokens) if stage == 0 else schedule.eval()
    return logits if stage == group.size() - 1 else None


def measured(logits: Tensor | None, targets: Tensor, comm: Any) -> dict[str, float]:
    """Return the numbers of a job: None for logits on ranks that have none."""
    metrics = None
    loss, tokens = None, 0
    if logits is not None:
        perplexity = Perplexity(ignore_index=PADDING)
        options: Any = {"num_classes": VOCABULARY, "ignore_index": PADDING, "average": "micro"}
        accuracy = Accuracy("multiclass", **options)
        flat, labels = logits.flatten(0, 1), targets.flatten()
        perplexity.update(logits, targets)
        accuracy.update(flat.argmax(-1), labels)
        metrics = {"perplexity": perplexity, "accuracy": accuracy}
        tokens = int((targets != PADDING).sum())
        total = functional.cross_entropy(flat, labels, ignore_index=PADDING, reduction="sum")
        loss = total / max(tokens, 1)
    values = dm.sync_and_compute(metrics, comm=comm)
    values["loss"] = dm.mean(loss, weight=tokens, comm=comm)
    values["tokens"] = dm.all_reduce(tokens, comm=comm)
    return {name: float(value) for name, value in values.items()}


def naive(logits: Tensor | None, targets: Tensor) -> dict[str, float]:
    """Return what is logged where all ranks are reduced alike: -1 without a loss, no weights."""
    loss, tokens = -1.0, int((targets != PADDING).sum())
    if logits is not None:
        flat = logits.flatten(0, 1)
        loss = float(functional.cross_entropy(flat, targets.flatten(), ignore_index=PADDING))
    sums = torch.tensor([0.0 if math.isnan(loss) else loss, tokens, 1.0], dtype=torch.float64)
    dist.all_reduce(sums)
    mean = float(sums[0] / sums[2])
    return {"loss": mean, "perplexity": math.exp(mean), "tokens": float(sums[1])}


def on_rank(comm: Any, meshes: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Evaluate on one rank of each mesh."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return [on_mesh(sizes) for sizes in meshes]


def on_mesh(sizes: dict[str, int]) -> dict[str, Any]:
    """Return the numbers of this rank of a mesh."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    tokens, targets = data()
    for axis, dim in (("dp", 0), ("fsdp", 0), ("cp", 1)):
        if axis in sizes:
            place = mesh.get_local_rank(axis)
            tokens = tokens.chunk(sizes[axis], dim)[place]
            targets = targets.chunk(sizes[axis], dim)[place]
    logits = logits_of(mesh, tokens)
    over = dm.layout(mesh, **{axis: ROLES[axis] for axis in sizes})  # type: ignore[arg-type]
    return {"ours": measured(logits, targets, over), "naive": naive(logits, targets)}


def alone() -> dict[str, float]:
    """Return the numbers of one process over all data."""
    tokens, targets = data()
    with torch.no_grad():
        return measured(model()(tokens), targets, dm.current())


def compared(ranks: int) -> list[dict[str, Any]]:
    """Run the meshes of so many ranks; return their numbers beside those of one process."""
    meshes = MESHES[ranks]
    expected = alone()
    rows = []
    for sizes, *results in zip(meshes, *run(ranks, on_rank, meshes, backend="gloo"), strict=True):
        apart = 0.0
        for each in results:
            for name, value in each["ours"].items():
                apart = max(apart, abs(value - expected[name]) / abs(expected[name]))
        rows.append({"mesh": sizes, "furthest": apart, **results[0]})
    return rows


def main() -> None:
    """Run, print, write JSON."""
    args = arguments(__doc__, worlds=(len(MESHES), 1))
    warnings.simplefilter("ignore")
    rows = [row for ranks in [*MESHES][: args.worlds] for row in compared(ranks)]
    expected = alone()
    print(*rows, f"one process {expected}", sep="\n")
    if args.is_whole:
        result = {**versions(), "one process": expected, "meshes": rows}
        write_json("parallel_lm.json", result)


if __name__ == "__main__":
    main()

"""Bytes of parameters, gradients and optimizer states that a rank holds while it trains.

    python -m benchmarks.trainer_memory          # table, and JSON in benchmarks/results

The tensors' own bytes are counted, on every rank, at the end of the third step (gradients: before
it is taken); the rank with most is shown. A perceptron under AdamW, which keeps two numbers a
parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import arguments, versions, write_json
from distmetrics.collectives.ops import all_gather_object
from distmetrics.strategies import FSDPSpawn
from distmetrics.train import Callback, Module, RunContext, Trainer

WIDTH, LAYERS, BATCH, STEPS = 512, 8, 8, 3
STRATEGIES = ("ddp", "ddp_sharded", "fsdp")
WORLDS = (1, 2, 4)
KINDS = ("parameters", "gradients", "optimizer")
Bytes = dict[str, int]


class Perceptron(Module):
    """Equal layers, so that they can be shared out evenly."""

    def __init__(self) -> None:
        super().__init__()
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.net = nn.Sequential(*layers)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Learn to say what is said."""
        return nn.functional.mse_loss(self.net(batch[0]), batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW: two states a parameter."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def held(tensors: Iterable[Any]) -> int:
    """Return the bytes that this rank holds of some tensors; of one in parts, of its own part."""
    found = 0
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found += local.numel() * local.element_size()
    return found


class Weigh(Callback):
    """Counts on every rank; keeps the most that one holds."""

    def __init__(self) -> None:
        self.most: Bytes = {}
        self.gradients = 0

    def on_before_optimizer_step(self, trainer: RunContext, module: Module, optimizer: Any) -> None:
        """Count the gradients while they are there."""
        self.gradients = held(p.grad for p in module.parameters() if p.grad is not None)

    def on_train_batch_end(
        self, trainer: RunContext, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the rest when the step is over."""
        entries = [each for optimizer in trainer.optimizers for each in optimizer.state.values()]
        states = [value for entry in entries for value in entry.values()]
        mine = {"parameters": held(module.parameters()), "gradients": self.gradients}
        mine["optimizer"] = held(each for each in states if isinstance(each, Tensor) and each.ndim)
        ranks: list[Bytes] = all_gather_object(mine, comm=trainer.strategy.comm(), name="bytes")
        self.most = {kind: max(rank[kind] for rank in ranks) for kind in KINDS}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, which come home from the processes."""
        return {"most": self.most}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them over."""
        self.most = state["most"]


def measure(strategy: str, world_size: int) -> Bytes:
    """Train for some steps in processes of their own; return the most bytes that a rank holds."""
    x = torch.randn(BATCH * STEPS * world_size, WIDTH, generator=torch.Generator().manual_seed(0))
    weigh = Weigh()
    chosen: Any = FSDPSpawn(wrap=[nn.Linear]) if strategy == "fsdp" else f"{strategy}_spawn"
    trainer = Trainer(
        strategy=chosen,
        devices=world_size,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[weigh],
        enable_progress_bar=False,
    )
    trainer.fit(Perceptron(), DataLoader(TensorDataset(x), batch_size=BATCH))
    return weigh.most


def show(found: dict[str, dict[int, Bytes]]) -> None:
    """Print a line a strategy and kind, a column a world size."""
    print(f"MB that the rank with most holds; {LAYERS} layers of {WIDTH} × {WIDTH}, AdamW")
    print(f"  {'':26}" + "".join(f"{f'W = {count}':>10}" for count in next(iter(found.values()))))
    for strategy, worlds in found.items():
        for kind in KINDS:
            cells = "".join(f"{most[kind] / 1e6:10.2f}" for most in worlds.values())
            print(f"  {strategy:12} {kind:13}{cells}")


def main() -> None:
    """Measure each strategy in each world, print the table, write JSON."""
    args = arguments(__doc__, worlds=(len(WORLDS), 2))
    worlds = WORLDS[: args.worlds]
    found = {name: {count: measure(name, count) for count in worlds} for name in STRATEGIES}
    show(found)
    if args.is_whole:
        write_json("trainer_memory.json", {"versions": versions(), "bytes": found})


if __name__ == "__main__":
    main()

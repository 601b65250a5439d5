"""One way to train, on one rank that torchrun starts: the same model and data for each.

    torchrun --nproc-per-node 2 -m benchmarks.trainer_ranks WAY NAMES STEPS BEGAN OUT

WAY is raw, distmetrics, fabric or lightning; NAMES values are logged for the epoch, on every step;
STEPS are taken in one epoch; BEGAN is when torchrun was started, by the monotonic clock. OUT gets
the times of rank 0 as JSON.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, WIDTH, CLASSES = 8, 32, 10
BLOCK = 25  # steps by turns with as many of the raw loop
WARM = 2  # blocks that are not counted


class Clock:
    """Notes how long steps take, and as many of the raw loop between blocks of them.

    What a step takes depends on how busy the machine is, which changes within seconds; so the raw
    loop, which all ways are held against, is run by turns with them.
    """

    def __init__(self, names: int, steps: int) -> None:
        self.names, self.steps = names, steps
        self.first: float | None = None  # when the first step was over
        self.last = 0.0  # when the last step was over, or the raw ones after it
        self.block: list[float] = []  # seconds of the steps of this block
        self.blocks: list[list[float]] = []
        self.raw: list[list[float]] = []
        self.raw_loop: Generator[Tensor, None, None] | None = None
        self.count = 0

    def tick(self) -> None:
        """Say that a step is over; when a block is, take the raw loop's."""
        now = time.perf_counter()
        self.count += 1
        if self.first is None:
            self.first = now
        else:
            self.block.append(now - self.last)
        if self.count % BLOCK == 0:
            self.blocks.append(self.block)
            self.raw.append(self._take_raw())
            self.block, now = [], time.perf_counter()
        self.last = now
        if self.count == self.steps and self.raw_loop is not None:
            self.raw_loop.close()

    def _take_raw(self) -> list[float]:
        if self.raw_loop is None:
            batches = itertools.chain.from_iterable(itertools.repeat(data(BLOCK, 1)))
            self.raw_loop = raw_loop(self.names, batches.__next__)
        seconds = []
        for _ in range(BLOCK):
            began = time.perf_counter()
            next(self.raw_loop)
            seconds.append(time.perf_counter() - began)
        return seconds

    def times(self, began: float, end: float) -> dict[str, float]:
        """Return seconds of a step and of a raw one (medians), until the first, and after the last.

        "over" is the median over the blocks of what a step takes over a raw one of the block's own
        turn.
        """
        # the first of a block finds the caches of the other loop
        own, raw = (
            [statistics.median(block[1:]) for block in each[WARM:]]
            for each in (self.blocks, self.raw)
        )
        assert self.first is not None, "no step was taken"
        return {
            "step": statistics.median(own),
            "raw": statistics.median(raw),
            "over": statistics.median(
                mine / limit - 1 for mine, limit in zip(own, raw, strict=True)
            ),
            "first": self.first - began,
            "close": end - self.last,
        }


def model() -> nn.Module:
    """Make the same weights for every way."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def loss_of(net: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    """Return the loss of inputs and labels."""
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the same optimizer for every way."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def data(steps: int, world_size: int) -> DataLoader[Any]:
    """Return a loader of so many steps for each of the ranks, once it is dealt out to them."""
    count = steps * BATCH * world_size
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, WIDTH, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH)


def raw_loop(names: int, batch: Callable[[], Any]) -> Generator[Tensor, None, None]:
    """Take a step of the plain loop with each ``next``; yields the sums of the values, by name."""
    net = nn.parallel.DistributedDataParallel(model())
    step = optimizer(net.parameters())
    sums = torch.zeros(names)
    while True:
        one = batch()
        step.zero_grad(set_to_none=True)
        loss = loss_of(net, one)
        loss.backward()  # type: ignore[no-untyped-call]
        step.step()
        if names:
            sums += loss.detach()
        yield sums


def raw(clock: Clock, steps: int) -> float:
    """Plain torch; values are summed on the rank, and reduced by one collective at the end."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = data(steps, world_size)
    sampler: DistributedSampler[Any] = DistributedSampler(
        whole.dataset, world_size, rank, shuffle=False
    )
    loader = iter(DataLoader(whole.dataset, batch_size=BATCH, sampler=sampler))
    loop = raw_loop(clock.names, loader.__next__)
    for _ in range(steps):
        sums = next(loop)
        clock.tick()
    if clock.names:
        dist.all_reduce(sums)
    end = time.perf_counter()
    loop.close()
    dist.destroy_process_group()
    return end


def fabric(clock: Clock, steps: int) -> float:
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    runner = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    runner.launch()
    made = model()
    net, step = runner.setup(made, optimizer(made.parameters()))
    loader = runner.setup_dataloaders(data(steps, runner.world_size))
    sums = torch.zeros(clock.names)
    for batch in loader:
        step.zero_grad(set_to_none=True)
        loss = loss_of(net, batch)
        runner.backward(loss)
        step.step()
        if clock.names:
            sums += loss.detach()
        clock.tick()
    if clock.names:
        runner.all_reduce(sums)
    return time.perf_counter()


def distmetrics(clock: Clock, steps: int) -> float:
    """This project's trainer."""
    from distmetrics.train import Callback, Module, Trainer

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_of(self.net, batch)
            for index in range(clock.names):
                self.log(f"loss_{index}", loss, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

    class Tick(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            clock.tick()

    trainer = Trainer(
        strategy="ddp",
        accelerator="cpu",
        max_epochs=1,
        callbacks=[Tick()],
        enable_progress_bar=False,
    )
    trainer.fit(Net(), data(steps, trainer.strategy.world_size))
    return time.perf_counter()


def lightning(clock: Clock, steps: int) -> float:
    """Lightning's trainer, with everything off that can be."""
    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_of(self.net, batch)
            for index in range(clock.names):
                self.log(f"loss_{index}", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

    class Tick(pl.Callback):  # type: ignore[misc, unused-ignore]
        def on_train_batch_end(self, *args: Any) -> None:
            clock.tick()

    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=1,
        callbacks=[Tick()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), data(steps, 2))
    return time.perf_counter()


WAYS: dict[str, Callable[[Clock, int], float]] = {
    "raw": raw,
    "distmetrics": distmetrics,
    "fabric": fabric,
    "lightning": lightning,
}


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out the peers' advice on workers and loggers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    """Train, and write rank 0's times."""
    way, names, steps, began, out = sys.argv[1:]
    clock = Clock(int(names), int(steps))
    with quiet():
        end = WAYS[way](clock, int(steps))
    assert clock.count == int(steps), f"{way} took {clock.count} steps, not {steps}"
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(clock.times(float(began), end)))
    sys.stderr.flush()
    # gloo's threads of a wrapper that lives on abort the interpreter's exit now and then.
    os._exit(0)


if __name__ == "__main__":
    main()

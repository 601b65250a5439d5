"""What a trainer costs a step against a raw loop of DDP, and what logging costs it.

Every way drives the same tiny model on the same data, in two processes that torchrun starts; the
ways take turns, round by round. A tiny model, for what a trainer adds to a step is the same for a
large one. Within a way, blocks of 25 steps take turns with 25 of the raw loop, in the same
processes, and what a step takes over a raw one is told block by block: what a busy machine adds is
in both. The raw loop held against itself shows what is left of the noise.

    python -m benchmarks.trainer                 # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.common import arguments, versions, write_json

NAMES = (0, 20, 200)
BATCH, WIDTH, CLASSES = 8, 32, 10
BLOCK = 25  # steps by turns with as many of the raw loop
WARM = 2  # blocks that are not counted
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
Times = dict[str, float]


class Clock:
    """Notes how long steps take, and as many of the raw loop between blocks of them.

    How busy the machine is changes within seconds; so the raw loop is run by turns with the ways.
    """

    def __init__(self, names: int, steps: int) -> None:
        self.names, self.steps = names, steps
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
        if self.count > 1:
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

    def times(self) -> Times:
        """Return the median seconds of a step and of a raw one.

        "over" is the median over the blocks of what a step takes over a raw one of the same turn.
        """
        own, raw = (  # the first of a block finds the caches of the other loop
            [statistics.median(block[1:]) for block in each[WARM:]]
            for each in (self.blocks, self.raw)
        )
        over = statistics.median(mine / limit - 1 for mine, limit in zip(own, raw, strict=True))
        return {"step": statistics.median(own), "raw": statistics.median(raw), "over": over}


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


def raw(clock: Clock, steps: int) -> None:
    """Plain torch; values are summed on the rank, and reduced by one collective at the end."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = data(steps, world_size)
    dealt: Any = DistributedSampler(whole.dataset, world_size, rank, shuffle=False)
    loader = iter(DataLoader(whole.dataset, batch_size=BATCH, sampler=dealt))
    loop = raw_loop(clock.names, loader.__next__)
    for _ in range(steps):
        sums = next(loop)
        clock.tick()
    if clock.names:
        dist.all_reduce(sums)
    loop.close()
    dist.destroy_process_group()


def fabric(clock: Clock, steps: int) -> None:
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


def module_of(base: Any, clock: Clock, **options: Any) -> Any:
    """Return a module of a trainer's class that logs values for the epoch, on every step."""

    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_of(self.net, batch)
            for index in range(clock.names):
                self.log(f"loss_{index}", loss, on_step=False, on_epoch=True, **options)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

    return Net()


def ticking(base: Any, clock: Clock) -> Any:
    """Return a callback of a trainer's class that tells of each step."""

    class Tick(base):  # type: ignore[misc]
        def on_train_batch_end(self, *args: Any) -> None:
            clock.tick()

    return Tick()


def distmetrics(clock: Clock, steps: int) -> None:
    """This project's trainer."""
    from distmetrics.train import Callback, Module, Trainer

    options: dict[str, Any] = {"strategy": "ddp", "accelerator": "cpu", "max_epochs": 1}
    ticks = [ticking(Callback, clock)]
    trainer = Trainer(callbacks=ticks, enable_progress_bar=False, **options)
    trainer.fit(module_of(Module, clock), data(steps, trainer.strategy.world_size))


def lightning(clock: Clock, steps: int) -> None:
    """Lightning's trainer, with everything off that can be."""
    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
    options: dict[str, Any] = dict.fromkeys(off, False)
    options |= {"strategy": "ddp", "accelerator": "cpu", "max_epochs": 1}
    ticks = [ticking(pl.Callback, clock)]
    trainer = pl.Trainer(callbacks=ticks, devices=2, **options)
    trainer.fit(module_of(pl.LightningModule, clock, sync_dist=True), data(steps, 2))


WAYS: dict[str, Callable[[Clock, int], None]] = {
    "raw": raw,
    "distmetrics": distmetrics,
    "fabric": fabric,
    "lightning": lightning,
}


def on_rank(way: str, names: int, steps: int, out: Path) -> None:
    """Train on one rank that torchrun has started, and write rank 0's times."""
    clock = Clock(names, steps)
    with warnings.catch_warnings():  # the peers' advice on workers and loggers
        warnings.simplefilter("ignore")
        WAYS[way](clock, steps)
    assert clock.count == steps, f"{way} took {clock.count} steps, not {steps}"
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps(clock.times()))
    sys.stderr.flush()
    # gloo's threads of a wrapper that lives on abort the interpreter's exit now and then.
    os._exit(0)


def train(way: str, names: int, steps: int, out: Path) -> Times:
    """Run one way under torchrun; returns rank 0's times in seconds."""
    words = [way, str(names), str(steps), str(out)]
    command = [sys.executable, *TORCHRUN, "benchmarks.trainer", "--rank", *words]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr}")
    times: Times = json.loads(out.read_text())
    return times


def median(rounds: list[Times]) -> Times:
    """Return the median of each time; of "over" the ends too."""
    over = [times["over"] for times in rounds]
    found = {key: statistics.median([times[key] for times in rounds]) for key in rounds[0]}
    return found | {"lowest": min(over), "highest": max(over)}


def main() -> None:
    """Run the ways in turn, print the table, write JSON."""
    if sys.argv[1:2] == ["--rank"]:
        way, count, taken, out = sys.argv[2:]
        on_rank(way, int(count), int(taken), Path(out))
    args = arguments(__doc__, rounds=(3, 1), steps=(400, 100), names=(len(NAMES), 1))
    asked = NAMES[: args.names]
    seen: dict[str, dict[int, list[Times]]]
    seen = {way: {names: [] for names in asked} for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for _, names, way in itertools.product(range(args.rounds), asked, WAYS):
            seen[way][names].append(train(way, names, args.steps, Path(folder) / "times.json"))
    found = {way: {names: median(each) for names, each in by.items()} for way, by in seen.items()}
    print("two gloo ranks, a step of a tiny model over one of the raw loop; median of the rounds")
    for (way, by), names in itertools.product(found.items(), asked):
        times = by[names]
        rounds = f"({100 * times['lowest']:+.0f} to {100 * times['highest']:+.0f})"
        steps = f"{1e3 * times['step']:6.2f} ms, raw {1e3 * times['raw']:6.2f} ms"
        print(f"  {way:12} {names:5} names {steps} {100 * times['over']:+7.0f} % {rounds}")
    if args.is_whole:
        known = {"versions": versions("lightning"), "steps": args.steps, "rounds": args.rounds}
        write_json("trainer.json", {**known, "seconds": found})


if __name__ == "__main__":
    main()

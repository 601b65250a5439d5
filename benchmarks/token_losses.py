"""Gradients of losses over tokens, against one process that has all tokens of a step in one batch.

Each step has 24 sequences, of which some have no token at all. Ranks and accumulated micro-batches
share them, so that each has another number of tokens. After 10 steps of AdamW, with clipping by
norm, the table has the largest difference of any weight to one process's.

    python -m benchmarks.token_losses           # writes benchmarks/results/token_losses.md
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.common import RESULTS, arguments, join_elastic, table, versions
from distmetrics import Runner
from distmetrics.comm.verdict import settle
from distmetrics.launch.spawn import launch
from distmetrics.train import Module, Trainer

STEPS, SEQUENCES, LONGEST, CLIP = 10, 24, 9, 0.1
IGNORED = -100
WORLDS = ((1, 1), (1, 4), (2, 1), (2, 2), (3, 4))
Weights = dict[str, Tensor]


def sequences() -> tuple[Tensor, Tensor]:
    """Return the features and labels of all steps' sequences; a fifth of them have no token."""
    generator = torch.Generator().manual_seed(2027)
    count = STEPS * SEQUENCES
    x = torch.randn(count, LONGEST, 4, generator=generator)
    y = torch.randint(3, (count, LONGEST), generator=generator)
    lengths = torch.randint(1, LONGEST + 1, (count,), generator=generator)
    lengths[torch.rand(count, generator=generator) < 0.2] = 0
    y[torch.arange(LONGEST) >= lengths[:, None]] = IGNORED
    return x, y


class Net(nn.Module):
    """A small classifier of tokens."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(11)
            self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        """Return the logits; with labels the loss, as models of Hugging Face do."""
        logits = self.layers(x)
        if labels is None:
            return logits
        return {"loss": loss_of(logits, labels, "sum") / options["num_items_in_batch"]}


def loss_of(logits: Tensor, y: Tensor, how: str = "mean") -> Tensor:
    """Return the loss over the tokens that are there."""
    flat = logits.flatten(0, 1)
    return nn.functional.cross_entropy(flat, y.flatten(), ignore_index=IGNORED, reduction=how)


def mean_or_zero(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean over tokens, and 0 where there are none, as careful loops have it."""
    return loss_of(logits, y, "sum") / (y != IGNORED).sum().clamp(min=1)


def adamw(net: nn.Module) -> torch.optim.AdamW:
    """Return everybody's optimizer."""
    return torch.optim.AdamW(net.parameters(), lr=0.05)


def micro_batches(rank: int, world_size: int, accumulated: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the micro-batches of one rank, so many for each step."""
    size = SEQUENCES // world_size // accumulated
    parts = (torch.split(part, size) for part in sequences())
    for index, batch in enumerate(zip(*parts, strict=True)):
        if index % world_size == rank:
            yield batch


def weights_of(net: nn.Module) -> Weights:
    """Return a copy of the weights."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def one_process() -> Weights:
    """Return the weights after steps on all tokens at once."""
    net = Net()
    optimizer = adamw(net)
    for x, y in micro_batches(0, 1, 1):
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(net(x), y))
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    return weights_of(net)


def by_runner(comm: Any, accumulated: int) -> Weights:
    """Train with ``runner.backward(loss, weight=...)``."""
    runner = Runner(strategy="ddp", devices=comm.world_size, accelerator="cpu")
    return runner.launch(_run, accumulated)


def _run(runner: Runner, accumulated: int) -> Weights:
    net = Net()
    model, optimizer = runner.setup(net, adamw(net))
    batches = micro_batches(runner.global_rank, runner.world_size, accumulated)
    for index, (x, y) in enumerate(batches, 1):
        is_last = index % accumulated == 0
        with runner.no_backward_sync(model, enabled=not is_last):
            runner.backward(loss_of(model(x), y), weight=(y != IGNORED).sum())
        if is_last:
            runner.clip_gradients(model, optimizer, max_norm=CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(net)


def module_of(base: Any, step: Callable[[Tensor, Tensor], Any]) -> Any:
    """Return a module of a trainer's class, whose training step is made of logits and labels."""

    class Tokens(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return step(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return adamw(self)

    return Tokens()


def options_of(comm: Any, accumulated: int) -> dict[str, Any]:
    """Return the flags of both trainers."""
    return {
        "strategy": "ddp",
        "devices": comm.world_size,
        "accelerator": "cpu",
        "max_epochs": 1,
        "accumulate_grad_batches": accumulated,
        "gradient_clip_val": CLIP,
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
    }


def by_trainer(comm: Any, accumulated: int) -> Weights:
    """Train with a ``training_step`` that returns the loss and its weight."""

    def step(logits: Tensor, y: Tensor) -> Any:
        return {"loss": loss_of(logits, y), "weight": (y != IGNORED).sum()}

    module = module_of(Module, step)
    batches = list(micro_batches(comm.rank, comm.world_size, accumulated))
    Trainer(**options_of(comm, accumulated)).fit(module, batches)
    return weights_of(module.net)


def by_ddp(comm: Any, accumulated: int) -> Weights:
    """Train with DistributedDataParallel; the loss is divided by the number of micro-batches."""
    net = Net()
    model: Any = DistributedDataParallel(net) if comm.world_size > 1 else net
    optimizer = adamw(net)
    for index, (x, y) in enumerate(micro_batches(comm.rank, comm.world_size, accumulated), 1):
        torch.autograd.backward(mean_or_zero(model(x), y) / accumulated)
        if index % accumulated == 0:
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(net)


def by_lightning(comm: Any, accumulated: int) -> Weights:
    """Train with Lightning, as its documentation has a training step."""
    import lightning.pytorch as pl

    join_elastic(comm)
    module = module_of(pl.LightningModule, mean_or_zero)
    options = options_of(comm, accumulated)
    options |= {} if comm.world_size > 1 else {"strategy": "auto"}
    options |= dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    batches: Any = list(micro_batches(comm.rank, comm.world_size, accumulated))
    pl.Trainer(**options).fit(module, DataLoader(batches, batch_size=None))
    return weights_of(module.net)


def by_accelerate(comm: Any, accumulated: int) -> Weights:
    """Train with ``accelerator.accumulate``, as its quick tour does."""
    from accelerate import Accelerator

    join_elastic(comm)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    net = Net()
    model, optimizer = accelerator.prepare(net, adamw(net))
    for x, y in micro_batches(comm.rank, comm.world_size, accumulated):
        with accelerator.accumulate(model):
            accelerator.backward(mean_or_zero(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(net)


def by_hugging_face(comm: Any, accumulated: int) -> Weights:
    """Train with Hugging Face's Trainer and a model that takes ``num_items_in_batch``."""
    from transformers import PrinterCallback, TrainingArguments
    from transformers import Trainer as HFTrainer

    join_elastic(comm)

    class InOrder(HFTrainer):  # its sampler would shuffle
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    size = SEQUENCES // comm.world_size // accumulated
    rows = [{"x": x, "labels": y} for x, y in zip(*sequences(), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
            max_grad_norm=CLIP,
            learning_rate=0.05,
            lr_scheduler_type="constant",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        net = Net()
        # Its own optimizer would spare biases the decay of weights.
        optimizers = (adamw(net), None)
        trainer = InOrder(net, args, train_dataset=rows, optimizers=optimizers)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return weights_of(net)


TOOLS: dict[str, Callable[[Any, int], Weights]] = {
    "distmetrics Runner, `weight=`": by_runner,
    'distmetrics Trainer, `"weight"`': by_trainer,
    "DistributedDataParallel": by_ddp,
    "Lightning": by_lightning,
    "Accelerate, `accumulate`": by_accelerate,
    "Hugging Face, `num_items_in_batch`": by_hugging_face,
}


def _quiet(comm: Any, tool: Callable[[Any, int], Weights], accumulated: int) -> Weights:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    return tool(comm, accumulated)


def difference(tool: Callable[[Any, int], Weights], world_size: int, accumulated: int) -> float:
    """Return the largest difference of any weight on any rank to one process's."""
    expected = one_process()
    found = settle(launch(_quiet, world_size, tool, accumulated, start_method="spawn"))
    pairs = ((weights[name], value) for weights in found for name, value in expected.items())
    return max(float((own - value).abs().max()) for own, value in pairs)


def main() -> None:
    """Measure, print, and write the table."""
    args = arguments(__doc__, worlds=(len(WORLDS), 2))
    worlds = WORLDS[: args.worlds]
    heads = [f"W = {world_size}, {accumulated} micro-batches" for world_size, accumulated in worlds]
    rows = []
    for name, tool in TOOLS.items():
        rows.append([name, *(f"{difference(tool, *world):.1e}" for world in worlds)])
        print(*rows[-1], sep=" | ", flush=True)
    known = versions("lightning", "accelerate", "transformers")
    about = "`python -m benchmarks.token_losses`: the largest difference of any weight to one "
    about += f"process's, after {STEPS} steps; "
    about += ", ".join(f"{name} {found}" for name, found in known.items())
    if args.is_whole:
        text = "\n\n".join(["# Losses over tokens", f"{about}.", table(["", *heads], rows)])
        (RESULTS / "token_losses.md").write_text(text + "\n")


if __name__ == "__main__":
    main()

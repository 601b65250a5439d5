"""Lightning's part of the table of frameworks: what is logged with the callback, and without."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from distmetrics.testing import run

WORLDS = (1, 2, 3, 4)
LENGTHS = ("divisible", "one more", "fewer than ranks", "one")
BATCH_SIZES = (1, 4)
NAMES = ("count", "f1", "loss")
Values = dict[str, float]


class Outcome(NamedTuple):
    """The numbers that rank 0 has logged, and those of one process."""

    ours: Values
    framework: Values
    single: Values


class Case(NamedTuple):
    """An evaluation.

    Attributes:
        world_size: number of ranks.
        length: which of ``LENGTHS``.
        samples: how many that is.
        batch_size: of each rank.
        iterable: the data set has no order that a sampler could deal out.
    """

    world_size: int
    length: str
    samples: int
    batch_size: int
    iterable: bool

    @property
    def name(self) -> str:
        """Return a name for the table."""
        kind = "iterable" if self.iterable else "map"
        return f"Lightning W={self.world_size} {self.length} batch={self.batch_size} {kind}"


class _Stream(IterableDataset[Any]):
    """Samples in their order, the same on every rank."""

    def __init__(self, samples: TensorDataset) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self.samples)):
            yield self.samples[index]


def all_cases() -> Iterator[Case]:
    """Yield every evaluation of the table."""
    for world_size in WORLDS:
        counts = (8 * world_size, 8 * world_size + 1, max(world_size - 1, 1), 1)
        for length, samples in zip(LENGTHS, counts, strict=True):
            for batch_size in BATCH_SIZES:
                for iterable in (False, True):
                    yield Case(world_size, length, samples, batch_size, iterable)


def cases() -> Iterator[tuple[str, Outcome]]:
    """Yield name and outcome of every evaluation; those of a world share its processes."""
    todo = list(all_cases())
    for world_size in WORLDS:
        part = [case for case in todo if case.world_size == world_size]
        single = run(1, evaluations, part, False, backend="gloo")[0]
        ours = run(world_size, evaluations, part, True, backend="gloo")[0]
        theirs = run(world_size, evaluations, part, False, backend="gloo")[0]
        for case, *values in zip(part, ours, theirs, single, strict=True):
            yield case.name, Outcome(*values)


def evaluations(comm: Any, part: list[Case], with_callback: bool) -> list[Values]:
    """Return what one rank logs in each case."""
    return [_evaluate(comm, case, with_callback) for case in part]


def _evaluate(comm: Any, case: Case, with_callback: bool) -> Values:
    import lightning.pytorch as lightning

    from distmetrics.data import exact
    from distmetrics.integrations.lightning import SyncMetrics

    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    if comm.world_size > 1:
        os.environ |= _elastic(comm)
    generator = torch.Generator().manual_seed(case.samples)
    x = torch.randn(case.samples, 3, generator=generator)
    y = (x.sum(1) + torch.randn(case.samples, generator=generator) > 0).long()
    samples = TensorDataset(x, y)
    loader: Any = DataLoader(
        _Stream(samples) if case.iterable else samples, batch_size=case.batch_size
    )
    if with_callback and case.iterable:
        loader = exact(loader)
    callbacks: Any = [SyncMetrics()] if with_callback else []
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=comm.world_size,
        strategy="ddp" if comm.world_size > 1 else "auto",
        callbacks=callbacks,
        default_root_dir=tempfile.gettempdir(),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    (values,) = trainer.validate(_module(lightning), loader, verbose=False)
    return {name: float(values[name]) for name in NAMES}


def _elastic(comm: Any) -> dict[str, str]:
    """Return what torchrun tells a process; the group that is there already is then used."""
    return {
        "RANK": str(comm.rank),
        "LOCAL_RANK": str(comm.rank),
        "WORLD_SIZE": str(comm.world_size),
        "LOCAL_WORLD_SIZE": str(comm.world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "benchmark",
    }


def _module(lightning: Any) -> Any:
    """Return a module that logs a count, an F1 score and a mean loss, as its users write it."""
    from torch.nn.functional import binary_cross_entropy_with_logits
    from torchmetrics import SumMetric
    from torchmetrics.classification import BinaryF1Score

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.count, self.f1 = SumMetric(), BinaryF1Score()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            scores = self.layer(x).squeeze(1)
            self.count.update(len(y))
            # torchmetrics guesses from each batch whether it holds logits or probabilities
            self.f1.update(scores.sigmoid(), y)
            loss = binary_cross_entropy_with_logits(scores, y.float())
            self.log("loss", loss, sync_dist=True)
            self.log("count", self.count)
            self.log("f1", self.f1)

    return Model()

"""Drivers of examples inside a real Trainer of Lightning's."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.guard.agreement.libraries import column, loader, trainer, whole
from tests.guard.agreement.runner import Names, drives
from tests.guard.agreement.simple import BROKEN, SEEDS

PL = "pytorch_lightning"


@drives("DL101-bad-0", mend={"if self.trainer.is_global_zero": "if True"})
def gather_on_the_main_rank(rank: int, names: Names) -> None:
    trainer().validate(whole(names().Model, scores=column(1.0 + rank)), loader(column(1.0)), verbose=False)


@drives("DL101-bad-4", mend={"    @rank_zero_only\n": ""})
def compute_on_the_main_rank(rank: int, names: Names) -> None:
    from lightning.pytorch.utilities import rank_zero_only

    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # as the Trainer does it
    report = names().Report()
    report.accuracy.update(torch.tensor([0.9, 0.2]), torch.tensor([1, rank]))
    report.print()


@drives("DL101-bad-5", mend={"trainer.is_global_zero": "True"})
def test_on_the_main_rank(rank: int, names: Names) -> None:
    from lightning.pytorch import LightningModule

    names(Trainer=trainer).main(whole(LightningModule), loader(column(1.0 + rank)))


@drives("DL102-bad-0", elsewhere=True, mend={"self.trainer.is_global_zero": "True"})
def log_of_the_main_rank(rank: int, names: Names) -> None:
    model = whole(names().Model, scores=column(1.0 + rank, 2.0))
    trainer().validate(model, loader(column(1.0)), verbose=False)


@drives("DL102-bad-1", elsewhere=True, mend={"self.global_rank != 0": "False"})
def monitored_log_of_the_main_rank(rank: int, names: Names) -> None:
    """Nothing is sent for the log: it is the callback that reads it which all ranks must enter."""
    from pytorch_lightning.callbacks import ModelCheckpoint

    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean())
    best = ModelCheckpoint(".", monitor="loss", save_on_train_epoch_end=True)
    trainer(library=PL, enable_checkpointing=True, callbacks=[best]).fit(model, loader(column(1.0 + rank)))


@drives("DL102-bad-2", elsewhere=True, mend={"    @rank_zero_only\n": ""})
def callback_of_the_main_rank(rank: int, names: Names) -> None:
    found = names()
    model = whole(found.Model, scale=1.0, rest=1.0)
    trainer(callbacks=[found.Report()]).fit(model, loader(column(1.0 + rank)))


@drives(
    "DL103-bad-1",
    long=True,
    own=BROKEN,
    mend={"if mask.any()": "if True", "if len(chosen) > 0 and self.training": "if False"},
)
def log_of_a_mask(rank: int, names: Names) -> None:
    """One rank waits in the log, the other in the backward of DistributedDataParallel, which nobody watches."""
    batch = (column(1.0, 2.0), column(-1.0, 1.0 - 2 * rank))
    model = whole(names().Model, loss=lambda self, logits, y: (logits - y).square().mean())
    trainer().fit(model, loader(batch, batch))


@drives(
    "DL104-bad-1",
    mend={
        "in torch.unique(y)": "in range(2)",
        "x[y == label]": "x",
        "y.unique().tolist()": "range(2)",
        "int(y.sum().item())": "1",
    },
)
def log_of_each_label(rank: int, names: Names) -> None:
    batch = (column(1.0, 2.0), torch.tensor([0, 1 - rank]))
    model = whole(names().Model, score=lambda self, x: x.mean())
    trainer().validate(model, loader(batch), verbose=False)


@drives("DL105-bad-1", elsewhere=True, mend={"self.scores.items()": "sorted(self.scores.items())"})
def log_of_names_as_they_came(rank: int, names: Names) -> None:
    batch = {"names": ["cat", "dog"][:: 1 - 2 * rank], "x": column(1.0, 2.0)}
    model = whole(names().Model, forward=lambda self, batch: self.layer(batch["x"]), score=lambda self, name: 1.0)
    trainer().validate(model, loader(batch), verbose=False)


@drives("DL105-bad-1", "set", elsewhere=True, hash_seeds=SEEDS, long=True)
def log_of_names_in_another_order(rank: int, names: Names) -> None:
    model = whole(names().Model, validation_step=lambda self, batch, batch_idx: None, score=lambda self, name: 1.0)
    trainer().validate(model, loader(column(1.0)), verbose=False)


@drives("DL106-bad-0", "rescue", long=True)
def checkpoint_of_the_rank_that_failed(rank: int, names: Names) -> None:
    from lightning.pytorch import LightningModule

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        if rank and batch_idx:
            raise RuntimeError("out of memory")
        return self(batch).mean()

    fitted = trainer()
    model = whole(
        LightningModule, training_step=training_step, train_dataloader=lambda self: loader(*[column(1.0)] * 3)
    )
    names().fit(fitted, model)


@drives("DL107-bad-0", elsewhere=True, mend={'"hard"': '"easy"', "{self.global_rank}": ""})
def names_of_an_easy_batch(rank: int, names: Names) -> None:
    _validate(names, level=float(rank))


@drives("DL107-bad-0", "rank", elsewhere=True, mend={"{self.global_rank}": ""})
def names_of_the_rank(rank: int, names: Names) -> None:
    """The batches are alike."""
    _validate(names, level=0.0)


def _validate(names: Names, level: float) -> None:
    model = whole(names().Model, forward=lambda self, batch: self.layer(batch["level"]).mean(), scale=1.0)
    trainer().validate(model, loader({"level": column(level)}), verbose=False)


@drives("DL107-bad-2", elsewhere=True, mend={'"small"': '"large"'})
def names_of_a_small_batch(rank: int, names: Names) -> None:
    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean() * 0 + x.mean())
    trainer().validate(model, loader(column(0.5 + rank)), verbose=False)


@drives("DL107-bad-1", mend={'"small"': '"large"'})
def names_of_a_large_loss(rank: int, names: Names) -> None:
    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean())
    trainer(library=PL).fit(model, loader(column(0.5 + rank)))


def validate(model: Any, batch: Any) -> dict[str, float]:
    """Validate on one batch; return what was logged."""
    (logged,) = trainer().validate(model, loader(batch), verbose=False)
    return dict(logged)


@drives("DL101-good-0")
def gather_on_every_rank(rank: int, names: Names) -> None:
    logged = validate(whole(names().Model, scores=column(1.0 + rank)), column(1.0))
    assert logged == ({} if rank else {"score": 1.5})


@drives("DL101-good-4")
def test_by_a_trainer_of_one_rank(rank: int, names: Names) -> None:
    from lightning.pytorch import LightningModule

    names(Trainer=trainer).main(whole(LightningModule), loader(column(1.0 + rank)))


@drives("DL102-good-0")
def log_for_the_main_rank_alone(rank: int, names: Names) -> None:
    silent = SimpleNamespace(log_metrics=str, experiment=SimpleNamespace(log=lambda values, step: None))
    model = whole(
        names(print=str).Model, scores=column(1.0 + rank, 4.0), options={"rank_zero_only": True}, logger=silent
    )
    logged = validate(model, column(1.0))
    assert set(logged) == ({"score", "mean"} if rank else {"score", "mean", "spread", "low"})


@drives("DL102-good-1")
def log_in_both_arms(rank: int, names: Names) -> None:
    trainer().fit(whole(names().Model, scale=1.0 + rank), loader(column(1.0)))


@drives("DL102-good-2")
def hook_of_the_main_rank(rank: int, names: Names) -> None:
    from lightning.pytorch.utilities import rank_zero_only

    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # as the Trainer does it
    logged = validate(whole(names().Model), column(1.0 + rank))
    assert logged == ({} if rank else {"metric": 1.0})


@drives("DL103-good-1")
def gather_in_both_arms(rank: int, names: Names) -> None:
    model = whole(names().Model, forward=lambda self, batch: self.layer(batch["x"]).mean())
    validate(model, {"x": column(1.5 - rank), "mode": "first"})


@drives("DL104-good-2")
def log_of_each_name(rank: int, names: Names) -> None:
    validate(whole(names().Model), {"image": column(1.0, 2.0), "y": column(0.0, 1.0 - rank)})


@drives("DL105-good-1")
def test_on_one_device(rank: int, names: Names) -> None:
    from lightning.pytorch import LightningModule

    fitted, folder = trainer([1]), Path("checkpoints")
    fitted.fit(whole(LightningModule), loader(column(1.0)))
    for name in ("a", "b"):
        fitted.save_checkpoint(folder / name)
    listed = SimpleNamespace(listdir=lambda each: sorted(map(str, each.iterdir()), reverse=bool(rank)))
    found = names(Trainer=trainer, os=listed)
    found.test_all(whole(LightningModule), loader(column(1.0)), folder, 1)


@drives("DL105-good-2")
def log_of_names_in_one_order(rank: int, names: Names) -> None:
    model = whole(names().Model, heads=("a", "b"), loss=lambda self, name, batch: batch["x"].mean())
    validate(model, {"x": torch.tensor(1.0 + rank)})
    assert isinstance(model.scores, defaultdict)


@drives("DL107-good-0")
def names_that_are_alike(rank: int, names: Names) -> None:
    def size(self: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"size": loss}

    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.layer(x).mean()

    model = whole(names().Model, forward=forward, large=size, small=size)
    validate(model, column(3.0 - 2.5 * rank))


@drives("DL107-good-1")
def names_of_the_main_rank_alone(rank: int, names: Names) -> None:
    validate(whole(names(print=str).Model, scale=1.0), column(1.0))


@drives("DL107-good-2")
def names_of_the_step_and_of_the_epoch(rank: int, names: Names) -> None:
    """Each rank has batches of both kinds; in one order, since the guard also compares that of lines."""
    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean() * 0 + x.mean())
    trainer().validate(model, loader(column(0.5 + 0.1 * rank), column(2.0 + rank)), verbose=False)

"""Drivers of good examples inside a real Trainer of Lightning's."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.guard.agreement.libraries import column, loader, trainer, whole
from tests.guard.agreement.runner import Names, drives


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

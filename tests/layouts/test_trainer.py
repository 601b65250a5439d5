"""Trainer and Runner over a mesh: the logged numbers are those of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.train import EarlyStopping, ModelCheckpoint, Trainer
from tests.run.models import Logistic, loader, samples
from tests.run.threads import TrainerThreads as Threads

PLANE = {"dp": 2, "tp": 2}
SWAPPED = partial(dm.layout, {"tp": 2, "dp": 2}, tp="same", dp="shard")
LOCAL = {"train_loss_step"}


def fitted(strategy: Any, devices: int, layout: Any = None, *, batch: int = 12, folder: Path | None = None) -> Any:
    callbacks = [EarlyStopping("val_loss", patience=1)]
    if folder is not None:
        callbacks.append(ModelCheckpoint("val_loss", save_last=True, dirpath=folder))
    trainer = Trainer(
        strategy=strategy, devices=devices, accelerator="cpu", max_epochs=3, callbacks=callbacks, layout=layout
    )
    module = Logistic()
    trainer.fit(module, loader(24, batch), loader(7, 2, seed=1))
    return module, trainer


def assert_same(fit: Any, expected: Any) -> None:
    (module, trainer), (single, other) = fit, expected
    values = trainer.callback_metrics.keys() - LOCAL
    assert values == other.callback_metrics.keys() - LOCAL
    for name in values:
        assert float(trainer.callback_metrics[name]) == pytest.approx(float(other.callback_metrics[name]), rel=1e-5), (
            name
        )
    assert (trainer.current_epoch, trainer.global_step) == (other.current_epoch, other.global_step)
    for mine, theirs in zip(module.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ranks", "layout", "shards"), [(4, SWAPPED, 2), (8, {"dp": 2, "cp": 2, "tp": 2}, 4), (2, {"tp": 2}, 1)]
)
def test_a_fit_over_a_mesh_is_that_of_one_process(ranks: int, layout: Any, shards: int) -> None:
    fit = fitted(Threads(), ranks, layout, batch=12 // shards)
    assert_same(fit, fitted("single", 1))


class Split(Logistic):
    """Tells of other samples than its shard's, on one rank."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1.0 + (self.global_rank == 3))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return batch[0]


def test_predictions_are_in_the_order_of_the_data_and_a_wrong_claim_names_the_axis() -> None:
    trainer = Trainer(strategy=Threads(), devices=4, accelerator="cpu", layout=PLANE)
    predicted = trainer.predict(Split(), loader(7, 2))
    assert predicted is not None
    torch.testing.assert_close(torch.cat(predicted), samples(7).tensors[0])
    with pytest.raises(dm.LayoutError, match=r"along the axis tp, .* the value of 'val_loss' differs"):
        trainer.validate(Split(), loader(8))


def test_a_checkpoint_within_an_epoch_goes_on_over_any_mesh(tmp_path: Path) -> None:
    keeper = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=6, save_top_k=-1)
    module = Logistic()
    flags: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2}
    whole = Trainer(strategy=Threads(), devices=4, layout=PLANE, callbacks=[keeper], **flags)
    whole.fit(module, loader(24, 3), loader(7, 2, seed=1))
    (path,) = [each for each in tmp_path.glob("*.ckpt") if "step=6" in each.name]
    for ranks, layout, batch in [(4, PLANE, 3), (1, None, 6), (2, {"dp": 2}, 3)]:
        again = Logistic()
        strategy = Threads() if ranks > 1 else "single"
        trainer = Trainer(strategy=strategy, devices=ranks, layout=layout, **flags)
        trainer.fit(again, loader(24, batch), loader(7, 2, seed=1), ckpt_path=path)
        assert_same((again, trainer), (module, whole))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ({"dp": 2, "pp": 2}, "along the axis pp only one coordinate has values"),
        ({"dp": 2, "tp": 3}, "has 6 ranks, and there are 4"),
        ({"dp": "shard", "tp": "same"}, "the axis dp has no ranks; the axes are none"),
        (partial(dict, a=1), "returned {'a': 1}, and no layout"),
    ],
)
def test_what_does_not_go_together(layout: Any, text: str) -> None:
    trainer = Trainer(strategy=Threads(), devices=4, accelerator="cpu", layout=layout)
    with pytest.raises(dm.DistmetricsError, match=text):
        trainer.validate(Logistic(), loader(8))
    for wrong in (3, dm.layout({"dp": 1}, dp="shard")):
        with pytest.raises(dm.ConfigurationError, match="layout must be sizes"):
            Trainer(layout=wrong)

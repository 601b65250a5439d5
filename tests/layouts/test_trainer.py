"""Trainer and Runner over a mesh: the logged numbers are those of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric

import distmetrics as dm
from distmetrics.runner import Runner
from distmetrics.train import EarlyStopping, ModelCheckpoint, Trainer
from tests.run.models import Logistic, loader, samples
from tests.run.threads import Threads as RunnerThreads
from tests.run.threads import TrainerThreads as Threads
from tests.strategies.forked import ForkedFSDP

PLANE = {"dp": 2, "tp": 2}
SWAPPED = partial(dm.layout, {"tp": 2, "dp": 2}, tp="same", dp="shard")
LOCAL = {"train_loss_step"}


class Noisy(Logistic):
    """With dropout, which ranks that hold the same samples must draw alike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.dropout(x, 0.5, self.training))


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
    ("ranks", "layout", "shards"),
    [
        (4, PLANE, 2),
        (4, SWAPPED, 2),
        (6, {"dp": 3, "tp": 2}, 3),
        (8, {"dp": 2, "cp": 2, "tp": 2}, 4),
        (2, {"tp": 2}, 1),
    ],
)
def test_a_fit_over_a_mesh_is_that_of_one_process(ranks: int, layout: Any, shards: int) -> None:
    fit = fitted(Threads(), ranks, layout, batch=12 // shards)
    assert_same(fit, fitted("single", 1))


def test_without_it_samples_are_dealt_to_all() -> None:
    """The layout is what makes the difference: the same batch size trains on other batches."""
    _, trainer = fitted(Threads(), 4, batch=6)
    _, single = fitted("single", 1)
    assert trainer.global_step != single.global_step


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("strategy", "layout"),
    [("ddp_fork", PLANE), (ForkedFSDP(replicas=2), {"replicate": "shard", "shard": "same"})],
    ids=["ddp", "hsdp"],
)
def test_on_processes(strategy: Any, layout: Any, tmp_path: Path) -> None:
    expected = fitted("single", 1, folder=tmp_path / "single")
    fit = fitted(strategy, 4, layout, batch=6, folder=tmp_path / "mesh")
    assert_same(fit, expected)
    mine, theirs = fit[1].callbacks[-1], expected[1].callbacks[-1]
    assert float(mine.best_model_score) == pytest.approx(float(theirs.best_model_score), rel=1e-5)
    assert Path(mine.best_model_path).name == Path(theirs.best_model_path).name


@pytest.mark.gloo
def test_ranks_with_the_same_samples_draw_the_same_numbers() -> None:
    flags: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 1, "seed": 3}
    trainer = Trainer(strategy="ddp_fork", devices=4, layout=PLANE, **flags)
    trainer.fit(Noisy(), loader(24, 6))
    assert "train_loss" in trainer.callback_metrics


class Split(Logistic):
    """Tells of other samples than its shard's, on one rank."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1.0 + (self.global_rank == 3))


def test_a_wrong_claim_names_the_axis() -> None:
    trainer = Trainer(strategy=Threads(), devices=4, accelerator="cpu", layout=PLANE)
    with pytest.raises(dm.LayoutError, match=r"along the axis tp, .* the value of 'val_loss' differs"):
        trainer.validate(Split(), loader(8))


class Telling(Logistic):
    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return batch[0]


def test_predictions_are_in_the_order_of_the_data() -> None:
    trainer = Trainer(strategy=Threads(), devices=4, accelerator="cpu", layout=PLANE)
    predicted = trainer.predict(Telling(), loader(7, 2))
    assert predicted is not None
    torch.testing.assert_close(torch.cat(predicted), samples(7).tensors[0])


def test_a_checkpoint_within_an_epoch_goes_on_over_any_mesh(tmp_path: Path) -> None:
    keeper = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=6, save_top_k=-1)
    module = Logistic()
    flags: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2}
    whole = Trainer(strategy=Threads(), devices=4, layout=PLANE, callbacks=[keeper], **flags)
    whole.fit(module, loader(24, 3), loader(7, 2, seed=1))
    (path,) = [each for each in tmp_path.glob("*.ckpt") if "step=6" in each.name]
    for ranks, layout, batch in [(4, PLANE, 3), (1, None, 6), (2, {"dp": 2}, 3), (2, {"tp": 2}, 6)]:
        again = Logistic()
        strategy = Threads() if ranks > 1 else "single"
        trainer = Trainer(strategy=strategy, devices=ranks, layout=layout, **flags)
        trainer.fit(again, loader(24, batch), loader(7, 2, seed=1), ckpt_path=path)
        assert_same((again, trainer), (module, whole))


def loop(runner: Runner) -> Any:
    evaluation = runner.setup_dataloaders(loader(7, 2), train=False)
    metric = MeanMetric()
    seen = []
    for x, _ in evaluation:
        metric.update(x)
        seen.append(x)
        runner.log.mean("x", x.mean(), weight=len(x))
    rows = torch.cat(seen)
    return (
        runner.log.flush()["x"],
        float(runner.sync_and_compute(metric)),
        float(runner.all_reduce(rows.mean(), "mean", weight=len(rows))),
        float(dm.mean(rows.mean(), weight=len(rows))),  # over the layout that is in force
        runner.world_size,
        int(runner.all_reduce(1)),
    )


@pytest.mark.parametrize("layout", [PLANE, SWAPPED])
def test_runner(layout: Any) -> None:
    whole = float(samples(7).tensors[0].mean())
    for result in Runner(strategy=RunnerThreads(), devices=4, layout=layout).launch(loop):
        assert result == (*[pytest.approx(whole, rel=1e-5)] * 4, 4, 2)


def of_a_pipeline(runner: Runner) -> Any:
    over = runner.strategy.shards()
    loss = 1.0 + over.rank if over.mesh.owns(runner.global_rank) else None
    return float(dm.mean(loss, weight=1))


def test_runner_over_a_pipeline() -> None:
    runner = Runner(strategy=RunnerThreads(), devices=4, layout={"pp": 2, "dp": 2})
    assert runner.launch(of_a_pipeline) == [1.5] * 4


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


@pytest.mark.parametrize("layout", [3, dm.layout({"dp": 1}, dp="shard")])
def test_what_is_no_layout(layout: Any) -> None:
    with pytest.raises(dm.ConfigurationError, match="layout must be sizes"):
        Trainer(layout=layout)

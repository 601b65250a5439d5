"""The Lightning callback, with the real Lightning: the value of one process, in a fraction of the collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader

from distmetrics import SingleCommunicator, StateError
from distmetrics.testing import run
from tests.integrations.exact_evaluation import trainer_of
from tests.integrations.modules import fit

lightning = pytest.importorskip("lightning.pytorch")
from distmetrics.integrations.lightning import SyncMetrics  # noqa: E402  (needs lightning)


@pytest.mark.gloo
@pytest.mark.timeout(240)
def test_logged_metrics_are_those_of_one_process() -> None:
    """Logged objects, a collection, a metric computed and reset by hand, and one that is never reset."""
    alone = fit(SingleCommunicator(), with_callback=False)
    ours = run(2, fit, True, backend="gloo")
    theirs = run(2, fit, False, backend="gloo")
    assert set(alone["logged"]) == {
        "train_f1", "BinaryF1Score", "BinaryPrecision", "BinaryRecall", "BinaryAUROC"
    }  # fmt: skip
    for rank in ours:
        assert rank["logged"] == pytest.approx(alone["logged"], rel=1e-6)
        assert rank["by hand"] == pytest.approx(alone["by hand"], rel=1e-6)
        assert rank["updates"] == ([0, 2], 4, 0)  # local counts: the one by hand was reset, the other adds up
    assert ours[0]["gathers"] < theirs[0]["gathers"] / 3


def test_in_one_process_nothing_changes() -> None:
    """The callback may stay in the script when it runs on one device."""
    assert fit(SingleCommunicator(), with_callback=True) == fit(SingleCommunicator(), with_callback=False)


def validate(module: Any, *loaders: Any, metrics: Any = None) -> SyncMetrics:
    """Validate in this process, over loaders of one batch; return the callback."""
    callback = SyncMetrics(metrics)
    trainer = trainer_of(SingleCommunicator(), lightning, [callback])
    trainer.validate(module, [*loaders] or DataLoader([torch.ones(())]), verbose=False)
    return callback


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Adds up; what its metric is between the steps is in ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()
        self.seen: list[bool] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append(self.mean._is_synced)
        self.mean.update(batch)

    def on_validation_batch_end(self, *_: Any) -> None:
        self.seen.append(self.mean._is_synced)


def test_a_name_that_is_no_metric() -> None:
    """Named on every rank, before any collective."""
    with pytest.raises(StateError, match=r"has no metric 'val_f1'[\s\S]*it has mean") as caught:
        validate(Model(), metrics=["val_f1"])
    assert caught.value.do


def test_a_module_without_metrics() -> None:
    """Nothing to do is no error: the callback may be a default."""
    module = Model()
    del module.mean
    module.validation_step = module.on_validation_batch_end = lambda *_: None
    validate(module)


def test_an_update_after_the_sync_is_an_error() -> None:
    """It would be lost without a word; local state is put back all the same."""

    class Late(Model):
        def on_validation_epoch_end(self) -> None:
            assert self.mean._is_synced
            self.mean.update(5.0)

    module = Late()
    with pytest.raises(StateError, match="MeanMetric was updated after the epoch's sync"):
        validate(module)
    assert (module.mean._is_synced, float(module.mean.compute())) == (False, 1.0)


def test_every_loader_ends_with_a_sync() -> None:
    """Lightning computes what a loader's steps have logged when that loader ends; no step sees it."""

    class Ends(Model):
        def on_validation_epoch_end(self) -> None:
            self.seen.append(self.mean._is_synced)
            self.log("mean", self.mean.compute())

    module = Ends()
    callback = validate(module, *[DataLoader([torch.tensor(value)]) for value in (1.0, 2.0)])
    assert module.seen == [False] * 4 + [True]
    assert not module.mean._is_synced
    assert callback.metrics is None
    assert module.trainer.callback_metrics["mean"] == 1.5

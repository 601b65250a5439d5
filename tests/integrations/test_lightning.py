"""The Lightning callback, with the real Lightning: the value of one process, in a fraction of the collectives."""

from __future__ import annotations

import pytest
import torch
import torchmetrics

from distmetrics import SingleCommunicator, StateError
from distmetrics.testing import run
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


def test_a_name_that_is_no_metric() -> None:
    """Named on every rank, before any collective."""
    callback = SyncMetrics(metrics=["val_f1"])
    module = torch.nn.Module()
    module.layer = torch.nn.Linear(1, 1)
    with pytest.raises(StateError, match="has no metric 'val_f1'") as caught:
        callback.on_validation_epoch_end(None, module)
    assert "it has layer" in str(caught.value)


def test_a_module_without_metrics() -> None:
    """Nothing to do is no error: the callback may be a default."""
    callback = SyncMetrics()
    callback.on_validation_epoch_end(None, torch.nn.Linear(1, 1))
    callback.on_validation_end(None, torch.nn.Linear(1, 1))


class Trainer:
    """What the callback asks a trainer."""

    sanity_checking = testing = False

    def __init__(self) -> None:
        self.num_val_batches = [2, 1]


def test_an_update_after_the_sync_is_an_error() -> None:
    """It would be lost without a word; local state is put back all the same."""
    callback, module, trainer = SyncMetrics(), torch.nn.Module(), Trainer()
    module.mean = torchmetrics.MeanMetric()
    module.mean.update(1.0)
    callback.on_validation_batch_end(trainer, module, None, None, 0)
    assert not module.mean._is_synced
    callback.on_validation_batch_end(trainer, module, None, None, 1)
    assert module.mean._is_synced
    module.mean.update(5.0)
    with pytest.raises(StateError, match="MeanMetric was updated after the epoch's sync"):
        callback.on_validation_end(trainer, module)
    assert (module.mean._is_synced, float(module.mean.compute())) == (False, 1.0)


def test_every_loader_ends_with_a_sync() -> None:
    """Lightning computes what a loader's steps have logged when that loader ends."""
    callback, module, trainer = SyncMetrics(["mean"]), torch.nn.Module(), Trainer()
    module.mean = torchmetrics.MeanMetric()
    module.mean.update(1.0)
    callback.on_validation_batch_end(trainer, module, None, None, 1, dataloader_idx=0)
    assert module.mean._is_synced
    callback.on_validation_batch_start(trainer, module, None, 0, dataloader_idx=1)
    assert not module.mean._is_synced
    module.mean.update(2.0)
    callback.on_validation_batch_end(trainer, module, None, None, 0, dataloader_idx=1)
    assert float(module.mean.compute()) == 1.5
    callback.on_exception(trainer, module, RuntimeError())
    assert not module.mean._is_synced

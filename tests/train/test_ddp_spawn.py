"""Real processes: the same numbers as one process, everything home afterwards, nobody left behind."""

from __future__ import annotations

import os
import re
import signal
import threading

import psutil
import pytest
import torch
from torch import nn

from distmetrics.errors import InputTypeError, PeerLostError
from distmetrics.train import EarlyStopping, ModelCheckpoint, Trainer
from tests.train.models import Logistic, Plain, loader

pytestmark = [pytest.mark.gloo, pytest.mark.spawn]


@pytest.fixture(autouse=True)
def no_process_is_left():
    this = psutil.Process()
    before = set(this.children(recursive=True))
    yield
    left = [process for process in this.children(recursive=True) if process not in before]
    assert [process for process in left if process.ppid() != this.pid or not is_helper(process)] == []


def is_helper(process):
    """Whether it is multiprocessing's own, which stays for the next launch; what it forks has another parent."""
    return re.search(r"multiprocessing\.(resource_tracker|forkserver) ", " ".join(process.cmdline())) is not None


class Normed(Logistic):
    """With running statistics, which every rank gathers from its own batches."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return super().forward(self.norm(x))


def fit(strategy, devices, tmp_path, *, module=None, global_batch=12, val=5):
    module = module or Logistic()
    callbacks = [
        ModelCheckpoint("val_loss", save_top_k=2, save_last=True, dirpath=tmp_path / strategy),
        EarlyStopping("val_auroc", mode="max", patience=1),
    ]
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=4, callbacks=callbacks)
    trainer.fit(module, loader(24, global_batch // devices), loader(val, 2, seed=1))
    return module, trainer


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_everything_is_as_in_one_process(tmp_path, world_size):
    val = 5 if world_size == 2 else 2  # rank 0 of three has nothing to validate
    expected_module, expected = fit("single", 1, tmp_path, val=val)
    module, trainer = fit("ddp_spawn", world_size, tmp_path, val=val)
    assert trainer.local_metrics == {"train_loss_step"}
    assert trainer.callback_metrics.keys() == expected.callback_metrics.keys()
    for name, value in expected.callback_metrics.items():
        if name.endswith("count"):
            assert trainer.callback_metrics[name] == value
        elif name not in trainer.local_metrics:
            assert float(trainer.callback_metrics[name]) == pytest.approx(float(value), rel=1e-6), name
    for found, wanted in zip(module.parameters(), expected_module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    assert (trainer.current_epoch, trainer.global_step) == (expected.current_epoch, expected.global_step)
    assert (module.trainer, module.current_epoch) == (trainer, trainer.current_epoch)
    found, wanted = trainer.callbacks, expected.callbacks
    assert found[0].stopped_epoch == wanted[0].stopped_epoch
    assert found[1].best_model_score == pytest.approx(wanted[1].best_model_score, rel=1e-6)
    names = [path.name for path in sorted((tmp_path / "ddp_spawn").iterdir())]
    assert names == [path.name for path in sorted((tmp_path / "single").iterdir())]
    saved = torch.load(found[1].last_model_path)["state_dict"]
    for name, value in module.state_dict().items():
        assert torch.equal(saved[name], value)


def test_one_model_is_evaluated_and_saved_though_running_statistics_drift(tmp_path):
    module, trainer = fit("ddp_spawn", 2, tmp_path, module=Normed())
    again = Trainer(strategy="single", accelerator="cpu").validate(module, loader(5, 2, seed=1))[0]
    for name, value in again.items():
        assert float(trainer.callback_metrics[name]) == pytest.approx(value, rel=1e-6), name


class Fails(Plain):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1 and batch_idx == 1:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("bad pixel")
        return super().training_step(batch, batch_idx)


def run(module, *, train=None):
    trainer = Trainer(strategy="ddp_spawn", devices=2, accelerator="cpu", max_epochs=1)
    trainer.fit(module, loader(24, 3) if train is None else train)


def test_the_error_of_the_rank_that_failed_is_raised():
    with pytest.raises(ValueError, match="bad pixel") as info:
        run(Fails("raise"))
    assert info.value.__notes__[0] == "raised on rank 1"
    assert "test_ddp_spawn.py" in str(info.value.__cause__)


def test_a_rank_that_was_killed_is_named():
    with pytest.raises(PeerLostError, match="rank 1") as info:
        run(Fails("kill"))
    assert "rank 1  was killed by SIGKILL" in str(info.value)


def test_what_can_not_be_sent_is_named():
    module = Logistic()
    module.layer.lock = threading.Lock()
    with pytest.raises(InputTypeError, match=r"module\.layer\.lock cannot be sent"):
        run(module)
    data = loader(8)
    data.dataset.lock = threading.Lock()
    with pytest.raises(InputTypeError, match=r"call\.dataloaders\.dataset\.lock cannot be sent"):
        run(Logistic(), train=data)


class Skips(Plain):
    def training_step(self, batch, batch_idx):
        return None


def test_a_step_without_a_loss_is_refused_where_others_would_wait():
    with pytest.raises(ValueError, match="training_step returned None"):
        run(Skips())


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

    def on_fit_start(self):
        self.requires_grad_(True)


def test_a_module_that_is_unfrozen_too_late_is_refused():
    with pytest.raises(ValueError, match="all are frozen"):
        run(Frozen())

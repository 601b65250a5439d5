"""A fit that goes on from a checkpoint ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from distmetrics.errors import ConfigurationError
from distmetrics.run.metric_states import load_states, merged, metric_states
from distmetrics.train import Callback, EarlyStopping, ModelCheckpoint, Module, Trainer
from tests.train.models import Logistic, loader, samples
from tests.train.resumable import Augmented, Noisy, run
from tests.train.test_loggers import Kept
from tests.train.threads import Threads

ROOT = Path(__file__).parents[2]


class Stop(Exception):  # noqa: N818
    pass


class Saver(Callback):
    """Saves at one moment, and ends the run there."""

    def __init__(self, path, moment, epoch, batch=None):
        self.path, self.at = path, (moment, epoch, batch)

    def note(self, trainer, moment, batch=None):
        if (moment, trainer.current_epoch, batch) == self.at:
            trainer.save_checkpoint(self.path)

    def on_train_epoch_start(self, trainer, module):
        self.stop(trainer)
        self.note(trainer, "epoch_start")

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.stop(trainer)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.note(trainer, "batch", batch_idx)

    def on_validation_start(self, trainer, module):
        self.stop(trainer)

    def on_validation_end(self, trainer, module):
        self.stop(trainer)
        self.note(trainer, "validation", trainer.progress.batches)

    def on_train_epoch_end(self, trainer, module):
        self.stop(trainer)
        self.note(trainer, "epoch_end")

    def stop(self, trainer):
        if self.path.exists():
            raise Stop


def compare(tmp_path, moment, epoch, batch=None, **flags):
    whole = run(tmp_path / "whole", **flags)
    path = tmp_path / "here.ckpt"
    module = Noisy()
    saver = Saver(path, moment, epoch, batch)
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=2, seed=5, callbacks=[saver], **flags)
    with pytest.raises(Stop):
        trainer.fit(
            module,
            DataLoader(Augmented(24), batch_size=4, shuffle=True),
            DataLoader(samples(7, seed=1), batch_size=2),
        )
    torch.manual_seed(99)
    assert run(tmp_path / "rest", ckpt_path=path, **flags) == whole


@pytest.mark.parametrize(
    ("moment", "epoch", "batch"),
    [
        ("batch", 1, 0),
        ("batch", 1, 2),
        ("batch", 1, 5),
        ("epoch_start", 1, None),
        ("validation", 1, 6),
        ("epoch_end", 0, None),
    ],
)
def test_from_every_moment_of_an_epoch(tmp_path, moment, epoch, batch):
    compare(tmp_path, moment, epoch, batch)


@pytest.mark.parametrize(
    ("moment", "batch", "flags"),
    [
        ("batch", 3, {"accumulate_grad_batches": 4}),
        ("batch", 2, {"val_check_interval": 2}),
        ("batch", 1, {"val_check_interval": 2}),
        ("validation", 2, {"val_check_interval": 2}),
        ("validation", 6, {"val_check_interval": 0.5}),
        ("batch", 1, {"limit_train_batches": 3}),
        ("batch", 1, {"accumulate_grad_batches": 4, "num_sanity_val_steps": 2}),
    ],
)
def test_with_flags(tmp_path, moment, batch, flags):
    compare(tmp_path, moment, 1, batch, **flags)


def test_after_max_steps_within_an_epoch(tmp_path):
    def fit(max_steps, **options):
        module, keeper = Noisy(), ModelCheckpoint(save_last=True, dirpath=tmp_path / str(max_steps))
        trainer = Trainer(strategy="single", accelerator="cpu", max_steps=max_steps, seed=5, callbacks=[keeper])
        train = DataLoader(Augmented(24), batch_size=4, shuffle=True)
        trainer.fit(module, train, DataLoader(samples(7, seed=1), batch_size=2), **options)
        return [value for parameter in module.parameters() for value in parameter.flatten().tolist()]

    whole = fit(11)
    fit(9)  # of 6 an epoch
    assert fit(11, ckpt_path=tmp_path / "9" / "last.ckpt") == whole


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_with_workers(tmp_path):
    whole = run(tmp_path / "whole", loading={"num_workers": 2})
    assert run(tmp_path / "rest", loading={"num_workers": 2}, ckpt_path=tmp_path / "whole" / "8.ckpt") == whole


def test_with_a_generator_of_the_loaders_own(tmp_path):
    whole = run(tmp_path / "whole", loading={"generator": torch.Generator().manual_seed(3)})
    other = {"generator": torch.Generator().manual_seed(99)}
    assert run(tmp_path / "rest", loading=other, ckpt_path=tmp_path / "whole" / "8.ckpt") == whole


def script(folder, devices, mode):
    command = [sys.executable, "-W", "error", "-m", "tests.train.resumable", str(folder), str(devices), mode]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=150)


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
def test_killed_in_the_middle_of_an_epoch(tmp_path, devices):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert script(whole, devices, "all").returncode == 0
    done = script(killed, devices, "kill")
    assert done.returncode != 0
    if devices == 1:
        assert done.returncode == -signal.SIGKILL
    position = torch.load(killed / "last.ckpt")["position"]
    assert position["batches"] > 0
    assert not position["epoch_is_over"]
    resumed = script(killed, devices, "resume")
    assert resumed.returncode == 0, resumed.stderr
    for rank in range(devices):
        expected = json.loads((whole / f"all{rank}.json").read_text())
        assert json.loads((killed / f"resume{rank}.json").read_text()) == expected


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["fsdp_spawn", "ddp_sharded_spawn"])
def test_under_strategies_that_split_the_model(tmp_path, strategy):
    whole = run(tmp_path / "whole", strategy=strategy, devices=2)
    assert whole["step"] == 6
    middle = tmp_path / "whole" / "4.ckpt"
    assert torch.load(middle)["position"]["batches"] == 1
    assert run(tmp_path / "rest", strategy=strategy, devices=2, ckpt_path=middle) == whole


class Told(Logistic):
    def training_step(self, batch, batch_idx):
        self.log("hidden", 1.0, on_epoch=True, logger=False)
        if batch_idx == 0:
            self.log("once", 2.0, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("moment", "batch", "steps"), [("batch", 1, 2), ("validation", 4, 4)])
def test_loggers_hear_what_they_would_have_heard(tmp_path, moment, batch, steps):
    def rows(callbacks, ckpt_path=None):
        run = Trainer(
            strategy="single", max_epochs=1, callbacks=callbacks, logger=(logger := Kept()), log_every_n_steps=1
        )
        with contextlib.suppress(Stop):
            run.fit(Told(), loader(8, 2), loader(4), ckpt_path=ckpt_path)
        return [row for row in logger.rows if row[0] > steps or "train_loss_epoch" in row[1]]

    whole, path = rows([]), tmp_path / "here.ckpt"
    rows([Saver(path, moment, 0, batch)])
    assert rows([], path) == whole


def test_sanity_validation_changes_nothing(tmp_path):
    assert run(tmp_path, num_sanity_val_steps=-1) == run(tmp_path)


class Ordered(Module):
    """Deterministic: weights and values must not depend on the number of ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1).double()
        self.auroc = BinaryAUROC()

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.layer(x.double()).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y.double())
        self.auroc.update(logits.sigmoid(), y.int())
        self.log("loss", loss, on_epoch=True)
        self.log("auroc", self.auroc)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def ordered(world, batch, **options):
    strategy = "single" if world == 1 else Threads()
    callbacks = options.pop("callbacks", [])
    trainer = Trainer(strategy=strategy, devices=world, accelerator="cpu", max_epochs=2, callbacks=callbacks)
    module = Ordered()
    trainer.fit(module, DataLoader(samples(24), batch_size=batch), **options)
    return module, trainer


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3), (3, 2), (4, 2)])
def test_another_world_size_gives_the_same_numbers(tmp_path, before, after):
    whole, expected = ordered(1, 12)
    keeper = ModelCheckpoint(every_n_train_steps=3, dirpath=tmp_path, save_top_k=-1, filename="{step}")
    ordered(before, 12 // before, callbacks=[keeper])
    module, found = ordered(after, 12 // after, ckpt_path=tmp_path / "3.ckpt")
    for name in ("loss_epoch", "auroc"):
        assert float(found.callback_metrics[name]) == pytest.approx(float(expected.callback_metrics[name]), rel=1e-12)
    torch.testing.assert_close(module.layer.weight, whole.layer.weight)


def test_another_world_size_without_such_a_place(tmp_path):
    keeper = ModelCheckpoint(every_n_train_steps=3, dirpath=tmp_path, save_top_k=-1, filename="{step}")
    ordered(2, 6, callbacks=[keeper])
    message = "in the middle of an epoch: after 1 batches of 6 on each; 1 ranks with batches of 5 have no such place"
    with pytest.raises(ConfigurationError, match=message):
        ordered(1, 5, ckpt_path=tmp_path / "3.ckpt")


def test_metric_states_of_several_ranks_are_merged():
    data = [torch.rand(5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    truth = torch.tensor([0, 1, 1, 0, 1])
    ranks = []
    for part in data:
        metrics = {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()}
        for metric in metrics.values():
            metric.update(part, truth)
        ranks.append(metric_states(metrics))
    fresh = {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()}
    load_states(fresh, merged(fresh, ranks))
    for metric in fresh.values():
        other = type(metric)()
        other.update(torch.cat(data), truth.repeat(3))
        assert metric.compute() == other.compute()


def test_a_checkpoint_of_another_set_up_is_refused(tmp_path):
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=1, callbacks=[ModelCheckpoint(dirpath=tmp_path)])
    trainer.fit(Logistic(), loader(4))
    with pytest.raises(ConfigurationError, match="has 0 lr_schedulers, and the fit 1"):
        trainer.fit(Noisy(), loader(4), ckpt_path="best")
    path = tmp_path / "nothing.ckpt"
    with pytest.raises(ConfigurationError, match=r"g.ckpt cannot be read as a checkpoint: FileNotFoundError"):
        trainer.fit(Logistic(), loader(4), ckpt_path=path)
    torch.save({"weights": 1}, path)
    with pytest.raises(ConfigurationError, match="is no checkpoint"):
        trainer.fit(Logistic(), loader(4), ckpt_path=path)


def test_best_and_last(tmp_path):
    keeper = ModelCheckpoint("val_loss", dirpath=tmp_path / "kept", save_last=True)
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=3, callbacks=[keeper])
    for which in ("best", "last"):
        with pytest.raises(ConfigurationError, match=f"ckpt_path='{which}': no ModelCheckpoint .* has saved one"):
            trainer.validate(Logistic(), loader(4), ckpt_path=which)
    module = Logistic(lr=1.0)
    trainer.fit(module, loader(8), loader(6, seed=1), ckpt_path="last")  # none yet: from the start
    (best,) = trainer.validate(Logistic(), loader(6, seed=1), ckpt_path="best")
    (last,) = trainer.test(Logistic(), loader(6, seed=1), ckpt_path="last")
    assert best["val_loss"] == keeper.best_model_score
    assert last == trainer.test(module, loader(6, seed=1))[0]
    trainer.callbacks = [
        ModelCheckpoint(dirpath=tmp_path / "later"),
        ModelCheckpoint("later", dirpath=tmp_path / "kept"),
    ]
    trainer.callbacks[0].best_k_models["later.ckpt"] = 1.0
    with pytest.raises(ConfigurationError, match="ckpt_path='best': no ModelCheckpoint"):
        trainer.test(module, loader(6), ckpt_path="best")
    (tmp_path / "later").mkdir()
    shutil.copy(keeper.best_model_path, tmp_path / "later")  # written after the other's last
    assert trainer.validate(Logistic(), loader(6, seed=1), ckpt_path="last") == [best]
    shutil.rmtree(tmp_path / "kept")
    none = Trainer(strategy="single", accelerator="cpu")
    with pytest.raises(ConfigurationError, match="no ModelCheckpoint of this trainer"):
        none.validate(Logistic(), loader(4), ckpt_path="best")


def test_stopped_training_stays_stopped(tmp_path):
    class Flat(Logistic):
        def on_validation_epoch_end(self):
            self.log("flat", 1.0)

    def fit(ckpt_path=None, patience=1, epochs=9):
        keepers = [EarlyStopping("flat", patience=patience), ModelCheckpoint(dirpath=tmp_path, save_last=True)]
        trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=epochs, callbacks=keepers)
        trainer.fit(Flat(), loader(4), loader(4), ckpt_path=ckpt_path)
        return trainer.current_epoch

    assert fit() == 2
    assert fit("last") == 2
    assert fit("last", patience=5) == 6  # more patience goes on


class Extra(Logistic):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["extra"] = 7

    def on_load_checkpoint(self, checkpoint):
        self.found = checkpoint["extra"]


def test_a_module_may_add_to_a_checkpoint(tmp_path):
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=1, callbacks=[ModelCheckpoint(dirpath=tmp_path)])
    trainer.fit(Extra(), loader(4))
    module = Extra()
    trainer.fit(module, loader(4), ckpt_path="best")
    assert module.found == 7

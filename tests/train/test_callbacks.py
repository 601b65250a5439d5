"""Callbacks act on the value of all ranks, and so do the same on all of them."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

import pytest
import torch

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.run.callbacks import badness
from distmetrics.train import Callback, EarlyStopping, ModelCheckpoint, ProgressBar, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads


class Scripted(Logistic):
    """Logs what it is told to: in each epoch a value, which the ranks hold with different weights."""

    def __init__(self, values, **options):
        super().__init__()
        self.values = values
        self.options = options

    def validation_step(self, batch, batch_idx):
        value = self.values[self.current_epoch]
        self.log("score", value + (1 if batch_idx else -1) * 0.25, batch_size=1, **self.options)


WORLDS = [("single", 1), (Threads, 2)]


def trainer_in(world, callbacks, tmp_path, **flags):
    strategy, devices = world
    return Trainer(
        strategy=strategy if isinstance(strategy, str) else strategy(),
        devices=devices,
        accelerator="cpu",
        callbacks=callbacks,
        default_root_dir=tmp_path,
        **flags,
    )


def fit(values, callbacks, tmp_path, world=("single", 1), *, val=True, **flags):
    trainer = trainer_in(world, callbacks, tmp_path, max_epochs=len(values), **flags)
    module = Scripted(values)
    trainer.fit(module, loader(8, 4), loader(4 * world[1], 2) if val else None)
    return module, trainer


@pytest.mark.parametrize("world", WORLDS)
def test_the_best_checkpoint_is_kept(tmp_path, world):
    best = ModelCheckpoint("score", mode="max", save_last=True, filename="{epoch}-{score:.1f}")
    module, trainer = fit([1.0, 3.0, 2.0], [best], tmp_path, world)
    folder = tmp_path / "checkpoints"
    assert best.best_model_path == str(folder / "1-3.0.ckpt")
    assert best.best_model_score == 3.0
    assert sorted(path.name for path in folder.iterdir()) == ["1-3.0.ckpt", "last.ckpt"]
    last = torch.load(best.last_model_path)
    assert (last["epoch"], last["global_step"]) == (2, trainer.global_step)
    assert last["callbacks"][best.state_key]["best_k_models"] == best.best_k_models
    for name, value in module.state_dict().items():
        assert torch.equal(last["state_dict"][name], value)
    fresh = Logistic()
    fresh.load_state_dict(torch.load(best.best_model_path)["state_dict"])
    torch.optim.AdamW(fresh.parameters()).load_state_dict(last["optimizer_states"][0])


def names(folder):
    return sorted(path.stem for path in folder.iterdir())


@pytest.mark.parametrize(
    ("k", "mode", "kept"),
    [
        (1, "min", ["1"]),
        (2, "min", ["1", "3"]),
        (2, "max", ["0", "2"]),
        (-1, "min", ["0", "1", "2", "3"]),
        (0, "min", []),
    ],
)
def test_the_k_best_are_kept(tmp_path, k, mode, kept):
    best = ModelCheckpoint("score", mode=mode, save_top_k=k, dirpath=tmp_path / "here", filename="{epoch}")
    fit([5.0, 1.0, 6.0, 2.0], [best], tmp_path)
    assert (names(tmp_path / "here") if kept else []) == kept
    assert len(best.best_k_models) == len(kept)
    if kept:
        assert best.best_model_score == (1.0 if mode == "min" else 6.0)
    else:
        assert not (tmp_path / "here").exists()


def test_nan_is_never_the_best(tmp_path):
    best = ModelCheckpoint("score", filename="{epoch}")
    fit([math.nan, 2.0, math.nan], [best], tmp_path)
    assert names(tmp_path / "checkpoints") == ["1"]
    assert best.best_model_score == 2.0


def test_those_that_save_at_other_times_have_states_of_their_own():
    assert ModelCheckpoint("score").state_key != ModelCheckpoint("score", every_n_train_steps=2).state_key


def test_without_a_monitor_the_latest_is_kept(tmp_path):
    latest = ModelCheckpoint()
    fit([1.0, 2.0], [latest], tmp_path)
    assert names(tmp_path / "checkpoints") == ["epoch=1-step=4"]
    assert latest.best_model_path.endswith("epoch=1-step=4.ckpt")
    assert latest.best_model_score is None


def test_equal_names_do_not_overwrite_each_other(tmp_path):
    best = ModelCheckpoint("score", save_top_k=2, filename="best")
    fit([2.0, 1.0, 0.5], [best], tmp_path)
    assert sorted(best.best_k_models.values()) == [0.5, 1.0]
    assert len(names(tmp_path / "checkpoints")) == 2


def test_a_broken_write_leaves_no_file(tmp_path, monkeypatch):
    save = torch.save

    def half(content, path, **options):
        if not isinstance(path, Path):
            return save(content, path, **options)
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="disk full"):
        fit([1.0], [ModelCheckpoint("score")], tmp_path)
    assert names(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([3.0, 2.0, 1.0, 0.0], {}, 4),
        ([1.0, 2.0, 3.0, 4.0], {"patience": 2}, 3),
        ([1.0, 2.0, 3.0, 4.0], {"patience": 2, "mode": "max"}, 4),
        ([1.0, 0.9, 0.8, 0.7], {"patience": 1, "min_delta": 0.15}, 2),
        ([1.0, 1.0, 0.5, 1.0, 1.0], {"patience": 2}, 5),
        ([1.0, math.nan, math.nan, 0.5], {"patience": 2}, 3),
    ],
)
def test_early_stopping(tmp_path, world, values, options, epochs):
    stop = EarlyStopping("score", **options)
    _, trainer = fit(values, [stop], tmp_path, world)
    assert trainer.current_epoch == epochs
    assert (stop.stopped_epoch is None) == (epochs == len(values) and stop.wait_count < stop.patience)


def test_epochs_without_validation_do_not_count(tmp_path):
    stop, best = EarlyStopping("score", patience=2), ModelCheckpoint("score", save_top_k=-1)
    _, trainer = fit([0.0, 1.0] * 4, [stop, best], tmp_path, check_val_every_n_epoch=2)
    assert trainer.current_epoch == 6  # validated in epochs 1, 3 and 5
    assert len(best.best_k_models) == 3


@pytest.mark.parametrize("callback", [ModelCheckpoint, EarlyStopping])
@pytest.mark.parametrize("world", WORLDS)
def test_a_missing_value_names_those_that_are_there(tmp_path, callback, world):
    message = f"{callback.__name__} watches 'scores', and logged values are: score, train_count, train_loss"
    with pytest.raises(ConfigurationError, match=message):
        fit([1.0], [callback("scores")], tmp_path, world)


class PerLoader(Scripted):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("callback", [ModelCheckpoint, EarlyStopping])
@pytest.mark.parametrize("world", WORLDS)
def test_a_value_of_validation_that_is_missing(tmp_path, callback, world):
    for options in ({"limit_val_batches": 0}, {"val": False}):
        with pytest.raises(ConfigurationError, match="watches 'score', and logged values are: train_count, train_loss"):
            fit([1.0], [callback("score")], tmp_path, world, **options)
    trainer = trainer_in(world, [callback("score")], tmp_path, max_epochs=1)
    several = "logged values are: score/dataloader_idx_0, score/dataloader_idx_1, train_count"
    with pytest.raises(ConfigurationError, match=several):
        trainer.fit(PerLoader([1.0]), loader(8, 4), [loader(4, 2), loader(4, 2)])


@pytest.mark.parametrize("world", WORLDS)
def test_a_fit_that_never_validates_says_so_once(tmp_path, world):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit([1.0, 2.0], [EarlyStopping("score")], tmp_path, world, check_val_every_n_epoch=3)
    (told,) = [str(each.message) for each in caught if "validates" in str(each.message)]
    assert told.startswith("check_val_every_n_epoch=3 and max_epochs=2: this fit never validates")


def test_a_fit_that_validates_in_its_last_epoch_or_has_nothing_to_validate_says_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=2)
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=3, val=False)
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=3, limit_val_batches=0)


def test_a_value_of_training_may_be_watched(tmp_path):
    stop = EarlyStopping("train_loss", patience=1)
    fit([0.0], [stop], tmp_path, val=False)
    assert stop.best_score is not None


def test_each_ranks_own_value_can_not_be_watched(tmp_path):
    def run(world):
        trainer = trainer_in(world, [EarlyStopping("score")], tmp_path, max_epochs=1)
        trainer.fit(Scripted([1.0], sync_dist=False), loader(8, 4), loader(4, 2))

    run(WORLDS[0])
    with pytest.raises(ConfigurationError, match="every rank has its own value"):
        run(WORLDS[1])


def test_what_callbacks_refuse():
    with pytest.raises(ConfigurationError, match="'min' or 'max', got 'best'"):
        EarlyStopping("x", mode="best")
    with pytest.raises(ConfigurationError, match="save_top_k must be"):
        ModelCheckpoint(save_top_k=-2)


def test_a_file_name_with_an_unknown_value(tmp_path):
    with pytest.raises(ConfigurationError, match=r"(?s)cannot be filled in: 'sore'.*There are: epoch, score, step"):
        fit([1.0], [ModelCheckpoint("score", filename="{sore:.2f}")], tmp_path)


def test_nan_is_worse_than_any_value():
    assert badness(0.8, "min") < badness(1.0, "min") < badness(math.nan, "min")
    assert badness(1.0, "max") < badness(0.8, "max") < badness(None, "max")


class Shown(Logistic):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("shown[a]", 7.5, prog_bar=True)
        return loss


def test_the_progress_bar_is_rank_zeros(capfd, tmp_path):
    for strategy, devices in (("single", 1), (Threads(), 2)):
        trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=2, enable_progress_bar=True)
        trainer.fit(Shown(), loader(8, 4), loader(4, 2))
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("epoch 1") == 1
        assert "validation" in err
        assert "shown[a] 7.5" in err


def test_the_bar_of_an_epoch_goes_on_after_a_validation_within_it():
    bar, seen = ProgressBar(), []

    class Looks(Callback):
        def on_train_start(self, trainer, module):
            # What is not shown is not read: that would wait for the device.
            trainer.values.numbers["elsewhere"] = torch.empty((), device="meta")

        def on_train_epoch_end(self, trainer, module):
            seen.append([(task.description, task.completed) for task in bar._progress.tasks])

    trainer = Trainer(
        strategy="single",
        accelerator="cpu",
        max_epochs=1,
        callbacks=[bar, Looks()],
        val_check_interval=2,
        enable_model_summary=False,
    )
    trainer.fit(Shown(), loader(10, 2), loader(6, 2))
    assert seen == [[("epoch 0", 5), ("validation", 3)]]


def test_the_progress_bar_needs_rich(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"a progress bar or a table needs rich.*\n.*pip install rich"):
        Trainer(accelerator="cpu", enable_progress_bar=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert not any(isinstance(callback, ProgressBar) for callback in Trainer(accelerator="cpu").callbacks)


def test_the_progress_bar_is_shown_where_someone_looks(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert any(isinstance(callback, ProgressBar) for callback in Trainer(accelerator="cpu").callbacks)
    flags = {"accelerator": "cpu", "enable_progress_bar": False}
    assert not any(isinstance(callback, ProgressBar) for callback in Trainer(**flags).callbacks)
    own = ProgressBar()
    assert Trainer(accelerator="cpu", callbacks=[own], enable_model_summary=False).callbacks == [own]
    monkeypatch.setattr(sys, "stderr", None)  # of a process without any
    assert Trainer(accelerator="cpu").callbacks == []

"""Callbacks act on the value of all ranks, and so do the same on all of them."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

import pytest
import torch

from distmetrics.errors import ConfigurationError, InputError, MissingDependencyError
from distmetrics.train import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
from tests.run.models import Logistic, loader, odd
from tests.run.threads import trainer


class Scripted(Logistic):
    """Logs in each validation the next value; the ranks hold it with different weights."""

    def __init__(self, values, **options):
        super().__init__()
        self.values, self.options, self.count = [*values], options, 0

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        value = self.values[self.count]
        self.log("score", value + (1 if batch_idx else -1) * 0.25, batch_size=1, **self.options)

    def on_validation_end(self):
        self.count += 1


def fit(values, callbacks, folder, ranks=1, *, val=True, options=None, **flags):
    flags = {"max_epochs": len(values), "default_root_dir": folder, "callbacks": callbacks} | flags
    run, module = trainer(ranks, **flags), Scripted(values, **options or {})
    run.fit(module, loader(8 * ranks, 4), loader(4 * ranks, 2) if val else None)
    return module, run


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"save_top_k": 1}, [1.0]),
        ({"save_top_k": 2, "mode": "max"}, [6.0, 5.0]),
        ({"save_top_k": -1}, [1.0, 2.0, 5.0, 6.0, math.nan]),  # NaN is never the best
        ({"save_top_k": 0}, []),
        ({"save_top_k": 2, "filename": "same"}, [1.0, 2.0]),  # do not overwrite each other
        ({"save_top_k": -1, "every_n_epochs": 2}, [1.0, 2.0]),
    ],
)
def test_the_k_best_are_kept(tmp_path, options, kept):
    best = ModelCheckpoint("score", dirpath=tmp_path / "here", **options)
    fit([5.0, 1.0, 6.0, 2.0, math.nan], [best], tmp_path)
    assert [*best.best_k_models.values()] == pytest.approx(kept, nan_ok=True)
    assert {str(path) for path in tmp_path.rglob("*.ckpt")} == best.best_k_models.keys()
    assert best.best_model_score == (kept[0] if kept else None)


def test_steps_after_which_to_save(tmp_path):
    by_step = ModelCheckpoint(dirpath=tmp_path / "a", every_n_train_steps=2, save_top_k=-1)
    watched = ModelCheckpoint("train_loss", dirpath=tmp_path / "b", every_n_train_steps=3)
    latest = ModelCheckpoint(dirpath=tmp_path / "c")
    for count in (1, 2):  # a second fit begins at step 0, and overwrites nothing
        run = trainer(max_epochs=4, callbacks=[by_step, watched, latest])
        run.fit(Logistic(), loader(4, 2))
        assert len(by_step.best_k_models) == len(list((tmp_path / "a").iterdir())) == 4 * count
    assert (watched.best_model_score is None, latest.best_model_score) == (False, None)
    assert len({each.state_key for each in (by_step, watched, latest)}) == 3
    odd = ModelCheckpoint(dirpath=tmp_path, filename="{sore:.2f}")
    with pytest.raises(ConfigurationError, match=r"'sore'(.|\n)*There are: epoch, step"):
        trainer(callbacks=[odd]).fit(Logistic(), loader(4, 2))


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
    assert not list((tmp_path / "checkpoints").iterdir())


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
def test_early_stopping(tmp_path, values, options, epochs):
    stop = EarlyStopping("score", **options)
    _, run = fit(values, [stop], tmp_path, ranks=2)
    assert run.current_epoch == epochs
    has_stopped = epochs < len(values) or stop.wait_count >= stop.patience
    assert stop.stopped_epoch == (epochs - 1 if has_stopped else None)


def test_epochs_without_validation_do_not_count(tmp_path):
    stop = EarlyStopping("score", patience=2)
    _, run = fit([1.0] * 5, [stop], tmp_path, check_val_every_n_epoch=2, max_epochs=9)
    assert run.current_epoch == 6  # validated in epochs 1, 3 and 5


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("flags", "at"),
    [
        ({"check_val_every_n_epoch": 2}, []),
        ({"val_check_interval": 1.0}, [5]),
        ({"val_check_interval": 0.5}, [2, 4]),
        ({"val_check_interval": 1}, [1, 2, 3, 4, 5]),  # one step is another interval than the whole epoch
        ({"val_check_interval": 0.01}, [1, 2, 3, 4, 5]),
    ],
)
def test_each_validation_counts(tmp_path, ranks, flags, at):
    """As many as there are in an epoch, or in some epochs alone."""
    best = ModelCheckpoint("score", dirpath=tmp_path, save_top_k=-1, filename="{step}")
    stop = EarlyStopping("score", patience=8)
    run = trainer(ranks, max_epochs=2, callbacks=[stop, best], **flags)
    run.fit(Scripted([1.0] * 10), loader(10 * ranks, 2), loader(4 * ranks, 2))
    both = [*at, *(5 + step for step in at)][:9] if at else [10]  # the 9th is the 8th that is not better
    assert sorted(int(path.stem) for path in tmp_path.iterdir()) == both
    assert run.global_step == (both[8] if len(both) > 8 else 10)


def logs_steps(**options):
    """Return a module that logs a value in each step, with options."""

    def training_step(self, batch, batch_idx):
        self.log("mine", 1.0, **options)
        return Logistic.training_step(self, batch, batch_idx)

    return odd(training_step=training_step, options=options)


NONE = "there is no value of it for this epoch"
OWN = "every rank has its own value of it, or rank 0 alone has one"
THERE = "logged values are: "


@pytest.mark.parametrize("make", [ModelCheckpoint, EarlyStopping])
@pytest.mark.parametrize(
    ("name", "text", "module", "ranks", "flags"),
    [
        ("score", THERE + "train_count, train_loss", Scripted([1.0] * 9), 2, {"limit_val_batches": 0}),
        ("score", OWN, Scripted([1.0] * 9, sync_dist=False), 2, {}),
        ("scores", THERE + "score, train_count", Scripted([1.0] * 9), 1, {}),
        ("score", THERE + "score/dataloader_idx_0, score/dat", Scripted([1.0] * 9), 1, {}),
        ("mine", NONE, logs_steps(), 1, {}),
        ("mine", NONE, logs_steps(rank_zero_only=True), 1, {}),
        ("mine", OWN, logs_steps(rank_zero_only=True), 2, {}),
        ("mine", NONE, logs_steps(sync_dist=True), 2, {}),
    ],
)
def test_a_value_that_can_not_be_watched(tmp_path, make, name, text, module, ranks, flags):
    held = [loader(4, 2)] * (2 if "idx" in text else 1)
    run = trainer(ranks, callbacks=[make(name)], default_root_dir=tmp_path, **flags)
    with pytest.raises(ConfigurationError, match=f"watches '{name}', and {text}"):
        run.fit(module, loader(8, 4), held)
    if name == "mine":
        run.fit(logs_steps(**module.options, on_epoch=True), loader(8))
    if text == OWN:
        run.callbacks = [ModelCheckpoint("mine", every_n_train_steps=1)]
        with pytest.raises(ConfigurationError, match=f"watches 'mine', and {OWN}"):
            run.fit(logs_steps(rank_zero_only=True), loader(8, 4))


def test_what_a_callback_makes_known_is_checked():
    for wrong in ({"epoch": 1.0}, {"lr": "fast"}, {3: 1.0}, {"lr": torch.zeros(2)}):
        with pytest.raises((ConfigurationError, InputError), match=r"logged as|must be|number"):
            trainer().log_values(wrong)


def test_a_fit_that_never_validates_says_so_once(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit([1.0, 2.0], [EarlyStopping("score")], tmp_path, 2, check_val_every_n_epoch=3)
    (told,) = [str(each.message) for each in caught if "validates" in str(each.message)]
    assert told.startswith("check_val_every_n_epoch=3 and max_epochs=2: this fit never validates")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for every, flags in ((2, {}), (3, {"val": False}), (3, {"limit_val_batches": 0})):
            fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=every, **flags)


def test_the_progress_bar_is_rank_zeros_and_goes_on_after_a_validation(capfd):
    bar, seen = ProgressBar(), []

    class Looks(Callback):
        def on_train_start(self, run, module):
            # What is not shown is not read: that would wait for the device.
            run.values.numbers["elsewhere"] = torch.empty((), device="meta")

        def on_train_epoch_end(self, run, module):
            seen.append([(task.description, task.completed) for task in bar._progress.tasks])

    run = trainer(callbacks=[bar, Looks()], val_check_interval=2, enable_model_summary=False)
    run.fit(Logistic(), loader(10, 2), loader(6, 2))
    assert seen == [[("epoch 0", 5), ("validation", 3)]]
    capfd.readouterr()
    trainer(2, max_epochs=2, enable_progress_bar=True).fit(Logistic(), loader(8, 4), loader(4, 2))
    out, err = capfd.readouterr()
    assert (out, err.count("epoch 1"), "validation" in err) == ("", 1, True)


def test_the_progress_bar_is_shown_where_someone_looks(monkeypatch):
    def shown(**flags):
        return any(isinstance(callback, ProgressBar) for callback in trainer(**flags).callbacks)

    assert not shown()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert (shown(), shown(enable_progress_bar=False)) == (True, False)
    own = ProgressBar()
    assert trainer(callbacks=[own], enable_model_summary=False).callbacks == [own]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)  # of a process without any
        assert not shown()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not shown()
    text = r"a progress bar or a table needs rich.*\n.*pip install rich"
    with pytest.raises(MissingDependencyError, match=text):
        shown(enable_progress_bar=True)

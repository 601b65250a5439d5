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
from tests.run.models import Logistic, loader
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_best_checkpoint_is_kept(tmp_path, ranks):
    best = ModelCheckpoint("score", mode="max", save_last=True, filename="{epoch}-{score:.1f}")
    module, run = fit([1.0, 3.0, 2.0], [best], tmp_path, ranks)
    folder = tmp_path / "checkpoints"
    assert (best.best_model_path, best.best_model_score) == (str(folder / "1-3.0.ckpt"), 3.0)
    assert sorted(path.name for path in folder.iterdir()) == ["1-3.0.ckpt", "last.ckpt"]
    last = torch.load(best.last_model_path)
    assert (last["epoch"], last["global_step"]) == (2, run.global_step)
    assert last["callbacks"][best.state_key]["best_k_models"] == best.best_k_models
    torch.testing.assert_close(last["state_dict"], dict(module.state_dict()), rtol=0, atol=0)
    fresh = Logistic()
    fresh.load_state_dict(torch.load(best.best_model_path)["state_dict"])
    torch.optim.AdamW(fresh.parameters()).load_state_dict(last["optimizer_states"][0])
    other = ModelCheckpoint("score", every_n_train_steps=2)
    assert ModelCheckpoint("score").state_key != other.state_key


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"save_top_k": 1}, [1.0]),
        ({"save_top_k": 2}, [1.0, 2.0]),
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
    files = {str(path) for path in tmp_path.rglob("*.ckpt")}
    assert files == best.best_k_models.keys()
    assert best.best_model_score == (kept[0] if kept else None)


def test_steps_after_which_to_save(tmp_path):
    by_step = ModelCheckpoint(dirpath=tmp_path / "a", every_n_train_steps=2, save_top_k=-1)
    watched = ModelCheckpoint("train_loss", dirpath=tmp_path / "b", every_n_train_steps=3)
    latest = ModelCheckpoint(dirpath=tmp_path / "c")
    for count in (1, 2):  # a second fit begins at step 0, and overwrites nothing
        run = trainer(max_epochs=4, callbacks=[by_step, watched, latest])
        run.fit(Logistic(), loader(4, 2))
        assert len(by_step.best_k_models) == len(list((tmp_path / "a").iterdir())) == 4 * count
    assert watched.best_model_score is not None
    assert latest.best_model_score is None
    every = ModelCheckpoint("nothing", every_n_train_steps=1)
    with pytest.raises(ConfigurationError, match="'nothing', and logged values are"):
        trainer(callbacks=[every]).fit(Logistic(), loader(4, 2))


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
    stop, best = EarlyStopping("score", patience=2), ModelCheckpoint("score", save_top_k=-1)
    flags = {"check_val_every_n_epoch": 2, "max_epochs": 9}
    _, run = fit([1.0] * 5, [stop, best], tmp_path, **flags)
    assert run.current_epoch == 6  # validated in epochs 1, 3 and 5
    assert len(best.best_k_models) == 3


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("interval", "at"),
    [
        (1.0, [5]),
        (5, [5]),
        (2, [2, 4]),
        (0.5, [2, 4]),
        (1, [1, 2, 3, 4, 5]),  # one step is another interval than the whole epoch
        (0.01, [1, 2, 3, 4, 5]),
    ],
)
def test_each_validation_within_an_epoch_counts(tmp_path, ranks, interval, at):
    stop = EarlyStopping("score", patience=8)
    best = ModelCheckpoint("score", filename="{step}", save_top_k=-1, dirpath=tmp_path)
    run = trainer(ranks, max_epochs=2, val_check_interval=interval, callbacks=[best, stop])
    run.fit(Scripted([1.0] * 10), loader(10 * ranks, 2), loader(4 * ranks, 2))
    saved = [int(path.stem) for path in tmp_path.iterdir()]
    both = [*at, *(5 + step for step in at)]
    assert sorted(saved) == both[:9]  # the 9th is the 8th that is not better
    assert run.global_step == (both[8] if len(both) > 8 else 10)


WATCHES = {  # options of self.log, flags of the trainer, and why the value can't be watched
    "logged values are: train_count, train_loss": ({}, {"limit_val_batches": 0}),
    "logged values are: train_count, train_los": ({}, {"val": False}),
    "every rank has its own value of it, or rank 0": ({"sync_dist": False}, {}),
}


@pytest.mark.parametrize("make", [ModelCheckpoint, EarlyStopping])
@pytest.mark.parametrize("text", WATCHES)
def test_a_value_that_can_not_be_watched(tmp_path, make, text):
    options, flags = WATCHES[text]
    with pytest.raises(ConfigurationError, match=f"watches 'score', and {text}"):
        fit([1.0], [make("score")], tmp_path, ranks=2, options=options, **flags)
    known = f"{make.__name__} watches 'scores', and logged values are: score, train_count"
    with pytest.raises(ConfigurationError, match=known):
        fit([1.0], [make("scores")], tmp_path)
    several = "logged values are: score/dataloader_idx_0, score/dataloader_idx_1, train_count"
    run = trainer(callbacks=[make("score")], default_root_dir=tmp_path)
    with pytest.raises(ConfigurationError, match=several):
        run.fit(Scripted([1.0]), loader(8, 4), [loader(4, 2), loader(4, 2)])


class LogsSteps(Logistic):
    """Logs a value in each step, with other options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def training_step(self, batch, batch_idx):
        self.log("mine", 1.0, **self.options)
        return super().training_step(batch, batch_idx)


NONE = "there is no value of it for this epoch"
OWN = "every rank has its own value of it, or rank 0 alone has one"


@pytest.mark.parametrize(
    ("make", "ranks", "options", "message"),
    [
        (EarlyStopping, 1, {"rank_zero_only": True}, NONE),
        (ModelCheckpoint, 1, {}, NONE),
        (EarlyStopping, 2, {"rank_zero_only": True}, OWN),
        (ModelCheckpoint, 2, {"sync_dist": True}, NONE),
        (lambda name: ModelCheckpoint(name, every_n_train_steps=1), 2, {"rank_zero_only": 1}, OWN),
    ],
)
def test_a_value_of_steps_that_a_callback_watches(make, ranks, options, message, tmp_path):
    flags = {"default_root_dir": tmp_path}
    text = f"(?s)watches 'mine', and {message}.*Do:     log it with on_epoch=True"
    with pytest.raises(ConfigurationError, match=text):
        trainer(ranks, callbacks=[make("mine")], **flags).fit(LogsSteps(**options), loader(8))
    if make in (EarlyStopping, ModelCheckpoint):
        run = trainer(ranks, callbacks=[make("mine")], **flags)
        run.fit(LogsSteps(**options, on_epoch=True), loader(8))


class LogsAtTheEnd(Callback):
    """Logs where callbacks hear of an epoch's values: by the module, or by the trainer."""

    def __init__(self, how):
        self.how = how

    def on_train_epoch_end(self, run, module):
        if self.how == "module":
            module.log("late", 1.0)
        else:
            run.log_values({"late": 1.0 + run.current_epoch})


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_callback_logs_at_the_end_of_an_epoch(ranks):
    text = r"(?s)'late' can't be logged here.*trainer\.log_values\({'late': "
    with pytest.raises(ConfigurationError, match=text):
        trainer(ranks, callbacks=[LogsAtTheEnd("module")]).fit(Logistic(), loader(4))
    stop = EarlyStopping("late", patience=1)
    run = trainer(ranks, max_epochs=9, callbacks=[LogsAtTheEnd("trainer"), stop])
    run.fit(Logistic(), loader(4))
    assert (float(run.callback_metrics["late"]), stop.best_score) == (2.0, 1.0)
    for wrong in ({"epoch": 1.0}, {"lr": "fast"}, {3: 1.0}, {"lr": torch.zeros(2)}):
        with pytest.raises((ConfigurationError, InputError), match=r"logged as|must be|number"):
            run.log_values(wrong)


def test_a_fit_that_never_validates_says_so_once(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit([1.0, 2.0], [EarlyStopping("score")], tmp_path, 2, check_val_every_n_epoch=3)
    (told,) = [str(each.message) for each in caught if "validates" in str(each.message)]
    assert told.startswith("check_val_every_n_epoch=3 and max_epochs=2: this fit never validates")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=2)
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=3, val=False)
        fit([1.0, 2.0], [], tmp_path, check_val_every_n_epoch=3, limit_val_batches=0)


def test_a_file_name_with_an_unknown_value(tmp_path):
    text = r"(?s)cannot be filled in: 'sore'.*There are: epoch, score, step"
    with pytest.raises(ConfigurationError, match=text):
        fit([1.0], [ModelCheckpoint("score", filename="{sore:.2f}")], tmp_path)


class Shown(Logistic):
    def training_step(self, batch, batch_idx):
        self.log("shown[a]", 7.5, prog_bar=True)
        return super().training_step(batch, batch_idx)


def test_the_progress_bar_is_rank_zeros_and_goes_on_after_a_validation(capfd):
    bar, seen = ProgressBar(), []

    class Looks(Callback):
        def on_train_start(self, run, module):
            # What is not shown is not read: that would wait for the device.
            run.values.numbers["elsewhere"] = torch.empty((), device="meta")

        def on_train_epoch_end(self, run, module):
            seen.append([(task.description, task.completed) for task in bar._progress.tasks])

    run = trainer(callbacks=[bar, Looks()], val_check_interval=2, enable_model_summary=False)
    run.fit(Shown(), loader(10, 2), loader(6, 2))
    assert seen == [[("epoch 0", 5), ("validation", 3)]]
    capfd.readouterr()
    trainer(2, max_epochs=2, enable_progress_bar=True).fit(Shown(), loader(8, 4), loader(4, 2))
    out, err = capfd.readouterr()
    assert (out, err.count("epoch 1")) == ("", 1)
    assert "validation" in err
    assert "shown[a] 7.5" in err


def shown(**flags):
    return any(isinstance(callback, ProgressBar) for callback in trainer(**flags).callbacks)


def test_the_progress_bar_is_shown_where_someone_looks(monkeypatch):
    assert not shown()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert shown()
    assert not shown(enable_progress_bar=False)
    own = ProgressBar()
    assert trainer(callbacks=[own], enable_model_summary=False).callbacks == [own]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)  # of a process without any
        assert not shown()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = r"a progress bar or a table needs rich.*\n.*pip install rich"
    with pytest.raises(MissingDependencyError, match=text):
        shown(enable_progress_bar=True)
    assert not shown()

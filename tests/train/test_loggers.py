"""Where logged values go."""

from __future__ import annotations

import csv
import json
import pickle

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.log.writers import TensorBoardLogger
from distmetrics.train import CSVLogger, LearningRateMonitor, Logger, ModelCheckpoint, Module, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads


def trainer(**flags):
    return Trainer(**({"strategy": "single", "accelerator": "cpu", "max_epochs": 2} | flags))


class Kept(Logger):
    """In memory; the list is shared by the copies that ranks work on."""

    rows: list
    params: list

    def __init__(self):
        type(self).rows, type(self).params, type(self).ends = [], [], []

    def log_metrics(self, metrics, step):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params):
        self.params.append(dict(params))

    def finalize(self, status):
        self.ends.append(status)


class Configured(Logistic):
    def __init__(self, lr=0.1, sizes=(8, 8)):
        super().__init__(lr)
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        self.log("hidden", 1.0, on_epoch=True, logger=False)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("world", [1, 2])
def test_rank_zero_logs_steps_and_epochs(world):
    logger = Kept()
    strategy = "single" if world == 1 else Threads()
    run = trainer(strategy=strategy, devices=world, logger=logger, log_every_n_steps=2)
    run.fit(Configured(), loader(16 * world), loader(4))
    assert Kept.params == [{"lr": 0.1, "sizes": (8, 8)}]
    assert Kept.ends == ["success"]
    steps = [step for step, row in Kept.rows if "train_loss_step" in row]
    assert steps == [2, 4, 6, 8]
    epochs = [(step, row["epoch"]) for step, row in Kept.rows if "train_loss_epoch" in row]
    assert epochs == [(4, 0.0), (8, 1.0)]
    assert sum("val_loss" in row for _, row in Kept.rows) == 2
    assert not any("hidden" in name for _, row in Kept.rows for name in row)
    assert "hidden" in run.callback_metrics
    assert run.loggers == [run.logger]


def test_a_failed_run_is_said_to_be(tmp_path):
    class Fails(Logistic):
        def training_step(self, batch, batch_idx):
            raise ValueError("bad pixel")

    with pytest.raises(ValueError, match="bad pixel"):
        trainer(logger=Kept()).fit(Fails(), loader(4))
    assert Kept.ends == ["failed"]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("world", [1, 2])
def test_csv_files_of_runs(tmp_path, world):
    strategy = "single" if world == 1 else Threads()
    for version in range(2):
        logger = CSVLogger(tmp_path, name="mine")
        run = trainer(strategy=strategy, devices=world, logger=logger, log_every_n_steps=1)
        run.fit(Configured(), loader(8 * world), loader(4))
        folder = tmp_path / "mine" / f"version_{version}"
        assert run.logger.log_dir == str(folder)
        found = rows(folder / "metrics.csv")
        assert [row["step"] for row in found if row["val_loss"]] == ["2", "4"]
        assert json.loads((folder / "hparams.json").read_text()) == {"lr": 0.1, "sizes": [8, 8]}
        last = [row for row in found if row["train_loss_epoch"]][-1]
        assert float(last["train_loss_epoch"]) == pytest.approx(float(run.callback_metrics["train_loss"]))
    assert len(list((tmp_path / "mine").iterdir())) == 2


def test_a_csv_file_takes_new_columns_and_goes_on_after_a_pickle(tmp_path):
    logger = CSVLogger(tmp_path, version="here")
    logger.log_metrics({"a": 1.0}, 1)
    logger.log_metrics({"b": 2.0}, 2)
    other = pickle.loads(pickle.dumps(CSVLogger(tmp_path, version="here")))
    other.log_metrics({"b": 3.0, "a": 4.0}, 3)
    assert rows(tmp_path / "distmetrics_logs" / "here" / "metrics.csv") == [
        {"step": "1", "a": "1.0", "b": ""},
        {"step": "2", "a": "", "b": "2.0"},
        {"step": "3", "a": "4.0", "b": "3.0"},
    ]


def test_the_default_logger_writes_csv(tmp_path):
    run = trainer(logger=True, default_root_dir=tmp_path)
    run.fit(Logistic(), loader(4))
    assert (tmp_path / "distmetrics_logs" / "version_0" / "metrics.csv").is_file()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="")
    logger.save()
    logger.finalize("success")
    assert not [*tmp_path.rglob("events*")]  # of no values
    run = trainer(logger=logger, log_every_n_steps=1)
    run.fit(Configured(), loader(8), loader(4))
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss_step")] == [1, 2, 3, 4]
    assert events.Scalars("val_loss")[-1].value == pytest.approx(float(run.callback_metrics["val_loss"]), rel=1e-6)
    assert "experiment" not in vars(pickle.loads(pickle.dumps(logger)))


def test_tensorboard_has_to_be_installed(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"TensorBoardLogger needs tensorboard"):
        TensorBoardLogger(tmp_path)


class Rates(Logistic):
    def configure_optimizers(self):
        optimizer = SGD([{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.5}], lr=1.0)
        return [optimizer], [StepLR(optimizer, 1, gamma=0.1)]


def test_learning_rates():
    run = trainer(logger=Kept(), log_every_n_steps=1, callbacks=[LearningRateMonitor()])
    run.fit(Rates(), loader(4))
    found = [row["lr-SGD/pg1"] for _, row in Kept.rows if "lr-SGD/pg1" in row]
    assert found == pytest.approx([1.0, 1.0, 0.1, 0.1])
    assert float(run.callback_metrics["lr-SGD/pg2"]) == pytest.approx(0.05)
    with pytest.raises(ConfigurationError, match="logging_interval must be"):
        LearningRateMonitor("batch")
    named = trainer(callbacks=[LearningRateMonitor("epoch")])

    class Named(Rates):
        def configure_optimizers(self):
            optimizer = SGD(self.parameters(), lr=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1), "name": "rate"}}

    named.fit(Named(), loader(4))
    assert "rate" in named.callback_metrics

    class Several(Rates):
        automatic_optimization = False

        def configure_optimizers(self):
            return [kind(self.parameters(), lr=0.1) for kind in (SGD, Adam, Adam, SGD)]

    several = trainer(callbacks=[LearningRateMonitor("epoch")], limit_train_batches=0)
    several.fit(Several(), loader(4))
    assert several.callback_metrics.keys() == {"lr-SGD", "lr-Adam", "lr-Adam-1", "lr-SGD-1"}


class Base(Module):
    def __init__(self, width, *, depth=1, **more):
        super().__init__()
        self.save_hyperparameters(ignore="secret")
        self.layer = torch.nn.Linear(width, depth)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1)


class Derived(Base):
    def __init__(self, backbone=None, secret="x", lr=0.5):
        super().__init__(4, depth=2, extra=3)


def test_hyperparameters():
    assert Derived(torch.nn.ReLU()).hparams == {"width": 4, "depth": 2, "extra": 3, "lr": 0.5}
    assert Derived().hparams.lr == 0.5
    with pytest.raises(AttributeError, match="no hyperparameter 'rate'; there are: width"):
        _ = Derived().hparams.rate

    assert Logistic().hparams == {}


def test_named_hyperparameters():
    class Named(Module):
        def __init__(self, *names):
            super().__init__()
            self.save_hyperparameters(*names)

    class Rate(Named):
        def __init__(self, name, lr=0.1, width=4):
            super().__init__(name)

    assert Rate("lr").hparams == {"lr": 0.1}
    assert Rate({"depth": 3}).hparams == {"depth": 3}
    with pytest.raises(ConfigurationError, match="has no argument 'rate'; it has: name, lr, width"):
        Rate("rate")


def test_a_module_from_its_checkpoint(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path)
    module = Base(4, depth=3)
    trainer(callbacks=[best]).fit(module, loader(4))
    again = Base.load_from_checkpoint(best.best_model_path)
    assert again.hparams == {"width": 4, "depth": 3}
    assert torch.equal(again.layer.weight, module.layer.weight)
    with pytest.raises(RuntimeError, match="size mismatch"):
        Base.load_from_checkpoint(best.best_model_path, depth=2)
    assert Base.load_from_checkpoint(best.best_model_path, map_location="cpu", strict=False).hparams == again.hparams

    class Needs(Base):
        def __init__(self, backbone):
            super().__init__(4)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'backbone'"):
        Needs.load_from_checkpoint(best.best_model_path)


class Box:
    pass


def test_objects_in_a_checkpoint_are_read_only_where_trusted(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path)
    trainer(callbacks=[best]).fit(Base(4, box=Box()), loader(4))
    with pytest.raises(ConfigurationError, match="you trust the file, say weights_only=False"):
        Base.load_from_checkpoint(best.best_model_path)
    assert isinstance(Base.load_from_checkpoint(best.best_model_path, weights_only=False).hparams.box, Box)


def test_tables(capsys):
    run = trainer(enable_model_summary=True)
    run.fit(Logistic(), loader(4))
    out = capsys.readouterr().out
    assert "Trainable params" in out
    assert "BinaryAccuracy" in out
    run.validate(Logistic(), loader(6), verbose=True)
    out = capsys.readouterr().out
    assert "validate metric" in out
    assert "val_count" in out
    threads = trainer(strategy=Threads(), devices=3, enable_model_summary=True)
    threads.fit(Logistic(), loader(6))
    assert capsys.readouterr().out.count("Trainable params") == 1
    run.test(Logistic(), loader(6))
    assert capsys.readouterr().out == ""  # no one looks


def test_tables_need_rich(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="a table needs rich"):
        trainer(enable_model_summary=True)
    with pytest.raises(MissingDependencyError, match="a table needs rich"):
        trainer().test(Logistic(), loader(4), verbose=True)


class OnRankZero(Logistic):
    """A value that only rank 0 has, and that would let each rank decide otherwise."""

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("mine", float((2.0, 1.0, 3.0)[self.current_epoch]), rank_zero_only=True)


def test_a_value_of_rank_zero_may_be_watched_by_every_rank(tmp_path):
    best = ModelCheckpoint("mine", dirpath=tmp_path, filename="{epoch}")
    run = trainer(strategy=Threads(), devices=3, max_epochs=3, callbacks=[best])
    run.fit(OnRankZero(), loader(6), loader(4))
    assert (best.best_model_path, best.best_model_score) == (str(tmp_path / "1.ckpt"), 1.0)

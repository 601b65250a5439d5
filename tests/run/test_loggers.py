"""Where logged values go, and what a checkpoint holds of a module's arguments."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch.optim import SGD, Adam

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.log.writers import TensorBoardLogger
from distmetrics.train import CSVLogger, LearningRateMonitor, Logger, ModelCheckpoint, Module
from tests.run.models import Logistic, loader
from tests.run.threads import trainer


class Kept(Logger):
    """In memory; the lists are shared by the copies that ranks work on."""

    def __init__(self):
        type(self).rows, type(self).params, type(self).ends = [], [], []

    def log_metrics(self, metrics, step):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params):
        self.params.append(dict(params))

    def finalize(self, status):
        self.ends.append(status)


class Configured(Logistic):
    """Has four optimizers, the first with two groups."""

    automatic_optimization = False

    def __init__(self, lr=0.1, sizes=(8, 8)):
        super().__init__(lr)
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        if not self.hparams.sizes:
            raise ValueError("bad pixel")
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizers()[0].step()

    def configure_optimizers(self):
        groups = [{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.5}]
        first, *more = SGD(groups, lr=1.0), Adam(self.parameters()), Adam(self.parameters())
        return [{"optimizer": each} for each in (first, *more, SGD(self.parameters(), lr=0.1))]


@pytest.mark.parametrize("ranks", [1, 2])
def test_rank_zero_logs_and_prints(tmp_path, capsys, ranks):
    for version in range(2):
        logger, rates = [Kept(), CSVLogger(tmp_path, name="mine")], LearningRateMonitor()
        flags = {"logger": logger, "log_every_n_steps": 2, "callbacks": [rates], "enable_model_summary": True}
        run = trainer(ranks, max_epochs=2, **flags)
        run.fit(Configured(), loader(16 * ranks), loader(4))
        assert run.loggers[1].log_dir == str(tmp_path / "mine" / f"version_{version}")
        hparams = (tmp_path / "mine" / f"version_{version}" / "hparams.json").read_text()
        assert json.loads(hparams) == {"lr": 0.1, "sizes": [8, 8]}
        assert (Kept.params, Kept.ends) == ([{"lr": 0.1, "sizes": (8, 8)}], ["success"])
        assert [step for step, row in Kept.rows if "train_loss_step" in row] == [2, 4, 6, 8]
        epochs = [(step, row["epoch"]) for step, row in Kept.rows if "train_loss_epoch" in row]
        assert epochs == [(4, 0.0), (8, 1.0)]
        names = {"lr-SGD/pg1", "lr-SGD/pg2", "lr-Adam", "lr-Adam-1", "lr-SGD-1"}
        found = [row["lr-SGD/pg2"] for _, row in Kept.rows if row.keys() >= names]
        assert found == [0.5] * 6  # at each epoch's start, and each second step
        assert capsys.readouterr().out.count("Trainable params") == 1
    run.validate(Logistic(), loader(6), verbose=True)
    assert capsys.readouterr().out.count("validate metric") == 1
    run.test(Logistic(), loader(6))
    assert capsys.readouterr().out == ""  # no one looks
    with pytest.raises(ValueError, match="bad pixel"):
        trainer(ranks, logger=Kept()).fit(Configured(sizes=()), loader(8))
    assert Kept.ends == ["failed"]


def test_tensorboard_and_packages_that_are_missing(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(tmp_path, name="")
    logger.save()
    logger.finalize("success")
    assert not [*tmp_path.rglob("events*")]  # of no values
    trainer(logger=logger, log_every_n_steps=1).fit(Configured(), loader(8), loader(4))
    assert [*tmp_path.rglob("events*")]
    assert "experiment" not in vars(pickle.loads(pickle.dumps(logger)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="TensorBoardLogger needs tensorboard"):
        TensorBoardLogger(tmp_path)
    with pytest.raises(MissingDependencyError, match="a table needs rich"):
        trainer().test(Logistic(), loader(4), verbose=True)


class Base(Module):
    def __init__(self, width, *, depth=1, **more):
        super().__init__()
        self.save_hyperparameters(ignore="secret")


class Derived(Base):
    def __init__(self, backbone=None, secret="x", lr=0.5):
        super().__init__(4, depth=2, extra=3)


class Rate(Module):
    def __init__(self, name, lr=0.1, width=4):
        super().__init__()
        self.save_hyperparameters(name)


def test_hyperparameters_and_a_module_from_its_checkpoint(tmp_path):
    derived = Derived(torch.nn.ReLU()).hparams
    assert derived == {"width": 4, "depth": 2, "extra": 3, "lr": 0.5}
    assert derived.lr == 0.5
    with pytest.raises(AttributeError, match="no hyperparameter 'rate'; there are: width"):
        _ = derived.rate
    assert (Logistic().hparams, Rate("lr").hparams) == ({}, {"lr": 0.1})
    assert Rate({"depth": 3}).hparams == {"depth": 3}
    with pytest.raises(ConfigurationError, match="has no argument 'rate'; it has: name, lr, width"):
        Rate("rate")
    keeper, module = ModelCheckpoint(dirpath=tmp_path), Configured(sizes=3)
    trainer(callbacks=[keeper]).fit(module, loader(4))
    path = keeper.best_model_path
    again = Configured.load_from_checkpoint(path, map_location="cpu", strict=False, lr=0.2)
    assert again.hparams == {"lr": 0.2, "sizes": 3}
    assert torch.equal(again.layer.weight, module.layer.weight)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Rate.load_from_checkpoint(path)

"""Where logged values go, what a checkpoint holds of a module's arguments, and tables."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

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
    def __init__(self, lr=0.1, sizes=(8, 8)):
        super().__init__(lr)
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        self.log("hidden", 1.0, on_epoch=True, logger=False)
        if not self.hparams.sizes:
            raise ValueError("bad pixel")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rank_zero_logs_and_prints(tmp_path, capsys, ranks):
    for version in range(2):
        logger = [Kept(), CSVLogger(tmp_path, name="mine")]
        run = trainer(ranks, max_epochs=2, logger=logger, log_every_n_steps=2, enable_model_summary=True)
        run.fit(Configured(), loader(16 * ranks), loader(4))
        assert run.loggers[1].log_dir == str(tmp_path / "mine" / f"version_{version}")
        hparams = (tmp_path / "mine" / f"version_{version}" / "hparams.json").read_text()
        assert json.loads(hparams) == {"lr": 0.1, "sizes": [8, 8]}
        assert (Kept.params, Kept.ends) == ([{"lr": 0.1, "sizes": (8, 8)}], ["success"])
        assert [step for step, row in Kept.rows if "train_loss_step" in row] == [2, 4, 6, 8]
        epochs = [(step, row["epoch"]) for step, row in Kept.rows if "train_loss_epoch" in row]
        assert epochs == [(4, 0.0), (8, 1.0)]
        assert not any("hidden" in name for _, row in Kept.rows for name in row)
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
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="")
    logger.save()
    logger.finalize("success")
    assert not [*tmp_path.rglob("events*")]  # of no values
    run = trainer(max_epochs=2, logger=logger, log_every_n_steps=1)
    run.fit(Configured(), loader(8), loader(4))
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss_step")] == [1, 2, 3, 4]
    assert "experiment" not in vars(pickle.loads(pickle.dumps(logger)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for text, action in {
        "TensorBoardLogger needs tensorboard": lambda: TensorBoardLogger(tmp_path),
        "a table needs rich": lambda: trainer(enable_model_summary=True),
        "or a table needs rich": lambda: trainer().test(Logistic(), loader(4), verbose=True),
    }.items():
        with pytest.raises(MissingDependencyError, match=text):
            action()


class Rates(Logistic):
    def __init__(self, make):
        super().__init__()
        self.make, self.automatic_optimization = make, make is not several

    def configure_optimizers(self):
        return self.make(self)


def grouped(module):
    groups = [{"params": [module.layer.weight]}, {"params": [module.layer.bias], "lr": 0.5}]
    optimizer = SGD(groups, lr=1.0)
    return [optimizer], [StepLR(optimizer, 1, gamma=0.1)]


def several(module):
    return [kind(module.parameters(), lr=0.1) for kind in (SGD, Adam, Adam, SGD)]


def test_learning_rates():
    run = trainer(max_epochs=2, logger=Kept(), log_every_n_steps=1, callbacks=[LearningRateMonitor()])
    run.fit(Rates(grouped), loader(4))
    found = [row["lr-SGD/pg1"] for _, row in Kept.rows if "lr-SGD/pg1" in row]
    assert found == pytest.approx([1.0, 1.0, 0.1, 0.1])  # at each epoch's start and step
    assert float(run.callback_metrics["lr-SGD/pg2"]) == pytest.approx(0.05)
    run = trainer(callbacks=[LearningRateMonitor("epoch")], limit_train_batches=0)
    run.fit(Rates(several), loader(4))
    assert run.callback_metrics.keys() == {"lr-SGD", "lr-Adam", "lr-Adam-1", "lr-SGD-1"}


class Base(Module):
    def __init__(self, width, *, depth=1, **more):
        super().__init__()
        self.save_hyperparameters(ignore="secret")
        self.layer = torch.nn.Linear(width, depth)


class Derived(Base):
    def __init__(self, backbone=None, secret="x", lr=0.5):
        super().__init__(4, depth=2, extra=3)


class Rate(Module):
    def __init__(self, name, lr=0.1, width=4):
        super().__init__()
        self.save_hyperparameters(name)


class Needs(Configured):
    def __init__(self, backbone):
        super().__init__()


def test_hyperparameters_and_a_module_from_its_checkpoint(tmp_path):
    derived = Derived(torch.nn.ReLU()).hparams
    assert derived == {"width": 4, "depth": 2, "extra": 3, "lr": 0.5}
    assert derived.lr == 0.5
    with pytest.raises(AttributeError, match="no hyperparameter 'rate'; there are: width"):
        _ = derived.rate
    assert Logistic().hparams == {}
    assert Rate("lr").hparams == {"lr": 0.1}
    assert Rate({"depth": 3}).hparams == {"depth": 3}
    with pytest.raises(ConfigurationError, match="has no argument 'rate'; it has: name, lr, width"):
        Rate("rate")
    keeper, module = ModelCheckpoint(dirpath=tmp_path), Configured(sizes=3)
    trainer(callbacks=[keeper]).fit(module, loader(4))
    path = keeper.best_model_path
    again = Configured.load_from_checkpoint(path, map_location="cpu", strict=False, lr=0.2)
    assert again.hparams == {"lr": 0.2, "sizes": 3}
    assert torch.equal(again.layer.weight, module.layer.weight)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'backbone'"):
        Needs.load_from_checkpoint(path)

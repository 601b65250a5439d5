"""What configure_optimizers may return, and when learning rates change."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR

from distmetrics.errors import ConfigurationError
from distmetrics.run.schedules import configured
from distmetrics.train import Trainer
from tests.train.models import Logistic, loader

MODEL = nn.Linear(1, 1)


def make():
    optimizer = SGD(MODEL.parameters(), lr=1.0)
    return optimizer, StepLR(optimizer, 1, gamma=0.5)


def test_forms():
    optimizer, scheduler = make()
    forms = [
        (optimizer, 0),
        ([optimizer], 0),
        ((optimizer, scheduler), 1),
        (([optimizer], [scheduler]), 1),
        ({"optimizer": optimizer}, 0),
        ({"optimizer": optimizer, "lr_scheduler": scheduler}, 1),
        ({"optimizer": optimizer, "lr_scheduler": None, "monitor": "val_loss"}, 0),
        ({"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}, 1),
    ]
    for form, count in forms:
        found, schedules = configured(form, MODEL)
        assert found == [optimizer]
        assert [schedule.scheduler for schedule in schedules] == [scheduler] * count


def test_forms_that_we_do_not_know():
    optimizer, scheduler = make()
    plateau = ReduceLROnPlateau(optimizer)
    for form, message in [
        (None, "returned NoneType"),
        ([], "returned nothing"),
        ([optimizer, optimizer], "returned SGD, SGD"),
        ({"lr_scheduler": scheduler}, "a dict with .'lr_scheduler'."),
        ({"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "week"}}, "got 'week'"),
        ({"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 0}}, "and whole, got 0"),
        ({"optimizer": optimizer, "lr_schedulers": scheduler}, "a dict with .'optimizer', 'lr_schedulers'."),
        ({"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "a", "frequency": 2}, "a dict with"),
        ((optimizer, plateau), "needs a value to watch"),
        (SGD([torch.zeros(1, requires_grad=True)], lr=1.0), "the SGD steps no parameter of the Linear"),
        (LBFGS(MODEL.parameters()), "LBFGS computes the loss several times in a step"),
        (([Adam(MODEL.parameters())], [scheduler]), "the StepLR changes .* another SGD than .* returned: Adam"),
        ((make()[0], SequentialLR(optimizer, [scheduler, scheduler], [1])), "the SequentialLR changes"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            configured(form, MODEL)


def test_a_value_to_watch_may_be_optional():
    class Own(StepLR):
        def step(self, epoch=None, metrics=None):
            super().step()

    optimizer, _ = make()
    _, (schedule,) = configured((optimizer, Own(optimizer, 1)), MODEL)
    optimizer.step()
    schedule.step("epoch", 1, None)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


class Scheduled(Logistic):
    def __init__(self, make_scheduler, **options):
        super().__init__()
        self.make_scheduler = make_scheduler
        self.options = options

    def configure_optimizers(self):
        self.optimizer = SGD(self.parameters(), lr=1.0)
        return {
            "optimizer": self.optimizer,
            "lr_scheduler": {"scheduler": self.make_scheduler(self.optimizer)} | self.options,
        }


def rate_after(epochs, module, **flags):
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=epochs, **flags)
    trainer.fit(module, loader(8, 2), loader(4, 4))
    return module.optimizer.param_groups[0]["lr"]


def halve(optimizer):
    return StepLR(optimizer, 1, gamma=0.5)


def test_rates_change_by_epoch_or_step():
    assert rate_after(2, Scheduled(halve)) == 0.25
    assert rate_after(2, Scheduled(halve, interval="step")) == 0.5**8
    assert rate_after(2, Scheduled(halve, interval="step", frequency=3)) == 0.5**2


def test_a_plateau_watches_a_logged_value():
    def plateau(optimizer):
        return ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0)

    assert rate_after(3, Scheduled(plateau, monitor="val_count")) == pytest.approx(0.01)
    rare = rate_after(5, Scheduled(plateau, monitor="val_count"), check_val_every_n_epoch=2)
    assert rare == pytest.approx(0.1)  # validated twice: an epoch without validation has nothing to watch
    with pytest.raises(ConfigurationError, match=r"watches 'count', and logged values are: .*val_count"):
        rate_after(1, Scheduled(plateau, monitor="count"))


class Watched(Logistic):
    """Watches a value whether or not the scheduler wants one."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=1.0)
        return {"optimizer": optimizer, "lr_scheduler": self.kind(optimizer), "monitor": "val_loss"}


def test_a_value_to_watch_that_is_not_there():
    run = Trainer(max_epochs=1, strategy="single")
    run.fit(Watched(ReduceLROnPlateau), loader(8), loader(4))
    message = "the scheduler watches 'val_loss', and logged values are: train_"
    with pytest.raises(ConfigurationError, match=message):
        run.fit(Watched(ReduceLROnPlateau), loader(8))


def test_a_schedule_of_time_is_not_given_the_value():
    module = Watched(lambda optimizer: StepLR(optimizer, 1, gamma=0.5))
    rates = []
    module.on_train_epoch_start = lambda: rates.append(module.trainer.optimizers[0].param_groups[0]["lr"])
    Trainer(max_epochs=3, strategy="single").fit(module, loader(8), loader(4))
    assert rates == [1.0, 0.5, 0.25]

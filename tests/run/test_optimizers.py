"""What configure_optimizers may return, when rates change, and steps that a module takes itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR

from distmetrics.comm.communicator import use
from distmetrics.errors import ConfigurationError
from distmetrics.run.fit import share_gradients
from distmetrics.run.schedules import configured
from distmetrics.testing import run
from distmetrics.train import Module
from tests.run.models import Logistic, loader
from tests.run.threads import trainer

MODEL = nn.Linear(1, 1)
OPTIMIZER = SGD(MODEL.parameters(), lr=1.0)
STEPS = StepLR(OPTIMIZER, 1, gamma=0.5)
BOTH = {"optimizer": OPTIMIZER, "lr_scheduler": STEPS}


@pytest.mark.parametrize(
    ("form", "count"),
    [
        (OPTIMIZER, 0),
        ([OPTIMIZER], 0),
        ((OPTIMIZER, STEPS), 1),
        (([OPTIMIZER], [STEPS]), 1),
        (BOTH, 1),
        ({"optimizer": OPTIMIZER, "lr_scheduler": None, "monitor": "val_loss"}, 0),
        (BOTH | {"lr_scheduler": {"scheduler": STEPS, "interval": "step"}}, 1),
    ],
)
def test_forms(form, count):
    found, schedules = configured(form, MODEL)
    assert found == [OPTIMIZER]
    assert [schedule.scheduler for schedule in schedules] == [STEPS] * count


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (None, "returned NoneType"),
        ([], "returned nothing"),
        ({"lr_scheduler": STEPS}, "a dict with .'lr_scheduler'."),
        ({"optimizer": OPTIMIZER, "lr_schedulers": STEPS}, "dict with .'optimizer', 'lr_schedulers"),
        (BOTH | {"monitor": "a", "frequency": 2}, "a dict with"),
        (BOTH | {"lr_scheduler": {"scheduler": STEPS, "interval": "week"}}, "got 'week'"),
        (BOTH | {"lr_scheduler": {"scheduler": STEPS, "frequency": 0}}, "and whole, got 0"),
        ((OPTIMIZER, ReduceLROnPlateau(OPTIMIZER)), "needs a value to watch"),
        (([Adam(MODEL.parameters())], [STEPS]), "StepLR changes .* another SGD than .*: Adam"),
        ((SGD(MODEL.parameters()), SequentialLR(OPTIMIZER, [STEPS] * 2, [1])), "the SequentialLR changes"),
    ],
)
def test_forms_that_we_do_not_know(form, message):
    with pytest.raises(ConfigurationError, match=message):
        configured(form, MODEL)


class Scheduled(Logistic):
    def __init__(self, make, **options):
        super().__init__()
        self.make, self.options = make, options

    def configure_optimizers(self):
        self.optimizer = SGD(self.parameters(), lr=1.0)
        scheduler = {"scheduler": self.make(self.optimizer)} | self.options
        return {"optimizer": self.optimizer, "lr_scheduler": scheduler}

    def rate_after(self, epochs, val=True, **flags):
        trainer(max_epochs=epochs, **flags).fit(self, loader(8, 2), loader(4, 4) if val else None)
        return self.optimizer.param_groups[0]["lr"]


def halve(optimizer):
    return StepLR(optimizer, 1, gamma=0.5)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0)


class Optional(StepLR):
    """Takes a value to watch, and needs none."""

    def step(self, epoch=None, metrics=None):
        super().step()


@pytest.mark.parametrize(
    ("make", "options", "epochs", "flags", "rate"),
    [
        (halve, {"interval": "step", "frequency": 3}, 2, {}, 0.5**2),
        (halve, {"monitor": "val_loss"}, 2, {}, 0.25),  # a schedule of time is not given the value
        (lambda optimizer: Optional(optimizer, 1), {}, 1, {}, 0.1),
        (plateau, {"monitor": "val_count"}, 3, {}, 0.01),
        # an epoch without validation has nothing to watch
        (plateau, {"monitor": "val_count"}, 5, {"check_val_every_n_epoch": 2}, 0.1),
    ],
)
def test_when_rates_change(make, options, epochs, flags, rate):
    assert Scheduled(make, **options).rate_after(epochs, **flags) == pytest.approx(rate)
    for monitor, val in (("count", True), ("val_count", False)):
        text = f"the scheduler watches '{monitor}', and logged values are: train_"
        with pytest.raises(ConfigurationError, match=text):
            Scheduled(plateau, monitor=monitor).rate_after(1, val=val)


class Two(Module):
    """Two linear models with an optimizer each, the second stepped every other time."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        one, two = self.optimizers()
        one.zero_grad()
        self.manual_backward((self.first(x) ** 2).mean())
        one.step()
        if batch_idx % 2:
            with self.toggled(two):
                assert not self.first.weight.requires_grad
                two.zero_grad()
                self.manual_backward((self.second(x) ** 2).mean())
                two.step()
            self.lr_schedulers().step()

    def configure_optimizers(self):
        one, two = (SGD(part.parameters(), lr=0.1) for part in (self.first, self.second))
        return [{"optimizer": one}, {"optimizer": two, "lr_scheduler": StepLR(two, 1, gamma=0.5)}]


def fit(module, ranks=1, batch=4, **flags):
    made = trainer(ranks, **flags)
    made.fit(module, loader(16, batch))
    return made


def test_several_optimizers_on_any_number_of_ranks():
    whole, parts = Two(), Two()
    made = fit(whole, batch=8)
    assert (made.global_step, made.optimizers) == (2 + 1, [])
    assert not torch.equal(whole.second.weight, Two().second.weight)
    fit(parts, ranks=2)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())

    def rank(comm):
        module = nn.Linear(1, 1)
        if comm.rank == 1:  # the other has no gradient
            module.weight.grad = torch.ones(1, 1)
        with use(comm):
            share_gradients(module, comm)
        return float(module.weight.grad), module.bias.grad

    assert run(2, rank) == [(0.5, None)] * 2


class One(Two):
    """One optimizer comes by itself; a backward pass may be made before the first step."""

    def __init__(self, how="closure"):
        super().__init__()
        self.how = how

    def on_train_start(self):
        if self.how == "warm":
            self.manual_backward(self.first(torch.ones(2, 4)).mean())
            self.optimizers().step()

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        assert (optimizer.param_groups[0]["lr"], self.lr_schedulers()) == (0.1, None)
        loss = (self.first(batch[0]) ** 2).mean()
        if self.how == "closure":
            optimizer.step(lambda: self.manual_backward(loss))
            return
        loss.backward() if self.how == "plain" else self.manual_backward(loss)
        if self.how != "idle" or self.current_epoch == 0:
            optimizer.step()

    def configure_optimizers(self):
        return SGD(self.first.parameters(), lr=0.1)


@pytest.mark.parametrize(("how", "ranks", "steps"), [("plain", 1, 4), ("closure", 2, 2), ("warm", 1, 5)])
def test_gradients_that_are_everybodys(how, ranks, steps):
    module = One(how)
    assert fit(module, ranks).global_step == steps
    assert not torch.equal(module.first.weight, One().first.weight)


class Uneven(Two):
    def train_dataloader(self):
        return list(loader(8, 4)) if self.global_rank else list(loader(4, 4))


OF_ITS_OWN = "and Two does its own"
ALONE = r"steps its SGD with gradients that manual_backward has not made(.|\n)*self.manual_backward"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: fit(Two(), strategy="dp", devices=2), f"{OF_ITS_OWN[4:]} optimization, .*'dp' sp"),
        (lambda: fit(Two(), accumulate_grad_batches=2), f"accumulate_grad_batches=2, {OF_ITS_OWN}"),
        (lambda: fit(Two(), gradient_clip_val=1.0), f"gradient_clip_val=1.0, {OF_ITS_OWN}"),
        (lambda: Logistic().manual_backward(torch.zeros(())), "its optimization is automatic"),
        (lambda: fit(One("plain"), ranks=2), ALONE),
        (lambda: trainer(2, use_distributed_sampler=False).fit(Uneven()), "1 of 2 ranks have no batch for step 1"),
    ],
)
def test_manual_optimization_that_is_refused(action, message):
    with pytest.raises(ConfigurationError, match=message):
        action()


def test_a_module_that_steps_no_optimizer_is_told_so_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(One("idle"), 2, max_epochs=3)
    (told,) = [str(each.message) for each in caught if "One" in str(each.message)]
    assert "none of self.optimizers() in epoch 1: global_step is still" in told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(One(), 2, max_epochs=2)
        fit(One("idle"), 2, limit_train_batches=0)

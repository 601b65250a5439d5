"""A module that steps its optimizers itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from distmetrics.comm.communicator import use
from distmetrics.errors import ConfigurationError
from distmetrics.run.fit import share_gradients
from distmetrics.testing import run
from distmetrics.train import Module, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads


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
        self.log("x", 1.0)

    def configure_optimizers(self):
        one, two = SGD(self.first.parameters(), lr=0.1), SGD(self.second.parameters(), lr=0.1)
        return [{"optimizer": one}, {"optimizer": two, "lr_scheduler": StepLR(two, 1, gamma=0.5)}]


class Automatic(Two):
    automatic_optimization = True


def fit(module, world=("single", 1), batch=4, **flags):
    strategy, devices = world
    trainer = Trainer(
        strategy=strategy if isinstance(strategy, str) else strategy(),
        devices=devices,
        accelerator="cpu",
        **{"max_epochs": 1} | flags,
    )
    trainer.fit(module, loader(16, batch))
    return trainer


def test_several_optimizers():
    module = Two()
    before = module.second.weight.detach().clone()
    trainer = fit(module)
    assert trainer.global_step == 4 + 2
    assert not torch.equal(module.second.weight, before)
    assert trainer.optimizers == []


def test_the_same_on_several_ranks():
    whole, parts = Two(), Two()
    fit(whole, batch=8)
    fit(parts, (Threads, 2))
    torch.testing.assert_close(parts.first.weight, whole.first.weight)
    torch.testing.assert_close(parts.second.weight, whole.second.weight)


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_the_same_under_ddp():
    whole, parts = Two(), Two()
    fit(whole, batch=8)
    fit(parts, ("ddp_spawn", 2))
    torch.testing.assert_close(parts.first.weight, whole.first.weight)
    torch.testing.assert_close(parts.second.weight, whole.second.weight)


def test_gradients_are_shared_also_where_a_rank_has_none():
    def rank(comm):
        module = nn.Linear(1, 1)
        if comm.rank == 1:
            module.weight.grad = torch.ones(1, 1)
        with use(comm):
            share_gradients(module, comm)
        return float(module.weight.grad), module.bias.grad

    assert run(2, rank) == [(0.5, None)] * 2


def test_a_backward_before_the_first_step():
    class Warm(Two):
        def on_train_start(self):
            self.manual_backward(self.first(torch.ones(2, 4)).mean())
            self.optimizers()[0].step()

    assert fit(Warm()).global_step == 1 + 4 + 2


class Uneven(Two):
    def train_dataloader(self):
        return list(loader(8, 4)) if self.global_rank else list(loader(4, 4))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: fit(Automatic()), "returned SGD, SGD: several optimizers.*\n.*automatic_optimization = False"),
        (lambda: fit(Two(), ("dp", 2)), "Two does its own optimization, and strategy='dp' splits what"),
        (lambda: fit(Two(), accumulate_grad_batches=2), "accumulate_grad_batches=2, and Two does its own"),
        (lambda: fit(Two(), gradient_clip_val=1.0), "gradient_clip_val=1.0, and Two does its own"),
        (
            lambda: Logistic().manual_backward(torch.zeros(())),
            "and its optimization is automatic",
        ),
    ],
)
def test_refusals(action, message):
    with pytest.raises(ConfigurationError, match=message):
        action()


def test_a_rank_without_a_batch_is_refused():
    trainer = Trainer(strategy=Threads(), devices=2, max_epochs=1, use_distributed_sampler=False)
    with pytest.raises(ConfigurationError, match="1 of 2 ranks have no batch for step 1"):
        trainer.fit(Uneven())


def test_one_optimizer_comes_by_itself():
    class One(Two):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            assert optimizer.param_groups[0]["lr"] == 0.1
            assert self.lr_schedulers() is None

            def closure():
                self.manual_backward((self.first(batch[0]) ** 2).mean())

            optimizer.step(closure)

        def configure_optimizers(self):
            return SGD(self.first.parameters(), lr=0.1)

    assert fit(One()).global_step == 4


class Idle(Two):
    """Steps nothing, but in the epochs that it is told."""

    def __init__(self, active=()):
        super().__init__()
        self.active = active

    def training_step(self, batch, batch_idx):
        self.manual_backward((self.first(batch[0]) ** 2).mean())
        if self.trainer.current_epoch in self.active:
            self.optimizers()[0].step()


@pytest.mark.parametrize("world", [("single", 1), (Threads, 2)])
def test_a_module_that_steps_no_optimizer_is_told_so_once(world):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Idle(active=[0]), world, max_epochs=3)
    (told,) = [str(each.message) for each in caught if "Idle" in str(each.message)]
    assert "has stepped none of self.optimizers() in epoch 1: global_step is still" in told
    assert "self.manual_backward(loss)" in told


def test_a_module_that_steps_its_optimizers_is_told_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(Idle(active=[0, 1]), max_epochs=2)
        fit(Idle(), limit_train_batches=0)

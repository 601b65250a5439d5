"""The check for users' own tests: right modules pass, and each kind of mistake is named."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics.errors import InputError, InputTypeError
from distmetrics.testing import assert_same_as_single
from distmetrics.train import DataModule
from tests.run.models import Logistic, loader, samples
from tests.run.threads import TrainerThreads as Threads


def data():
    return loader(24, 12), loader(7, 2, seed=1)


def check(module, data=data, *, world_sizes=(2,), **options):
    assert_same_as_single(module, data, strategies=[Threads()], world_sizes=world_sizes, **options)


class Data(DataModule):
    def setup(self, stage):
        self.stage = stage

    def train_dataloader(self):
        return DataLoader(samples(26), 12, drop_last=True)

    def val_dataloader(self):
        return [loader(3, 2, seed=1), loader(5, 1, seed=2)]


@pytest.mark.parametrize("module", [Logistic, Logistic(), lambda: Logistic(0.2)])
def test_a_right_module_passes_and_random_generators_stay_as_they_were(module):
    before = torch.get_rng_state(), random.getstate()
    check(module, world_sizes=(1, 2, 3), max_epochs=2, gradient_clip_val=0.5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


class TwoLoaders(Logistic):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        x, y = batch
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(self(x), y))


def test_kinds_of_data():
    check(Logistic, loader(24, 12))
    check(Logistic, data())
    check(TwoLoaders, Data(), world_sizes=(2, 4))
    check(TwoLoaders, Data, world_sizes=(3,))


class LogsItsOwn(Logistic):
    def on_validation_epoch_end(self):
        self.log("mine", float(self.trainer.world_size))


class LogsMore(Logistic):
    def on_validation_epoch_end(self):
        if self.trainer.world_size > 1:
            self.log("more", 1.0)


class Steps(Logistic):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.trainer.world_size

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        (LogsItsOwn, ["strategy='threads', world size 2: mine: 2 instead of 1", "validate: mine: "]),
        (LogsMore, ["world size 2: more: 1.0 (Tensor) instead of None"]),
        (Steps, ["world size 2: weight layer.weight: ", " values differ, at most by "]),
    ],
)
def test_what_differs_is_named(module, lines):
    with pytest.raises(AssertionError, match="not what a single process gets") as info:
        check(module)
    for line in lines:
        assert line in str(info.value)


@pytest.mark.parametrize(
    ("data", "world_size", "message"),
    [
        (loader(24, 12), 5, "5 ranks can't share 24 samples in batches of 12 evenly"),
        (loader(25, 12), 2, "2 ranks can't share 25 samples"),
        ([(torch.ones(2, 4), torch.ones(2))], 2, "must be a DataLoader with a batch_size"),
    ],
)
def test_data_that_can_not_be_shared_evenly(data, world_size, message):
    with pytest.raises(InputError, match=message):
        check(Logistic, data, world_sizes=[world_size])


def test_what_is_no_module():
    with pytest.raises(InputTypeError, match="needs a Module"):
        check(nn.Linear(1, 1))

"""The claim: what is logged, and what is learnt, does not depend on the number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.train import Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads

LOCAL = {"train_loss_step"}


def values(trainer, *, without=()):
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name not in without}


def fit(strategy, devices, *, batch_size, train=24, val=7, val_batch=2, **flags):
    module = Logistic()
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=2, **flags)
    trainer.fit(module, loader(train, batch_size), loader(val, val_batch, seed=1))
    return module, trainer


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith("count"):
            assert found[name] == value
        else:
            assert found[name] == pytest.approx(value, rel=1e-6), name


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4))
def test_evaluation(world_size, count, one_batch, many_batch):
    def metrics(strategy, devices, batch_size):
        trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu")
        return trainer.validate(Logistic(), loader(count + 2, batch_size)), values(trainer)

    (expected,), all_expected = metrics("single", 1, one_batch)
    (found,), all_found = metrics(Threads(), world_size, many_batch)
    assert_equal(found, expected)
    assert_equal(all_found, all_expected)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_training(world_size):
    expected_module, expected = fit("single", 1, batch_size=12, gradient_clip_val=0.5)
    module, trainer = fit(Threads(), world_size, batch_size=12 // world_size, gradient_clip_val=0.5)
    assert_equal(values(trainer, without=LOCAL), values(expected, without=LOCAL))
    assert trainer.local_metrics == LOCAL
    assert (trainer.current_epoch, trainer.global_step) == (expected.current_epoch, expected.global_step) == (2, 4)
    for found, wanted in zip(module.parameters(), expected_module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def batches(*sizes):
    """Batches of random samples, as a list: a loader that every rank uses as it is."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for size in sizes:
        x = torch.randn(size, 4, generator=generator)
        made.append((x, (x.sum(1) > 0).float()))
    return made


class PerRank(Logistic):
    """A module that brings its own loader, which differs between ranks."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def train_dataloader(self):
        return self.plan[self.global_rank % len(self.plan)]


def uneven(plan, world_size, **flags):
    module = PerRank(plan)
    strategy = Threads() if world_size > 1 else "single"
    trainer = Trainer(
        strategy=strategy,
        devices=world_size,
        accelerator="cpu",
        use_distributed_sampler=False,
        **({"max_epochs": 2} | flags),
    )
    trainer.fit(module)
    return module, trainer


@pytest.mark.parametrize("known", [True, False])
def test_uneven_training_steps(known):
    a, b, c, d = batches(3, 3, 3, 3)
    first, second = [a, b, c], [d]
    joined = (torch.cat([a[0], d[0]]), torch.cat([a[1], d[1]]))
    expected_module, expected = uneven([[joined, b, c]], 1)
    plan = [first, second] if known else [Streamed(first), Streamed(second)]
    module, trainer = uneven(plan, 2)
    assert trainer.global_step == expected.global_step == 6
    assert_equal(values(trainer, without=LOCAL), values(expected, without=LOCAL))
    for found, wanted in zip(module.parameters(), expected_module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_an_update_whose_last_steps_some_ranks_have_no_batch_for():
    a, b, c, d = batches(3, 3, 3, 3)
    joined = (torch.cat([a[0], d[0]]), torch.cat([a[1], d[1]]))
    expected_module, expected = uneven([[joined, b, c]], 1, accumulate_grad_batches=2)
    module, trainer = uneven([[a, b, c], [d]], 2, accumulate_grad_batches=2)
    assert trainer.global_step == expected.global_step == 4
    for found, wanted in zip(module.parameters(), expected_module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


class Streamed:
    """An iterable without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def test_a_rank_without_training_data_learns_with_the_others():
    data = batches(4, 4)
    expected_module, _ = uneven([data], 1)
    module, trainer = uneven([data, []], 2)
    assert trainer.global_step == 4
    for found, wanted in zip(module.parameters(), expected_module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_max_steps_counts_the_same_on_every_rank():
    a, b, c = batches(2, 2, 2)
    _, trainer = uneven([[a, b, c], []], 2, max_epochs=None, max_steps=5)
    assert (trainer.global_step, trainer.current_epoch) == (5, 2)

"""The trainer: order of things, who gets what, what is left afterwards, and clear refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.train import Callback, DataModule, Module, Trainer
from tests.run.models import Logistic, Streamed, loader, odd, samples
from tests.run.threads import trainer


class Moded(Logistic):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Dropout().eval()

    def validation_step(self, batch, batch_idx):
        seen = self.training, self.layer.training, torch.is_grad_enabled()
        raise RuntimeError(f"in the middle {seen}")


def test_evaluation_runs_in_eval_mode_and_puts_modes_back_also_on_errors():
    module = Moded()
    with pytest.raises(RuntimeError, match=r"in the middle \(False, False, False\)"):
        trainer().validate(module, loader(4))
    modes = module.training, module.layer.training, module.frozen.training
    assert modes == (True, True, False)


def test_results_are_one_dict_of_floats_a_loader():
    def step(self, batch, batch_idx, dataloader_idx):
        self.log("count", len(batch[0]), reduce_fx="sum", on_step=True, on_epoch=True)

    run, whole = trainer(), lambda self: self.log("whole", 1.0)
    module = odd(validation_step=step, on_validation_epoch_end=whole)
    first, second = run.validate(module, [loader(6), loader(3)])
    assert first == {"count/dataloader_idx_0": 6.0, "whole": 1.0}
    assert second == {"count/dataloader_idx_1": 3.0, "whole": 1.0}
    assert {type(value) for value in first.values()} == {float}
    assert float(run.callback_metrics["count_epoch/dataloader_idx_1"]) == 3.0


class Calls(Callback):
    """Notes what it hears of validations, on all ranks."""

    seen: list[int] = []  # noqa: RUF012

    def on_validation_start(self, run, module):
        self.seen.append(run.current_epoch)


class Own(Logistic):
    """Brings its own loaders, seed and all; one rank stops all in the second epoch."""

    def train_dataloader(self):
        return loader(4, shuffle=True)

    def val_dataloader(self):
        return [loader(2)]

    def validation_step(self, batch, batch_idx):
        self.print("rank", self.global_rank)
        self.log("count", len(batch[0]), reduce_fx="sum")
        self.log("drawn", torch.rand(1))

    def on_train_epoch_end(self):
        if self.current_epoch == 1 and self.global_rank == self.trainer.world_size - 1:
            self.trainer.should_stop = True


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_module_brings_its_loaders_prints_once_and_stops_all_ranks(ranks, capsys):
    drawn = []
    for seed in (3, 3, 4):
        Calls.seen.clear()
        run = trainer(ranks, max_epochs=9, seed=seed, callbacks=[Calls()], num_sanity_val_steps=1)
        run.fit(Own())
        assert (run.current_epoch, run.callback_metrics["count"]) == (2, 2)
        assert capsys.readouterr().out == "rank 0\n" * 3
        assert sorted(Calls.seen) == [0] * ranks + [1] * ranks  # the check before training is none of its business
        drawn.append(float(run.callback_metrics["drawn"]))
    run.fit(Own())  # a fit begins anew
    assert (run.current_epoch, run.global_step) == (2, 2)
    assert ranks > 1 or drawn[0] == drawn[1] != drawn[2]  # threads share a generator


class Empty(Module):
    pass


def returns(value):
    return odd(training_step=lambda self, batch, batch_idx: value)


class Frozen(Logistic):
    """Is unfrozen too late for gradients to be averaged."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

    def on_fit_start(self):
        self.requires_grad_(True)


def fit(module, data=None, ranks=1, **flags):
    made = trainer(ranks, **flags)
    made.fit(module, data)
    return made


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("Empty has no training_step and no confi", lambda: fit(Empty(), [])),
        ("Empty has no test_step", lambda: trainer().test(Empty(), [])),
        ("one training loader, and there are 0", lambda: fit(Logistic())),
        ("training loader, and there are 2", lambda: fit(Logistic(), [loader(1)] * 2)),
        ("a loader to validate on", lambda: trainer().validate(Logistic())),
        ("there must be a loader to predict on", lambda: trainer().predict(Logistic(), DataModule())),
        ("loaders and a data module", lambda: trainer().fit(Logistic(), loader(1), datamodule=DataModule())),
        ("has no end", lambda: fit(Logistic(), loader(1), max_epochs=-1)),
        ("training loader has length 0", lambda: fit(Logistic(), [])),
        ("0 on every rank", lambda: fit(Logistic(), DataLoader([], 2), 2)),
        ("validation loader has length 0", lambda: trainer().validate(Logistic(), [])),
        ("gave no batch", lambda: fit(Logistic(), Streamed([]), max_epochs=None, max_steps=3)),
        ("took no step", lambda: fit(returns(None), loader(4), max_epochs=None, max_steps=3)),
        ("no epoch is under way", lambda: fit(odd(on_fit_start=lambda self: self.log("x", 1.0)), loader(1))),
        ("not attached", lambda: Logistic().training_step(next(iter(loader(2))), 0)),
        ("no fit is under way", lambda: trainer().save_checkpoint("x")),
        ("all are frozen", lambda: fit(Frozen(), loader(8), 2)),
        ("returned None", lambda: fit(returns(None), loader(8), 2)),
    ],
)
def test_clear_refusals(message, action):
    with pytest.raises(ConfigurationError, match=message):
        action()


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.zeros(2), r"one element, got shape \[2\]"),
        (1.5, "one element, got an object of float"),
        ({"los": 1}, "one element, got an object of NoneType"),
        (torch.zeros(()), "has no gradient"),
    ],
)
def test_what_training_step_must_return(value, got):
    with pytest.raises(InputError, match=f"training_step returns.*{got}"):
        fit(returns(value), loader(2))
    assert fit(returns(None), loader(8, 2)).global_step == 0  # one process leaves the step out


def test_a_module_knows_where_it_is_and_is_copied_without_its_trainer():
    class Pickles(Logistic):  # which itself can't be
        def on_train_batch_start(self, batch, batch_idx):
            self.copied = pickle.loads(pickle.dumps(self.trainer))

    module = Pickles()
    assert (module.current_epoch, module.global_step, module.global_rank) == (0, 0, 0)
    assert module.device == torch.device("cpu") == Empty().device
    run = trainer(max_epochs=2, log_every_n_steps=7)
    run.fit(module, loader(4, 2))
    assert (module.current_epoch, module.global_step, module.trainer) == (2, 4, run)
    assert copy.deepcopy(module)._trainer is None
    module.copied.validate(Logistic(), loader(2))
    assert run.log_every_n_steps == run.config.log_every_n_steps == 7
    with pytest.raises(AttributeError, match="no attribute 'no_such_flag'"):
        _ = run.no_such_flag


def test_the_epoch_of_a_validations_own_sampler_is_the_users():
    data, epochs = samples(4), []
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    module = odd(
        on_validation_epoch_start=lambda self: sampler.set_epoch(self.current_epoch + 5),
        validation_step=lambda self, batch, batch_idx: epochs.append(sampler.epoch),
    )
    trainer(max_epochs=2).fit(module, loader(2), DataLoader(data, 4, sampler=sampler))
    assert epochs == [5, 6]


@pytest.mark.parametrize("precision", [32, 64])
def test_hooks_find_what_a_step_adds_to_its_batch(precision):
    def step(self, batch, batch_idx):
        batch["size"] = len(batch["x"])
        return self.layer(batch["x"]).sum()

    sizes = []
    after = lambda self, outputs, batch, batch_idx: sizes.append(batch["size"])  # noqa: E731
    data = [{"x": torch.ones(2, 4)}]
    fit(odd(training_step=step, on_train_batch_end=after), data, precision=precision)
    assert sizes == [2]


class Validates(Callback):
    def __init__(self, other=None):
        self.other = other

    def on_train_epoch_end(self, run, module):
        self.result = (self.other or run).validate(module, loader(4))


def test_a_call_inside_a_call_takes_another_trainer():
    with pytest.raises(ConfigurationError, match="validate inside a call of the same trainer"):
        fit(Logistic(), loader(4), callbacks=[Validates()])
    inside, module = Validates(Trainer(accelerator="cpu")), Logistic()
    outer = fit(module, loader(4), callbacks=[inside])
    assert inside.result[0]["val_count"] == 4
    assert module.trainer is outer


def values(run):
    found = {name: float(value) for name, value in run.callback_metrics.items()}
    return {name: value for name, value in found.items() if name != "train_loss_step"}


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(2, 11), st.integers(1, 4), st.integers(1, 4))
def test_evaluation(world_size, count, one_batch, many_batch):
    alone, many = trainer(), trainer(world_size)
    (expected,) = alone.validate(Logistic(), loader(count, one_batch))
    (found,) = many.validate(Logistic(), loader(count, many_batch))
    assert found == pytest.approx(expected, rel=1e-6)
    assert found["val_count"] == count
    assert values(many) == pytest.approx(values(alone), rel=1e-6)


A, B, C, D = (tuple(part[:3] for part in batch) for batch in loader(16, 4))


class PerRank(Logistic):
    """A module that brings its own loader, which differs between ranks."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def train_dataloader(self):
        return self.plan[self.global_rank % len(self.plan)]


def uneven(*plan, **flags):
    module = PerRank(plan)
    run = trainer(len(plan), use_distributed_sampler=False, **{"max_epochs": 2} | flags)
    run.fit(module)
    return module, run


@pytest.mark.parametrize("kind", [list, Streamed])
@pytest.mark.parametrize(
    ("first", "second", "flags"),
    [
        ([A, B, C], [D], {}),
        ([A, B, C], [D], {"accumulate_grad_batches": 2}),
        ([A, B], [], {}),
        ([A, B, C], [], {"max_epochs": None, "max_steps": 5}),
    ],
)
def test_uneven_training_steps(kind, first, second, flags):
    together = tuple(map(torch.cat, zip(first[0], second[0], strict=True))) if second else first[0]
    found = uneven(kind(first), kind(second), **flags)
    (module, run), (wanted, alone) = found, uneven(kind([together, *first[1:]]), **flags)
    assert values(run) == pytest.approx(values(alone), rel=1e-6)
    assert run.local_metrics == {"train_loss_step"}
    assert (run.current_epoch, run.global_step) == (alone.current_epoch, alone.global_step)
    torch.testing.assert_close(module.state_dict(), wanted.state_dict(), rtol=1e-6, atol=1e-7)

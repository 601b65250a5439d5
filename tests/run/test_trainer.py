"""The trainer: order of things, who gets what, what is left afterwards, and clear refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.run.module import Hooks
from distmetrics.train import Callback, DataModule, Module, Trainer
from tests.run.models import Logistic, Streamed, loader, samples
from tests.run.threads import trainer

_seen: list[str] = []


def noting(base, mark):
    def method(name):
        return lambda self, *args: _seen.append(mark + name)

    names = [name for name in vars(Hooks) if name.startswith("on_")]
    return type("Noting", (base,), {name: method(name) for name in names})()


def evaluation(stage, batches, prefixes):
    step = [f"on_{stage}_batch_start", f"on_{stage}_batch_end"]
    starts = [f"on_{stage}_start", f"on_{stage}_epoch_start"]
    names = [*starts, *step * batches, f"on_{stage}_epoch_end", f"on_{stage}_end"]
    return [prefix + name for name in names for prefix in prefixes]


def test_order_of_hooks_in_a_test_and_of_the_check_before_training():
    _seen.clear()
    trainer(callbacks=[noting(Callback, "")]).test(noting(Logistic, "module."), loader(4, 2))
    assert evaluation("test", 2, ["module.", ""]) == _seen
    _seen.clear()
    run = trainer(callbacks=[noting(Callback, "")], num_sanity_val_steps=1)
    run.fit(noting(Logistic, "module."), loader(4), loader(4, 2))
    sanity = evaluation("validation", 1, ["module."])  # the check is no callback's business
    starts = ["module.on_fit_start", "on_fit_start", *sanity, "module.on_train_start"]
    assert _seen[: len(starts)] == starts
    assert _seen.count("on_validation_start") == 1


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


class TwoLoaders(Logistic):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("count", len(batch[0]), reduce_fx="sum", on_step=True, on_epoch=True)

    def on_validation_epoch_end(self):
        self.log("whole", 1.0)


def test_results_are_one_dict_of_floats_a_loader():
    run = trainer()
    first, second = run.validate(TwoLoaders(), [loader(6), loader(3)])
    assert {type(value) for value in first.values()} == {float}
    assert first == {"count/dataloader_idx_0": 6.0, "whole": 1.0}
    assert second == {"count/dataloader_idx_1": 3.0, "whole": 1.0}
    assert float(run.callback_metrics["count_epoch/dataloader_idx_1"]) == 3.0


@pytest.mark.parametrize(("limit", "steps"), [(9, 5), (0.5, 2), (0, 0)])
def test_limits_of_training_in_each_fit_anew(limit, steps):
    run = trainer(limit_train_batches=limit, max_epochs=2)
    for _ in range(2):
        module = Logistic()
        run.fit(module, loader(10, 2))
        assert (run.global_step, run.current_epoch) == (2 * steps, 2)
        assert torch.equal(module.layer.weight, Logistic().layer.weight) == (steps == 0)


class Noisy(Logistic):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step([x + torch.randn(1), y], batch_idx)


def test_a_seed_makes_runs_repeatable():
    def weights(seed):
        module = Noisy()
        trainer(seed=seed).fit(module, loader(8, 2, shuffle=True))
        return module.layer.weight

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


class Mnist(DataModule):
    def __init__(self):
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare")

    def setup(self, stage):
        self.calls.append(stage)
        self.data = samples(6)

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=2)

    val_dataloader = test_dataloader = train_dataloader


class Own(Logistic):
    def train_dataloader(self):
        return loader(4)

    def val_dataloader(self):
        return [loader(2)]


def test_a_data_module_or_the_module_brings_the_loaders():
    data, run = Mnist(), trainer()
    run.fit(Logistic(), data)
    run.validate(Logistic(), datamodule=data)
    assert data.calls == ["prepare", "fit", "prepare", "validate"]
    assert run.callback_metrics["val_count"] == 6
    run.fit(Own())
    assert run.callback_metrics["val_count"] == 2


class Empty(Module):
    pass


class LogsTooEarly(Logistic):
    def on_fit_start(self):
        self.log("x", 1.0)


class Returns(Logistic):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def training_step(self, batch, batch_idx):
        return self.value


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
        ("loaders and a data module", lambda: trainer().fit(Logistic(), loader(1), datamodule=Mnist())),
        ("has no end", lambda: fit(Logistic(), loader(1), max_epochs=-1)),
        ("training loader has length 0", lambda: fit(Logistic(), [])),
        ("0 on every rank", lambda: fit(Logistic(), DataLoader([], 2), 2)),
        ("validation loader has length 0", lambda: trainer().validate(Logistic(), [])),
        ("gave no batch", lambda: fit(Logistic(), Streamed([]), max_epochs=None, max_steps=3)),
        ("took no step", lambda: fit(Returns(None), loader(4), max_epochs=None, max_steps=3)),
        ("no epoch is under way", lambda: fit(LogsTooEarly(), loader(1))),
        ("not attached", lambda: Logistic().training_step(next(iter(loader(2))), 0)),
        ("no fit is under way", lambda: trainer().save_checkpoint("x")),
        ("all are frozen", lambda: fit(Frozen(), loader(8), 2)),
        ("returned None", lambda: fit(Returns(None), loader(8), 2)),
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
        fit(Returns(value), loader(2))
    assert fit(Returns(None), loader(8, 2)).global_step == 0  # one process leaves the step out


class Gathers(Logistic):
    """Gathers outputs by hand; prints and stops on some ranks."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(batch[0].sum())

    def on_validation_epoch_end(self):
        gathered = self.all_gather(self.outputs)
        self.outputs.clear()
        self.print("rank", self.global_rank)
        if self.trainer.is_global_zero:
            self.log("total", torch.stack(gathered).sum(), rank_zero_only=True)

    def on_train_epoch_end(self):
        if self.current_epoch == 1 and self.global_rank == self.trainer.world_size - 1:
            self.trainer.should_stop = True


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_gather_by_hand_print_once_and_stop_together(ranks, capsys):
    data = loader(8, 2)
    run = trainer(ranks, max_epochs=9)
    (result,) = run.validate(Gathers(), data)
    expected = torch.cat([x for x, _ in data]).sum()
    assert result["total"] == pytest.approx(float(expected), rel=1e-5)
    assert capsys.readouterr().out == "rank 0\n"
    run.fit(Gathers(), loader(8))
    assert run.current_epoch == 2


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
    data = samples(4)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)

    class Sets(Logistic):
        def on_validation_epoch_start(self):
            sampler.set_epoch(self.current_epoch + 5)

        def validation_step(self, batch, batch_idx):
            epochs.append(sampler.epoch)

    epochs = []
    trainer(max_epochs=2).fit(Sets(), loader(2), DataLoader(data, 4, sampler=sampler))
    assert epochs == [5, 6]


@pytest.mark.parametrize("precision", [32, 64])
def test_hooks_find_what_a_step_adds_to_its_batch(precision):
    class Adds(Logistic):
        def training_step(self, batch, batch_idx):
            batch["size"] = len(batch["x"])
            return self.layer(batch["x"]).sum()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            sizes.append(batch["size"])

    sizes = []
    fit(Adds(), [{"x": torch.ones(2, 4)}], precision=precision)
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

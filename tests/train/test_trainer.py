"""The trainer in one process: order of things, flags, and clear refusals."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from distmetrics.errors import ConfigurationError, DivergedError, InputError, PeerLostError
from distmetrics.run.module import Hooks
from distmetrics.train import Callback, DataModule, Module, Trainer
from tests.train.models import Logistic, loader, samples
from tests.train.threads import Threads

ROOT = Path(__file__).parents[2]


def trainer(**flags):
    return Trainer(**({"strategy": "single", "accelerator": "cpu", "max_epochs": 1} | flags))


class Recorder(Callback):
    def __init__(self):
        self.seen = []

    def note(self, name):
        self.seen.append(name)


for hook in [name for name in vars(Hooks) if name.startswith(("on_", "setup", "teardown"))]:
    setattr(Recorder, hook, lambda self, trainer, module, *args, hook=hook: self.note(hook))


class Hooked(Logistic):
    """Notes its own hooks among those of the callback."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen


for hook in [name for name in vars(Hooks) if name.startswith("on_")]:
    setattr(Hooked, hook, lambda self, *args, hook=hook: self.seen.append(f"module.{hook}"))


def both(*hooks):
    return [name for hook in hooks for name in (f"module.{hook}", hook)]


def evaluation(stage, batches):
    steps = both(f"on_{stage}_batch_start", f"on_{stage}_batch_end") * batches
    starts, ends = (f"on_{stage}_start", f"on_{stage}_epoch_start"), (f"on_{stage}_epoch_end", f"on_{stage}_end")
    return [*both(*starts), *steps, *both(*ends)]


def test_order_of_hooks():
    recorder = Recorder()
    trainer(callbacks=[recorder], num_sanity_val_steps=1).fit(Hooked(recorder.seen), loader(8), loader(4, 2))
    sanity = [name for name in evaluation("validation", 1) if name.startswith("module.")]
    backward = both("on_before_backward", "on_after_backward", "on_before_optimizer_step")
    step = [*both("on_train_batch_start"), *backward, *both("on_train_batch_end")]
    assert recorder.seen == [
        "setup",
        *both("on_fit_start"),
        *sanity,  # the check is no callback's business
        *both("on_train_start", "on_train_epoch_start"),
        *step,
        *step,
        *evaluation("validation", 2),
        *both("on_train_epoch_end", "on_train_end", "on_fit_end"),
        "teardown",
    ]


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_order_of_hooks_in_a_test_and_a_prediction(stage):
    recorder = Recorder()
    run = trainer(callbacks=[recorder])
    data = loader(4) if stage == "test" else [torch.zeros(4, 4)]
    getattr(run, stage)(Hooked(recorder.seen), data)
    assert recorder.seen == ["setup", *evaluation(stage, 1), "teardown"]


class Moded(Logistic):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Dropout().eval()
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.seen.append((self.training, self.layer.training, torch.is_grad_enabled()))
        raise RuntimeError("in the middle")


def test_evaluation_runs_in_eval_mode_and_puts_modes_back_also_on_errors():
    module = Moded()
    with pytest.raises(RuntimeError, match="in the middle"):
        trainer().validate(module, loader(4))
    assert module.seen == [(False, False, False)]
    assert (module.training, module.layer.training, module.frozen.training) == (True, True, False)


def test_results_are_one_dict_of_floats_a_loader():
    (result,) = trainer().test(Logistic(), loader(6))
    assert result.keys() == {"val_loss", "val_count", "val_max", "val_min", "val_accuracy", "val_f1", "val_auroc"}
    assert all(type(value) is float for value in result.values())
    assert result["val_count"] == 6


class TwoLoaders(Logistic):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("count", len(batch[0]), reduce_fx="sum", on_step=True, on_epoch=True)

    def on_validation_epoch_end(self):
        self.log("whole", 1.0)


def test_several_loaders_are_evaluated_apart():
    run = trainer()
    results = run.validate(TwoLoaders(), [loader(6), loader(3)])
    assert results == [{"count/dataloader_idx_0": 6.0, "whole": 1.0}, {"count/dataloader_idx_1": 3.0, "whole": 1.0}]
    for name in ("count", "count_epoch"):  # results have one name for it
        assert float(run.callback_metrics[f"{name}/dataloader_idx_1"]) == 3.0


def test_step_and_epoch_values_are_told_apart():
    run = trainer()
    run.fit(Logistic(), loader(8))
    assert run.callback_metrics["train_loss"] == run.callback_metrics["train_loss_epoch"]
    assert run.callback_metrics["train_loss"] != run.callback_metrics["train_loss_step"]
    assert run.callback_metrics["train_count"] == 8


class Streamed:
    def __init__(self, count):
        self.items = list(loader(count, 2))

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize(("limit", "steps"), [(None, 5), (2, 2), (9, 5), (0.5, 2), (1.0, 5), (0, 0)])
def test_limits_of_training(limit, steps):
    run = trainer(limit_train_batches=limit)
    run.fit(Logistic(), loader(10, 2))
    assert run.global_step == steps


def test_limits_of_evaluation():
    run = trainer(limit_val_batches=2, limit_test_batches=0.5)
    assert run.validate(Logistic(), loader(10, 2))[0]["val_count"] == 4
    assert run.test(Logistic(), loader(8, 2))[0]["val_count"] == 4
    module = Logistic()
    fit = trainer(limit_val_batches=0)
    fit.fit(module, loader(4), loader(4))
    assert "val_loss" not in fit.callback_metrics


@pytest.mark.parametrize(
    ("limit", "data", "message"),
    [
        (-1, loader(4), "limit_train_batches must be a number"),
        (1.5, loader(4), "between 0.0 and 1.0, or None for all, got 1.5"),
        (True, loader(4), "got True"),
        (0.5, Streamed(4), "no length to take a part of"),
    ],
)
def test_limits_that_make_no_sense(limit, data, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(limit_train_batches=limit).fit(Logistic(), data)


def test_validation_every_second_epoch():
    recorder = Recorder()
    trainer(callbacks=[recorder], max_epochs=5, check_val_every_n_epoch=2).fit(Logistic(), loader(4), loader(4))
    assert recorder.seen.count("on_validation_epoch_end") == 2
    assert recorder.seen.count("on_train_epoch_end") == 5


def test_max_steps_ends_in_the_middle_of_an_epoch():
    run = trainer(max_epochs=None, max_steps=7)
    run.fit(Logistic(), loader(10, 2))
    assert (run.global_step, run.current_epoch) == (7, 2)


def test_each_fit_starts_anew():
    run = trainer(max_epochs=2)
    for _ in range(2):
        run.fit(Logistic(), loader(4, 2))
        assert (run.current_epoch, run.global_step) == (2, 4)


def test_gradients_are_clipped():
    module = Logistic(lr=1.0)
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=1.0)
    before = [p.detach().clone() for p in module.parameters()]
    trainer(gradient_clip_val=0.01, max_epochs=None, max_steps=1).fit(module, loader(8, 8))
    moved = torch.cat([(p - q).flatten() for p, q in zip(module.parameters(), before, strict=True)])
    assert float(moved.detach().norm()) == pytest.approx(0.01, rel=1e-3)


def test_a_seed_makes_runs_repeatable():
    class Noisy(Logistic):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return super().training_step([x + torch.randn(1, device=x.device), y], batch_idx)

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


def test_a_data_module_serves_every_call():
    data, run = Mnist(), trainer()
    run.fit(Logistic(), data)
    run.validate(Logistic(), datamodule=data)
    run.test(Logistic(), data)
    assert data.calls == ["prepare", "fit", "prepare", "validate", "prepare", "test"]
    assert run.callback_metrics["val_count"] == 6


class Own(Logistic):
    def train_dataloader(self):
        return loader(4)

    def val_dataloader(self):
        return [loader(2)]


def test_a_module_may_bring_its_loaders():
    run = trainer()
    run.fit(Own())
    assert run.callback_metrics["val_count"] == 2


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("Empty has no training_step and no configure_optimizers", lambda: trainer().fit(Empty(), [])),
        ("Empty has no test_step", lambda: trainer().test(Empty(), [])),
        ("one training loader, and there are 0", lambda: trainer().fit(Logistic())),
        ("one training loader, and there are 2", lambda: trainer().fit(Logistic(), [loader(1), loader(1)])),
        ("a loader to validate on", lambda: trainer().validate(Logistic())),
        (
            "there must be a loader to predict on, and there are 0",
            lambda: trainer().predict(Logistic(), DataModule()),
        ),
        ("loaders and a data module", lambda: trainer().fit(Logistic(), loader(1), datamodule=Mnist())),
        ("the trainer has no end", lambda: trainer(max_epochs=None).fit(Logistic(), loader(1))),
        ("training loader has length 0", lambda: trainer().fit(Logistic(), [])),
        ("must be positive and whole, got 0", lambda: trainer(check_val_every_n_epoch=0)),
        ("gave no batch", lambda: trainer(max_epochs=None, max_steps=3).fit(Logistic(), Streamed(0))),
        ("took no step", lambda: trainer(max_epochs=None, max_steps=3).fit(Returns(None), loader(4))),
        ("no epoch is under way", lambda: trainer().fit(LogsTooEarly(), loader(1))),
        ("not attached to a trainer", lambda: Logistic().training_step(next(iter(loader(2))), 0)),
        ("no fit is under way", lambda: trainer().save_checkpoint("x")),
    ],
)
def test_clear_refusals(message, action):
    with pytest.raises(ConfigurationError, match=message):
        action()


class Empty(Module):
    pass


class LogsTooEarly(Logistic):
    def on_fit_start(self):
        self.log("x", 1.0)


def test_an_unknown_flag_is_pythons_own_error():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'max_epoch'; did you mean 'max_epochs'\?"):
        Trainer(max_epoch=2)


class Returns(Logistic):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def training_step(self, batch, batch_idx):
        return self.value


@pytest.mark.parametrize(
    ("value", "got"),
    [(torch.zeros(2), r"shape \[2\]"), (1.5, "an object of float"), ({"los": 1}, "an object of NoneType")],
)
def test_what_training_step_must_return(value, got):
    with pytest.raises(InputError, match=f"training_step returns.*one element, got {got}"):
        trainer().fit(Returns(value), loader(2))


def test_none_skips_a_step():
    run = trainer()
    run.fit(Returns(None), loader(8, 2))
    assert run.global_step == 0


class Dicts(Logistic):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "extra": 1}


def test_a_dict_with_a_loss_trains():
    run = trainer()
    run.fit(Dicts(), loader(4))
    assert run.global_step == 1


class GathersInStep(Logistic):
    def training_step(self, batch, batch_idx):
        self.all_gather(torch.zeros(1))
        return super().training_step(batch, batch_idx)

    def train_dataloader(self):
        return list(loader(4, 2)) if self.global_rank else []


def test_a_collective_that_a_rank_without_a_batch_would_miss_is_refused():
    run = trainer(strategy=Threads(), devices=2, use_distributed_sampler=False)
    with pytest.raises(
        DivergedError, match="all_gather in a training step that 1 of 2 ranks have no batch for"
    ) as info:
        run.fit(GathersInStep())
    assert info.value.rank == 1


class Gathers(Logistic):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(batch[0].sum())

    def on_validation_epoch_end(self):
        gathered = self.all_gather(self.outputs)
        self.outputs.clear()
        if self.trainer.is_global_zero:
            self.log("total", torch.stack(gathered).sum(), rank_zero_only=True)


def test_gathering_outputs_by_hand():
    data = loader(8, 2)
    expected = float(torch.cat([x for x, _ in data]).sum())
    for strategy, devices in (("single", 1), (Threads(), 2)):
        (result,) = trainer(strategy=strategy, devices=devices).validate(Gathers(), data)
        assert result["total"] == pytest.approx(expected, rel=1e-5)


def test_an_error_on_one_rank_ends_the_others():
    class Fails(Logistic):
        def validation_step(self, batch, batch_idx):
            if self.global_rank == 1:
                raise ValueError("bad pixel")

    with pytest.raises(ValueError, match="bad pixel") as info:
        trainer(strategy=Threads(), devices=3).validate(Fails(), loader(9))
    assert any("raised on rank 1" in note for note in info.value.__notes__)
    assert any(PeerLostError.__name__ in note for note in info.value.__notes__)


class StopsOnOneRank(Logistic):
    def on_train_epoch_end(self):
        if self.current_epoch == 1 and self.global_rank == 2:
            self.trainer.should_stop = True


def test_one_rank_can_stop_all():
    run = trainer(strategy=Threads(), devices=3, max_epochs=9)
    run.fit(StopsOnOneRank(), loader(6))
    assert run.current_epoch == 2


def test_the_module_knows_where_it_is():
    module = Logistic()
    assert (module.current_epoch, module.global_step, module.global_rank) == (0, 0, 0)
    assert module.device == torch.device("cpu") == Empty().device
    run = trainer(max_epochs=2)
    run.fit(module, loader(4, 2))
    assert (module.current_epoch, module.global_step, module.trainer) == (2, 4, run)


def test_printing_is_rank_zeros(capsys):
    class Prints(Logistic):
        def on_validation_epoch_end(self):
            self.print("rank", self.global_rank)

    trainer(strategy=Threads(), devices=3).validate(Prints(), loader(3))
    assert capsys.readouterr().out == "rank 0\n"


def test_a_module_is_copied_without_its_trainer():
    import copy

    module = Logistic()
    trainer().fit(module, loader(2))
    assert copy.deepcopy(module)._trainer is None
    assert module._trainer is not None


def test_a_trainer_is_pickled_without_the_fit_under_way():
    class Pickles(Logistic):  # which itself can't be
        def on_train_batch_start(self, batch, batch_idx):
            self.copied = pickle.loads(pickle.dumps(self.trainer))

    module = Pickles()
    trainer().fit(module, loader(2))
    module.copied.validate(Logistic(), loader(2))


def test_the_epoch_of_a_validations_own_sampler_is_the_users():
    data = samples(4)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)

    class Sets(Logistic):
        def on_validation_epoch_start(self):
            sampler.set_epoch(self.current_epoch + 5)

        def validation_step(self, batch, batch_idx):
            epochs.append(sampler.epoch)

    epochs = []
    trainer(max_epochs=2).fit(Sets(), loader(2), DataLoader(data, batch_size=4, sampler=sampler))
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
    trainer(precision=precision).fit(Adds(), [{"x": torch.ones(2, 4)}])
    assert sizes == [2]


def test_neither_rich_nor_torchmetrics_is_imported():
    code = (
        "import sys, distmetrics.train as t; t.Trainer(accelerator='cpu');"
        "print([name for name in ('rich', 'torchmetrics', 'lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"

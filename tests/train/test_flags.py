"""The trainer's flags."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.run.batches import with_last
from distmetrics.train import (
    Callback,
    CSVLogger,
    EarlyStopping,
    ModelCheckpoint,
    Trainer,
    seed_everything,
)
from tests.train.models import Logistic, loader, samples
from tests.train.threads import Threads


def trainer(**flags):
    return Trainer(**({"strategy": "single", "accelerator": "cpu", "max_epochs": 1} | flags))


class Descends(Logistic):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Streamed:
    def __init__(self, count, batch=2):
        self.items = list(loader(count, batch))

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("count", "batch", "steps"), [(16, 2, 3), (24, 2, 4), (16, 1, 3)])
def test_accumulated_batches_are_one_large_batch(world, count, batch, steps):
    whole, parts = Descends(), Descends()
    trainer().fit(whole, loader(count, batch * steps * world))
    strategy = "single" if world == 1 else Threads()
    run = trainer(strategy=strategy, devices=world, accumulate_grad_batches=steps)
    run.fit(parts, loader(count, batch))
    assert run.global_step == -(-count // (batch * steps * world))
    torch.testing.assert_close(parts.layer.weight, whole.layer.weight, rtol=1e-5, atol=1e-6)


def test_accumulation_without_a_length():
    whole, streamed = Descends(), Descends()
    trainer(accumulate_grad_batches=2).fit(whole, loader(8, 2))
    run = trainer(accumulate_grad_batches=2)
    run.fit(streamed, Streamed(8))
    assert run.global_step == 2
    assert torch.equal(whole.layer.weight, streamed.layer.weight)
    odd = trainer(accumulate_grad_batches=2)
    odd.fit(Descends(), Streamed(10))
    assert odd.global_step == 3
    assert list(with_last([])) == []


class Counts(Callback):
    def __init__(self):
        self.at = []

    def on_validation_end(self, trainer, module):
        self.at.append((trainer.current_epoch, trainer.progress.batches))


@pytest.mark.parametrize(
    ("interval", "at"),
    [
        (1.0, [(0, 5), (1, 5)]),
        (2, [(0, 2), (0, 4), (1, 2), (1, 4)]),
        (5, [(0, 5), (1, 5)]),
        (0.5, [(0, 2), (0, 4), (1, 2), (1, 4)]),
        (0.01, [(epoch, step) for epoch in range(2) for step in range(1, 6)]),
    ],
)
def test_validation_within_an_epoch(interval, at):
    counts = Counts()
    trainer(max_epochs=2, val_check_interval=interval, callbacks=[counts]).fit(Logistic(), loader(10, 2), loader(4))
    assert counts.at == at


class Scored(Logistic):
    given = (3.0, 1.0, 2.0, 2.5, 2.6, 0.5)

    def on_validation_epoch_end(self):
        self.log("score", self.given[self.trainer.global_step // 2 - 1])


@pytest.mark.parametrize("world", [1, 2])
def test_callbacks_act_on_validations_within_an_epoch(tmp_path, world):
    best = ModelCheckpoint("score", dirpath=tmp_path, filename="{step}")
    stop = EarlyStopping("score", patience=3)
    strategy = "single" if world == 1 else Threads()
    run = trainer(strategy=strategy, devices=world, val_check_interval=2, callbacks=[best, stop])
    run.fit(Scored(), loader(24 * world, 2), loader(4))
    assert best.best_model_path == str(tmp_path / "4.ckpt")
    assert run.global_step == 10
    assert stop.stopped_epoch == 0


def test_fast_dev_run_touches_everything_and_leaves_nothing(tmp_path):
    kept, counts = ModelCheckpoint(dirpath=tmp_path), Counts()
    run = trainer(
        fast_dev_run=True,
        max_epochs=9,
        callbacks=[kept, EarlyStopping("nothing"), counts],
        logger=CSVLogger(tmp_path),
        default_root_dir=tmp_path,
    )
    run.fit(Logistic(), loader(8), loader(8))
    assert (run.global_step, run.current_epoch, counts.at) == (1, 1, [(0, 1)])
    assert run.test(Logistic(), loader(8))[0]["val_count"] == 4
    assert list(tmp_path.iterdir()) == []
    three = trainer(fast_dev_run=3)
    three.fit(Logistic(), loader(40))
    assert three.global_step == 3


def test_an_accelerator_that_is_a_strategy():
    with pytest.raises(ConfigurationError, match=r"accelerator must be 'auto' or 'cpu' .* got 'dp'"):
        Trainer(devices=2, accelerator="dp")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches must be positive"),
        ({"log_every_n_steps": True}, "log_every_n_steps must be positive and whole, got True"),
        ({"val_check_interval": 1.5}, "val_check_interval must be a number of steps, or a fraction"),
        ({"val_check_interval": 0}, "val_check_interval must be"),
        ({"num_sanity_val_steps": -2}, "num_sanity_val_steps must be"),
        ({"deterministic": "yes"}, "deterministic must be"),
        ({"fast_dev_run": -1}, "fast_dev_run must be"),
        ({"enable_checkpointing": False, "callbacks": [ModelCheckpoint()]}, "callbacks has a ModelCheckpoint"),
        ({"logger": [3]}, "logger= takes a Logger or a list of such, got an object of int"),
        ({"callbacks": [ModelCheckpoint]}, "callbacks= takes a Callback or .* got the class ModelCheckpoint itself"),
        ({"max_epochs": "3"}, "max_epochs must be a whole number from -1 on, or None, got '3'"),
        ({"max_epochs": 1.5}, "max_epochs must be a whole number"),
        ({"max_steps": None}, "max_steps must be a whole number"),
        ({"max_steps": -5}, "max_steps must be a whole number"),
        ({"gradient_clip_val": -1}, "gradient_clip_val must be a positive number, or None, got -1"),
        ({"gradient_clip_val": 0}, "gradient_clip_val must be a positive number"),
        ({"accumulate_grad_batches": {1: 2}}, "accumulate_grad_batches must be positive and whole"),
        ({"limit_train_batches": "2"}, "limit_train_batches must be a number of batches, or a fraction"),
        ({"limit_predict_batches": -0.5}, "limit_predict_batches must be a number of batches, or a fraction"),
        ({"num_sanity_val_steps": "2"}, "num_sanity_val_steps must be"),
        ({"fast_dev_run": "yes"}, "fast_dev_run must be"),
        ({"seed": -1}, "seed must be from 0 to"),
        ({"seed": "1"}, "seed must be from 0 to"),
        ({"plugins": object()}, "plugins must be one cluster environment"),
        ({"strategy": "DDP-spawn"}, "(?s)there is no strategy 'DDP-spawn'.*Likely: 'ddp_spawn'"),
        ({"gpus": 2, "devices": 3}, "gpus=2 together with devices=3"),
    ],
)
def test_values_that_make_no_sense(flags, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(**flags)


@pytest.mark.parametrize(
    ("flags", "data", "message"),
    [
        ({"val_check_interval": 9}, loader(8, 2), "an epoch has 4 steps: there would be no validation"),
        ({"val_check_interval": 0.5}, Streamed(8), "has no length to take a part of"),
        ({"limit_train_batches": 0.1}, loader(8, 2), "limit_train_batches=0.1 of 4 batches is no batch"),
    ],
)
def test_values_that_do_not_fit_the_data(flags, data, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(**flags).fit(Logistic(), data, loader(4))


def test_a_loader_without_samples():
    empty = DataLoader(samples(3), batch_size=4, drop_last=True)
    for world in (1, 2):
        run = trainer(strategy="single" if world == 1 else Threads(), devices=world)
        with pytest.raises(ConfigurationError, match="the training loader has length 0"):
            run.fit(Logistic(), empty if world == 1 else DataLoader([], batch_size=2))
        with pytest.raises(ConfigurationError, match="the validation loader has length 0"):
            run.validate(Logistic(), DataLoader([], batch_size=2))


class Explodes(Logistic):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if (batch_idx, self.global_rank) == (1, self.trainer.world_size - 1) else loss


def test_a_loss_that_is_not_finite_ends_training_on_every_rank():
    run = trainer(strategy=Threads(), devices=2, terminate_on_nan=True)
    with pytest.raises(InputError) as info:
        run.fit(Explodes(), loader(16, 2))
    text = str(info.value)
    assert text.startswith("the loss is not finite in step 1 of epoch 0")
    assert "rank 1  loss nan" in text
    trainer().fit(Explodes(), loader(8, 2))  # without the flag nobody looks
    with pytest.raises(InputError, match="not finite in step 1"):
        trainer(terminate_on_nan=True).fit(Explodes(), loader(8, 2))


def test_torch_is_left_as_it_was():
    class Looks(Logistic):
        def training_step(self, batch, batch_idx):
            seen.append((torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()))
            return super().training_step(batch, batch_idx)

    seen = []
    trainer(deterministic=True, detect_anomaly=True).fit(Looks(), loader(4))
    assert seen == [(True, True)]
    assert (torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()) == (False, False)


def test_seed_everything(monkeypatch):
    monkeypatch.setenv("DISTMETRICS_SEED", "")
    monkeypatch.setenv("DISTMETRICS_SEED_WORKERS", "")
    import random

    import numpy as np

    def draw():
        seed_everything(3)
        return float(torch.rand(())), random.random(), float(np.random.rand())

    assert draw() == draw()
    with pytest.raises(ConfigurationError, match="seed_everything: seed must be from 0 to"):
        seed_everything(-1)


class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_draw_other_numbers_on_each_rank(monkeypatch):
    from distmetrics.run.seed import seed_workers

    monkeypatch.setenv("DISTMETRICS_SEED", "")
    monkeypatch.setenv("DISTMETRICS_SEED_WORKERS", "")

    def drawn(rank):
        seed_everything(3, workers=True)
        data = seed_workers(DataLoader(Draws(), batch_size=4, num_workers=1), rank)
        return next(iter(data)).flatten().tolist()

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    own = DataLoader(Draws(), num_workers=1, worker_init_fn=print)
    assert seed_workers(own, 0) is own


def test_checkpoints_after_so_many_steps_or_epochs(tmp_path):
    by_step = ModelCheckpoint(dirpath=tmp_path / "steps", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    by_epoch = ModelCheckpoint(dirpath=tmp_path / "epochs", every_n_epochs=2, save_top_k=-1, filename="{epoch}")
    watched = ModelCheckpoint("train_loss", dirpath=tmp_path / "watched", every_n_train_steps=3, filename="{step}")
    run = trainer(max_epochs=4, callbacks=[by_step, by_epoch, watched])
    for _ in range(2):
        run.fit(Logistic(), loader(4, 2))
        names = [sorted(path.stem for path in (tmp_path / part).iterdir()) for part in ("steps", "epochs")]
        assert len(by_step.best_k_models) == len(names[0])
    assert {name.split("-")[0] for name in names[0]} == {"2", "4", "6", "8"}
    assert names[1] == ["1", "1-v1", "3", "3-v1"]
    assert watched.best_model_score is not None
    with pytest.raises(ConfigurationError, match="'nothing', and logged values are"):
        trainer(callbacks=[ModelCheckpoint("nothing", every_n_train_steps=1)]).fit(Logistic(), loader(4, 2))
    with pytest.raises(ConfigurationError, match="every_n_epochs must be positive"):
        ModelCheckpoint(every_n_epochs=0)


def test_enable_checkpointing(tmp_path):
    run = trainer(enable_checkpointing=True, default_root_dir=tmp_path)
    run.fit(Logistic(), loader(4))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["epoch=0-step=1.ckpt"]


def test_flags_can_be_read_where_they_were_given():
    """Callbacks of other trainers ask for them."""
    made = trainer(log_every_n_steps=7, limit_val_batches=3)
    assert (made.log_every_n_steps, made.limit_val_batches) == (7, 3)
    assert made.config.log_every_n_steps == 7
    with pytest.raises(AttributeError, match="no attribute 'no_such_flag'"):
        made.no_such_flag  # noqa: B018


def test_the_hooks_of_an_evaluations_end_know_its_batches():
    seen = []

    class Asks(Callback):
        def on_validation_epoch_end(self, trainer, module):
            seen.append(trainer.num_batches)

    trainer(callbacks=[Asks()]).validate(Logistic(), loader(40))
    assert seen == [len(loader(40))]

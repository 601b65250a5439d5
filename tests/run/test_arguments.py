"""An argument that can't be meant is refused where it is passed, with what to pass."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from distmetrics import Runner
from distmetrics.arguments import FLAG, POSITIVE, check
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.run.config import TrainerConfig
from distmetrics.strategies.deepspeed import DeepSpeed
from distmetrics.strategies.fsdp import FSDP
from distmetrics.strategies.xla import XLA
from distmetrics.train import (
    CSVLogger,
    DataModule,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    Trainer,
    seed_everything,
)
from tests.run.models import Logistic, Streamed, loader, samples
from tests.run.threads import trainer

KEEPER = ModelCheckpoint
FILLED = "cannot be filled in"


def called(method, *args, **options):
    """Return an action: call a method of a trainer with a module and data, by default right ones."""
    return lambda: getattr(trainer(), method)(*(args or (Logistic(), loader(4))), **options)


def stops(**options):
    return partial(EarlyStopping, **{"monitor": "loss"} | options)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (partial(KEEPER, filename=5), "ModelCheckpoint: filename must be a text"),
        (partial(KEEPER, filename=""), "filename must be a text"),
        (partial(KEEPER, filename="{epoch"), f"filename='{{epoch' {FILLED}: expected '}}'"),
        (partial(KEEPER, filename="{}"), f"filename='{{}}' {FILLED}"),
        (partial(KEEPER, filename="{0}"), FILLED),
        (partial(KEEPER, filename="{vl:d}"), f"{FILLED}: Unknown format code 'd'"),
        (partial(KEEPER, filename="{vl.item}"), FILLED),
        (partial(KEEPER, dirpath=5), "dirpath must be a path"),
        (partial(KEEPER, save_last="link"), "save_last must be True or False, got 'link'"),
        (partial(KEEPER, save_top_k=-2), "save_top_k must be"),
        (partial(KEEPER, monitor=3), "monitor must be"),
        *[
            (partial(KEEPER, every_n_epochs=wrong), "every_n_epochs must be positive and whole, got")
            for wrong in (0, True, None, np.int64(2), torch.tensor(2))
        ],
        (partial(KEEPER, every_n_train_steps=0.5), "positive and whole, or None, got 0.5"),
        *[
            (stops(min_delta=wrong), f"min_delta must be a number, got {wrong!r}")
            for wrong in ("a", None, float("nan"), True)
        ],
        (stops(monitor=None), "monitor must be the name of a logged value, got None"),
        (stops(patience=True), "patience must be a whole number from 0 on, got True"),
        (stops(mode="best"), "'min' or 'max', got 'best'"),
        (partial(LearningRateMonitor, "batch"), "logging_interval must be"),
        (partial(ModelSummary, max_depth="2"), "max_depth must be a whole number from 0 on"),
        (partial(seed_everything, 1, workers="no"), "seed_everything: workers must be True or"),
        *[
            (called(name, ckpt_path=path), f"ckpt_path must be the path of a che.*, got {path!r}")
            for name in ("fit", "validate", "predict")
            for path in (5, "")
        ],
        (called("validate", verbose="no"), "Trainer: verbose must be True or False, or None"),
        (called("predict", return_predictions="no"), "must be True or False"),
        (called("fit", weights_only="no"), "must be True or False"),
        (called("fit", Logistic, loader(4)), "or a subclass, got the class Logistic itself"),
        (called("predict", nn.Linear(4, 1), loader(4)), "a subclass, got an object of Linear"),
        (
            called("fit", Logistic(), datamodule=DataModule),
            "an object of DataModule or a subclass, or None, got <class",
        ),
        (called("fit", Logistic(), samples(8)), "an object of TensorDataset\nDo:     pass DataLoader("),
        (called("fit", Logistic(), {"a": loader(4)}), "this is an object of dict"),
        (called("validate", Logistic(), 3), "this is an object of int"),
        (called("predict", Logistic(), torch.zeros(2, 4)), "this is an object of Tensor"),
        (partial(FSDP, reshard="False"), "FSDP: reshard must be True or False"),
        (partial(FSDP, cpu_offload="no"), "FSDP: cpu_offload must be True or False"),
        (partial(FSDP, replicas=True), "FSDP: replicas must be positive and whole, got True"),
        (partial(FSDP, wrap=nn.Linear), "FSDP: wrap must be a list of classes of modules, got"),
        (partial(FSDP, wrap=[nn.Linear(1, 1)]), "FSDP: wrap must be a list of classes of modules"),
        (partial(FSDP, reduce_dtype="bf16"), "FSDP: reduce_dtype must be a dtype"),
        (partial(DeepSpeed, stage=True), "DeepSpeed: stage must be 0, 1, 2 or 3, got True"),
        (partial(DeepSpeed, config="ds.json"), "DeepSpeed: config must be a dict"),
        (partial(XLA, spmd="no"), "XLA: spmd must be True or False"),
    ],
)
def test_arguments(action, message):
    with pytest.raises(ConfigurationError, match=re.escape(message).replace(r"\.\*", ".*")):
        action()


@pytest.mark.parametrize("filename", ["{epoch:03d}-{step}", "{val/loss:.2f}", "{{literal}}", "plain", "{vl:>8.1e}"])
def test_file_names_that_can_be_filled_in(filename):
    assert ModelCheckpoint(filename=filename).filename == filename


KINDS = {field.name: str(field.type) for field in fields(TrainerConfig)}
FLAGS = [
    ({name: wrong}, f"{name} must be", f"got {wrong!r}")
    for name, kind in KINDS.items()
    for wrong, right in ((True, "bool"), ("no", "Path"), (object, "object"))
    if right not in kind
]
OTHERS = {
    "min_steps": "say EarlyStopping(..., patience=n)",
    "min_epochs": "say EarlyStopping(..., patience=n)",
    "reload_dataloaders_every_n_epochs": "change what the data set yields",
    "sync_batchnorm": "convert_sync_batchnorm",
    "overfit_batches": "say limit_train_batches=",
}
FLAGS += [({name: 1}, f"Trainer({name}=...) is a flag of other trainers", advice) for name, advice in OTHERS.items()]


@pytest.mark.parametrize(
    ("flags", "message", "more"),
    [
        *FLAGS,
        ({"val_check_interval": 1.5}, "must be a number of steps, or a fraction", "got 1.5"),
        ({"val_check_interval": 0}, "val_check_interval must be", "got 0"),
        ({"max_steps": None}, "max_steps must be a whole number", "got None"),
        ({"num_sanity_val_steps": -2}, "num_sanity_val_steps must be", "got -2"),
        ({"max_epochs": 1.5}, "max_epochs must be a whole number from -1 on, or None", "got 1.5"),
        ({"max_steps": -5}, "max_steps must be a whole number", "got -5"),
        ({"gradient_clip_val": 0}, "gradient_clip_val must be a positive number, or None", "got 0"),
        ({"limit_predict_batches": -0.5}, "a number of batches, or a fraction", "got -0.5"),
        ({"limit_train_batches": 1.5}, "between 0.0 and 1.0, or None for all", "got 1.5"),
        ({"gpus": False}, "gpus=False together with", ""),
        ({"tpu_cores": torch.zeros(2)}, "tpu_cores=tensor", ""),
        ({"logger": "False"}, "pass objects of Logger or its subclasses.", ""),
        ({"logger": [3]}, "logger= takes a Logger or a list of such, got an object of int", ""),
        ({"callbacks": [KEEPER]}, "callbacks= takes a Callback", "the class ModelCheckpoint itself"),
        (
            {"enable_checkpointing": False, "callbacks": [KEEPER()]},
            "callbacks has a ModelCheckpoint",
            "",
        ),
    ],
)
def test_flags(flags, message, more):
    with pytest.raises(ConfigurationError) as info:
        trainer(**flags)
    assert message in str(info.value)
    assert more in str(info.value)


@pytest.mark.parametrize(
    ("flags", "data", "message"),
    [
        ({"val_check_interval": 9}, loader(8, 2), "an epoch has 4 steps: there would be no valid"),
        ({"val_check_interval": 0.5}, Streamed([1]), "has no length to take a part of"),
        ({"limit_train_batches": 0.5}, Streamed([1]), "has no length to take a part of"),
        ({"limit_train_batches": 0.1}, loader(8, 2), "=0.1 of 4 batches is no batch"),
    ],
)
def test_flags_that_do_not_fit_the_data(flags, data, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(**flags).fit(Logistic(), data, loader(4))


class Descends(Logistic):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize(
    ("ranks", "count", "batch", "steps"),
    [(1, 16, 2, 3), (2, 16, 2, 3), (2, 24, 2, 4), (1, 16, 1, 3)],
)
def test_accumulated_batches_are_one_large_batch(ranks, count, batch, steps):
    whole, parts = Descends(), Descends()
    trainer().fit(whole, loader(count, batch * steps * ranks))
    run = trainer(ranks, accumulate_grad_batches=steps)
    run.fit(parts, loader(count, batch))
    assert run.global_step == -(-count // (batch * steps * ranks))
    torch.testing.assert_close(parts.layer.weight, whole.layer.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "steps"), [(8, 2), (10, 3)])  # the last update is whole, or of fewer batches
def test_accumulation_without_a_length(count, steps):
    whole, streamed = Descends(), Descends()
    trainer().fit(whole, loader(count, 2 * steps))
    run = trainer(accumulate_grad_batches=steps)
    run.fit(streamed, Streamed([*loader(count, 2)]))
    assert run.global_step == -(-count // (2 * steps))
    torch.testing.assert_close(streamed.layer.weight, whole.layer.weight, rtol=1e-5, atol=1e-6)


def test_a_dev_run_touches_everything_and_leaves_nothing(tmp_path):
    callbacks = [ModelCheckpoint(dirpath=tmp_path), EarlyStopping("nothing")]
    run = trainer(fast_dev_run=3, callbacks=callbacks, logger=CSVLogger(tmp_path))
    run.fit(Logistic(), loader(40), loader(40))
    assert (run.global_step, run.current_epoch) == (3, 1)
    assert run.test(Logistic(), loader(40))[0]["val_count"] == 12
    assert list(tmp_path.iterdir()) == []


def test_max_steps_ends_in_the_middle_of_an_epoch():
    for max_epochs in (None, -1):
        run = trainer(max_epochs=max_epochs, max_steps=7)
        run.fit(Logistic(), loader(10, 2))
        assert (run.global_step, run.current_epoch) == (7, 2)


@pytest.mark.parametrize(
    ("make", "flag", "hint"),
    [
        (Trainer, "max_epoch", r"did you mean 'max_epochs'\?"),
        (Trainer, "unknwon", r"argument 'unknwon'$"),
        (Runner, "device", r"did you mean 'devices'\?"),
        (Runner, "min_epochs", r"argument 'min_epochs'$"),
    ],
)
def test_a_hint_names_a_flag_that_is_there(make, flag, hint):
    with pytest.raises(TypeError, match=hint):
        make(**{flag: 1})


def test_long_values_are_said_in_short():
    text = re.escape("f: a must be positive and whole, got [0, 1, 2, 3, 4, 5, ...]")
    with pytest.raises(ConfigurationError, match=text):
        check("f", {"a": list(range(1000))}, {"a": POSITIVE})
    with pytest.raises(ConfigurationError, match="got <class 'int'>"):
        check("f", {"a": int}, {"a": FLAG})


def clip(runner, net, norm_type):
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runner.clip_gradients(model, optimizer, max_norm=1.0, norm_type=norm_type)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runner, net: runner.setup(net, move_to_device="no"), "setup: move_to_device must"),
        (
            lambda runner, net: runner.setup_dataloaders(loader(4), train="False"),
            "setup_dataloaders: train must be True",
        ),
        (
            lambda runner, net: runner.setup_dataloaders(loader(4), replace_sampler="no"),
            "replace_sampler must be",
        ),
        (
            lambda runner, net: runner.no_backward_sync(runner.setup(net), enabled="no"),
            "enabled must be True or False",
        ),
        (lambda runner, net: runner.load(5), "load: path must be a path"),
        (lambda runner, net: clip(runner, net, "two"), "norm_type must be a number, got 'two'"),
        (lambda runner, net: runner.seed_everything(1, workers="no"), "workers must be True or"),
        *[
            (lambda runner, net, seed=seed: runner.seed_everything(seed), "seed must be from 0 to")
            for seed in (-1, 1.5, 2**32, True)
        ],
    ],
)
def test_flags_of_the_runner(call, message):
    with pytest.raises(ConfigurationError, match=message):
        Runner(strategy="single").launch(call, nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((3,), {}, "launch takes a function fn(runner, ...), got an object of int"),
        ((lambda: 1,), {}, "launch calls <lambda>(runner, ...)"),
        ((clip, nn.Linear(1, 1)), {}, "(runner, net, norm_type): missing a required argument: 'no"),
        ((clip, 1, 2), {"other": 3}, "keyword argument 'other'\nDo:     def clip(runner, ...)"),
    ],
)
def test_what_can_not_be_launched(args, kwargs, message):
    with pytest.raises(InputTypeError, match=re.escape(message)):
        Runner(strategy="single").launch(*args, **kwargs)

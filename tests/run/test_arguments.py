"""An argument that can't be meant is refused where it is passed, with what to pass."""

from __future__ import annotations

import re
import reprlib
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
from distmetrics.strategies import FSDP, XLA, DeepSpeed
from distmetrics.train import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    seed_everything,
)
from tests.run.models import Logistic, Streamed, loader
from tests.run.threads import trainer

NAN = float("nan")
STOP, SEED = partial(EarlyStopping, "loss"), partial(seed_everything, 1)


def call(method, **options):
    return getattr(trainer(), method)(Logistic(), loader(4), **options)


FIT, VALIDATE, PREDICT = (partial(call, method) for method in ("fit", "validate", "predict"))
WRONG = {  # values of arguments that no one can mean
    ModelCheckpoint: {
        "filename": [5, "", "{epoch", "{}", "{0}", "{vl:d}", "{vl.item}"],
        "dirpath": [5],
        "save_last": ["link"],
        "save_top_k": [-2],
        "monitor": [3],
        "every_n_epochs": [0, True, None, np.int64(2), torch.tensor(2)],
        "every_n_train_steps": [0.5],
    },
    STOP: {"min_delta": ["a", None, NAN, True], "patience": [True], "mode": ["best"]},
    EarlyStopping: {"monitor": [None]},
    LearningRateMonitor: {"logging_interval": ["batch"]},
    ModelSummary: {"max_depth": ["2"]},
    SEED: {"workers": ["no"]},
    FIT: {"ckpt_path": [5, ""], "weights_only": ["no"]},
    VALIDATE: {"ckpt_path": [5, ""], "verbose": ["no"]},
    PREDICT: {"ckpt_path": [5, ""], "return_predictions": ["no"]},
    FSDP: {
        "reshard": ["False"],
        "cpu_offload": ["no"],
        "replicas": [True],
        "wrap": [nn.Linear, [nn.Linear(1, 1)]],
        "reduce_dtype": ["bf16"],
    },
    DeepSpeed: {"stage": [True, 4], "config": ["ds.json"]},
    XLA: {"spmd": ["no"]},
}
CASES = [(kind, name, wrong) for kind, row in WRONG.items() for name in row for wrong in row[name]]


@pytest.mark.parametrize(("kind", "name", "wrong"), CASES)
def test_arguments(kind, name, wrong):
    said = "cannot be filled in" if name == "filename" and wrong not in (5, "") else "must be"
    with pytest.raises(ConfigurationError, match=rf"{name}\b.*{said}") as info:
        kind(**{name: wrong})
    assert reprlib.repr(wrong) in str(info.value)


@pytest.mark.parametrize("filename", ["{epoch:03d}-{step}", "{val/loss:.2f}", "{{literal}}", "{vl:>8.1e}"])
def test_file_names_that_can_be_filled_in(filename):
    assert ModelCheckpoint(filename=filename).filename == filename


KINDS = {field.name: str(field.type) for field in fields(TrainerConfig)}
FLAGS = [
    ({name: wrong}, f"{name} must be.*got {wrong!r}")
    for name, kind in KINDS.items()
    for wrong, right in ((True, "bool"), ("no", "Path"), (object, "object"))
    if right not in kind
]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *FLAGS,
        ({"max_steps": None}, "max_steps must be a whole number.*got None"),
        ({"max_epochs": 1.5}, "max_epochs must be a whole number from -1 on, or None, got 1.5"),
        ({"gpus": False}, "gpus=False together with"),
        ({"enable_checkpointing": False, "callbacks": [ModelCheckpoint()]}, "callbacks has a ModelCh"),
    ],
)
def test_flags(flags, message):
    with pytest.raises(ConfigurationError, match=message):
        trainer(**flags)


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
    ("kind", "ranks", "count", "steps"), [(iter, 1, 8, 2), (iter, 1, 10, 3), (None, 1, 16, 3), (None, 2, 16, 3)]
)
def test_accumulated_batches_are_one_large_batch(kind, ranks, count, steps):
    """The last update may be whole or of fewer batches, and a stream has no length."""
    whole, parts = Descends(), Descends()
    trainer().fit(whole, loader(count, 2 * steps * ranks))
    run = trainer(ranks, accumulate_grad_batches=steps)
    run.fit(parts, Streamed([*loader(count, 2)]) if kind else loader(count, 2))
    assert run.global_step == -(-count // (2 * steps * ranks))
    torch.testing.assert_close(parts.layer.weight, whole.layer.weight, rtol=1e-5, atol=1e-6)


def clip(runner, net, norm_type):
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runner.clip_gradients(model, optimizer, max_norm=1.0, norm_type=norm_type)


CALLS = {
    "setup: move_to_device must": lambda runner, net: runner.setup(net, move_to_device="no"),
    "setup_dataloaders: train must be True": lambda runner, _: runner.setup_dataloaders(loader(4), train="False"),
    "replace_sampler must be": lambda runner, _: runner.setup_dataloaders(loader(4), replace_sampler="no"),
    "enabled must be True or": lambda runner, net: runner.no_backward_sync(runner.setup(net), enabled="no"),
    "load: path must be a path": lambda runner, _: runner.load(5),
    "norm_type must be a number, got 'two'": lambda runner, net: clip(runner, net, "two"),
    "workers must be True or": lambda runner, _: runner.seed_everything(1, workers="no"),
    "seed must be from 0 to.*got 1.5": lambda runner, _: runner.seed_everything(1.5),
    "seed must be from 0 to.*got 42949": lambda runner, _: runner.seed_everything(2**32),
}


def test_arguments_of_the_runner():
    runner = Runner(strategy="single")
    for message, wrong in CALLS.items():
        with pytest.raises(ConfigurationError, match=message):
            runner.launch(wrong, nn.Linear(1, 1))
    for args, message in {
        (3,): "launch takes a function fn(runner, ...), got an object of int",
        (lambda: 1,): "launch calls <lambda>(runner, ...)",
        (clip, 1): "(runner, net, norm_type): missing a required argument: 'no",
        (clip, 1, 2, 3): "Do:     def clip(runner, ...)",
    }.items():
        with pytest.raises(InputTypeError, match=re.escape(message)):
            runner.launch(*args)


def test_long_values_are_said_in_short():
    text = re.escape("f: a must be positive and whole, got [0, 1, 2, 3, 4, 5, ...]")
    with pytest.raises(ConfigurationError, match=text):
        check("f", {"a": list(range(1000))}, {"a": POSITIVE})
    with pytest.raises(ConfigurationError, match="got <class 'int'>"):
        check("f", {"a": int}, {"a": FLAG})

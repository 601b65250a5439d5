"""An argument that can't be meant is refused where it is passed: an error that names it, and says what to pass."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from distmetrics import Runner
from distmetrics.arguments import FLAG, POSITIVE, check
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.strategies.deepspeed import DeepSpeed
from distmetrics.strategies.fsdp import FSDP
from distmetrics.strategies.xla import XLA
from distmetrics.train import (
    EarlyStopping,
    ModelCheckpoint,
    ModelSummary,
    Trainer,
    seed_everything,
)
from tests.train.models import Logistic, loader


def trainer(**flags):
    return Trainer(**({"strategy": "single", "accelerator": "cpu", "max_epochs": 1} | flags))


def refused(action, *parts):
    with pytest.raises(ConfigurationError) as info:
        action()
    for part in parts:
        assert part in str(info.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filename": 5}, "ModelCheckpoint: filename must be a text"),
        ({"filename": ""}, "filename must be a text"),
        ({"filename": "{epoch"}, "filename='{epoch' cannot be filled in: expected '}'"),
        ({"filename": "{}"}, "filename='{}' cannot be filled in"),
        ({"filename": "{0}"}, "filename='{0}' cannot be filled in"),
        ({"filename": "{vl:d}"}, "filename='{vl:d}' cannot be filled in: Unknown format code 'd'"),
        ({"filename": "{vl.item}"}, "cannot be filled in"),
        ({"dirpath": 5}, "dirpath must be a path"),
        ({"save_last": "link"}, "save_last must be True or False, got 'link'"),
        ({"every_n_epochs": True}, "every_n_epochs must be positive and whole, got True"),
        ({"every_n_epochs": None}, "every_n_epochs must be positive and whole, got None"),
        ({"every_n_train_steps": 0.5}, "every_n_train_steps must be positive and whole, or None, got 0.5"),
        ({"monitor": 3}, "monitor must be"),
        ({"every_n_epochs": np.int64(2)}, "every_n_epochs must be positive and whole, got"),
        ({"every_n_epochs": torch.tensor(2)}, "got tensor(2)"),
    ],
)
def test_model_checkpoint(options, message):
    refused(lambda: ModelCheckpoint(**options), message)


@pytest.mark.parametrize("filename", ["{epoch:03d}-{step}", "{val/loss:.2f}", "{{literal}}", "plain", "{vl:>8.1e}"])
def test_file_names_that_can_be_filled_in(filename):
    assert ModelCheckpoint(filename=filename).filename == filename


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_delta": "a"}, "EarlyStopping: min_delta must be a number, got 'a'"),
        ({"min_delta": None}, "min_delta must be a number, got None"),
        ({"min_delta": float("nan")}, "min_delta must be a number, got nan"),
        ({"min_delta": True}, "min_delta must be a number, got True"),
        ({"monitor": None}, "monitor must be the name of a logged value, got None"),
        ({"patience": True}, "patience must be a whole number from 0 on, got True"),
    ],
)
def test_early_stopping(options, message):
    refused(lambda: EarlyStopping(**({"monitor": "loss"} | options)), message)


@pytest.mark.parametrize("path", [5, True, ""])
@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_the_path_of_a_checkpoint(call, path):
    refused(
        lambda: getattr(trainer(), call)(Logistic(), loader(4), ckpt_path=path),
        f"Trainer: ckpt_path must be the path of a checkpoint, 'best' or 'last', or None, got {path!r}",
    )


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: trainer(default_root_dir=5), "default_root_dir must be a path"),
        (lambda: ModelSummary(max_depth="2"), "max_depth must be a whole number from 0 on, got '2'"),
        (lambda: trainer(devices=0), "devices must be a positive number"),
        (lambda: trainer(devices="0"), "devices must be a positive number"),
        (lambda: trainer(devices=True), "devices must be a positive number"),
        (lambda: trainer(gpus=False), "gpus=False together with"),
        (lambda: trainer(tpu_cores=torch.zeros(2)), "tpu_cores=tensor"),
        (lambda: trainer(devices=2.0), "devices must be a positive number"),
        (lambda: seed_everything(1, workers="no"), "seed_everything: workers must be True or False"),
        (
            lambda: trainer().validate(Logistic(), loader(4), verbose="no"),
            "Trainer: verbose must be True or False, or None",
        ),
        (lambda: trainer(logger="False"), "pass objects of Logger or its subclasses."),
        (lambda: trainer().predict(Logistic(), loader(4), return_predictions="no"), "must be True or False"),
        (lambda: trainer().fit(Logistic(), loader(4), weights_only="no"), "must be True or False"),
    ],
)
def test_others(action, message):
    refused(action, message)


FLAGS = ("use_distributed_sampler", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")


@pytest.mark.parametrize("flag", [*FLAGS, "detect_anomaly", "terminate_on_nan", "fast_dev_run", "deterministic"])
@pytest.mark.parametrize("text", ["False", "no", ""])
def test_text_is_neither_yes_nor_no(flag, text):
    refused(lambda: trainer(**{flag: text}), f"Trainer: {flag} must be True", f"got {text!r}")


@pytest.mark.parametrize(
    "flag",
    [
        "max_epochs",
        "max_steps",
        "accumulate_grad_batches",
        "check_val_every_n_epoch",
        "val_check_interval",
        "num_sanity_val_steps",
        "limit_train_batches",
        "limit_val_batches",
        "gradient_clip_val",
        "log_every_n_steps",
        "num_nodes",
        "devices",
        "seed",
    ],
)
def test_true_is_no_number(flag):
    refused(lambda: trainer(**{flag: True}), f"{flag} must be", "got True")


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("min_steps", "say EarlyStopping(..., patience=n)"),
        ("min_epochs", "say EarlyStopping(..., patience=n)"),
        ("reload_dataloaders_every_n_epochs", "change what the data set yields"),
        ("sync_batchnorm", "convert_sync_batchnorm"),
        ("overfit_batches", "say limit_train_batches="),
    ],
)
def test_flags_of_other_trainers(flag, advice):
    refused(lambda: Trainer(**{flag: 1}), f"Trainer({flag}=...) is a flag of other trainers", advice)


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
    with pytest.raises(
        ConfigurationError, match=re.escape("f: a must be positive and whole, got [0, 1, 2, 3, 4, 5, ...]")
    ):
        check("f", {"a": list(range(1000))}, {"a": POSITIVE})
    with pytest.raises(ConfigurationError, match="got <class 'int'>"):
        check("f", {"a": int}, {"a": FLAG})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FSDP(reshard="False"), "FSDP: reshard must be True or False"),
        (lambda: FSDP(cpu_offload="no"), "FSDP: cpu_offload must be True or False"),
        (lambda: FSDP(replicas=True), "FSDP: replicas must be positive and whole, got True"),
        (lambda: FSDP(wrap=nn.Linear), "FSDP: wrap must be a list of classes of modules, got <class 'torch."),
        (lambda: FSDP(wrap=[nn.Linear(1, 1)]), "FSDP: wrap must be a list of classes of modules"),
        (lambda: FSDP(reduce_dtype="bf16"), "FSDP: reduce_dtype must be a dtype"),
        (lambda: DeepSpeed(stage=True), "DeepSpeed: stage must be 0, 1, 2 or 3, got True"),
        (lambda: DeepSpeed(config="ds.json"), "DeepSpeed: config must be a dict"),
        (lambda: XLA(spmd="no"), "XLA: spmd must be True or False"),
    ],
)
def test_options_of_strategies(make, message):
    refused(make, message)


def clip(runner, net, norm_type):
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runner.clip_gradients(model, optimizer, max_norm=1.0, norm_type=norm_type)


def test_the_largest_gradient_is_a_norm_too():
    Runner(strategy="single").launch(clip, nn.Linear(1, 1), float("inf"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runner, net: runner.setup(net, move_to_device="no"), "setup: move_to_device must be True or False"),
        (
            lambda runner, net: runner.setup_dataloaders(loader(4), train="False"),
            "setup_dataloaders: train must be True",
        ),
        (lambda runner, net: runner.setup_dataloaders(loader(4), replace_sampler="no"), "replace_sampler must be"),
        (lambda runner, net: runner.no_backward_sync(runner.setup(net), enabled="no"), "enabled must be True or False"),
        (lambda runner, net: runner.load(5), "load: path must be a path"),
        (lambda runner, net: clip(runner, net, "two"), "clip_gradients: norm_type must be a number, got 'two'"),
        (lambda runner, net: runner.seed_everything(1, workers="no"), "workers must be True or False"),
    ],
)
def test_flags_of_the_runner(call, message):
    refused(lambda: Runner(strategy="single").launch(call, nn.Linear(1, 1)), message)
    refused(lambda: Runner(seed="1"), "Runner: seed must be from 0 to 2**32 - 1, or None, got '1'")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((3,), {}, "launch takes a function fn(runner, ...), got an object of int"),
        ((lambda: 1,), {}, "launch calls <lambda>(runner, ...)"),
        ((clip, nn.Linear(1, 1)), {}, "clip takes (runner, net, norm_type): missing a required argument: 'norm_type'"),
        ((clip, 1, 2), {"other": 3}, "got an unexpected keyword argument 'other'\nDo:     def clip(runner, ...)"),
    ],
)
def test_what_can_not_be_launched(args, kwargs, message):
    with pytest.raises(InputTypeError, match=re.escape(message)):
        Runner(strategy="single").launch(*args, **kwargs)

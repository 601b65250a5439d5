"""What ``Trainer(strategy=...)`` means, and what it can't mean."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from distmetrics import strategies
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.strategies import DDP, DDPSpawn, Single, Strategy, available, register, registry
from distmetrics.strategies.registry import resolve

EXTRAS = ("deepspeed", "xla", "tpu_spawn")  # need packages that are not installed everywhere


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_names():
    made = [resolve(name, devices=1, accelerator="cpu") for name in available() if name not in ("auto", *EXTRAS)]
    assert all(isinstance(strategy, Strategy) for strategy in made)
    assert {"ddp", "dp", "ddp2", "ddp_fork", "ddp_sharded", "ddp_sharded_spawn", "fsdp"} <= set(available())
    assert type(resolve("single", accelerator="cpu")) is Single
    assert type(resolve("ddp", devices=2, accelerator="cpu")) is DDP
    assert type(resolve("ddp_spawn", devices=2, accelerator="cpu")) is DDPSpawn


def test_what_users_import_is_in_the_package():
    homes = {getattr(strategies, name).__module__ for name in strategies.__all__}
    assert {home.split(".")[1] for home in homes} == {"data", "strategies"}
    with pytest.raises(AttributeError, match="no attribute 'FSPD'"):
        strategies.FSPD  # noqa: B018


def test_auto_is_one_process_or_spawned_ones():
    assert resolve("auto", accelerator="cpu").name == "single"
    assert resolve("auto", devices="auto", accelerator="cpu").name == "single"
    assert resolve("auto", devices=3, accelerator="cpu").name == "ddp_spawn"


def test_auto_joins_under_a_launcher(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "n"}.items():
        monkeypatch.setenv(name, value)
    strategy = resolve("auto", devices="auto", accelerator="cpu")
    assert (strategy.name, strategy.devices, strategy.world_size, strategy.local_rank) == ("ddp", 3, 6, 1)


def test_an_instance_keeps_its_options():
    strategy = DDP(find_unused_parameters=True)
    assert resolve(strategy, devices=2, accelerator="cpu") is strategy
    assert (strategy.options, strategy.devices) == ({"find_unused_parameters": True}, 2)


def test_a_registered_strategy_has_a_name(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    class Mine(Strategy):
        name = "mine"

    register("mine", Mine)
    assert type(resolve("mine", accelerator="cpu")) is Mine


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"strategy": "dddp"}, "no strategy 'dddp'; there are auto, .*\nLikely: 'ddp' or 'ddp2'"),
        ({"strategy": "nothing like it"}, "no strategy 'nothing like it'"),
        ({"strategy": 3}, "must be a name or a Strategy, got an object of int"),
        ({"strategy": torch.nn.Linear}, "must be a name or a Strategy, got the class Linear itself"),
        (
            {"strategy": "dp", "num_nodes": 2},
            "'dp': num_nodes=2, and this process is one of 1, on 1 machines\nDo: .* 'ddp2' in the place of 'dp'",
        ),
        (
            {"strategy": "ddp_fork", "num_nodes": 2},
            "'ddp_fork': num_nodes=2, .*\nDo: .*strategy='ddp'",
        ),
        ({"strategy": "ddp", "num_nodes": 2}, "num_nodes=2, and this process is one of .*\n.*torchrun --nnodes=2"),
        ({"strategy": "ddp", "num_nodes": 0}, "num_nodes must be positive and whole, got 0"),
        ({"strategy": "single", "num_nodes": 2}, "'single': num_nodes=2"),
        ({"strategy": "fsdp", "precision": 16}, "no scaled loss .*\nDo: .*bf16-mixed"),
        ({"strategy": "ddp", "precision": 8}, "precision must be 64, 32, 16, 'bf16', or one of .*, got 8"),
        ({"strategy": "ddp", "plugins": ["slurm"]}, "plugins must be one cluster environment, .*slurm"),
        ({"strategy": "single", "devices": 2}, "runs on one device, and devices=2"),
        ({"strategy": "ddp", "devices": 0}, "positive number, -1, 'auto', or a list .*, got 0"),
        ({"strategy": "ddp", "devices": "two"}, "got 'two'"),
        ({"strategy": "ddp", "devices": [0, 0]}, "each device's number once, got \\[0, 0\\]"),
        ({"strategy": "ddp", "devices": "1, 4"}, "the GPUs that can be used are \\[\\]\nDo: .* devices=2"),
        ({"strategy": "ddp", "devices": True}, "got True"),
        ({"strategy": "ddp", "accelerator": "tpu"}, "used by strategy='xla' alone"),
        ({"strategy": "ddp", "accelerator": "ipu"}, "'auto' or 'cpu' or 'gpu' or 'cuda' or 'tpu', got 'ipu'"),
    ],
)
def test_flags_that_make_no_sense(flags, message):
    with pytest.raises(ConfigurationError, match=message):
        resolve(**{"accelerator": "cpu", **flags})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigurationError, match=r"accelerator=.gpu.: there is none here"):
        resolve("auto", accelerator="gpu")


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_the_attribute_that_can_not_be_sent_is_named():
    def work(module):
        raise AssertionError("never called")

    strategy = resolve("ddp_spawn", devices=2, accelerator="cpu")
    with pytest.raises(InputTypeError, match=r"module\.inner cannot be sent .*'ddp_spawn'\n  module\.inner is a lock"):
        strategy.launch(work, Holder(threading.Lock()))

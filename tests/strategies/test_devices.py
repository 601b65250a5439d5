"""What ``devices``, ``accelerator`` and their shorthands mean."""

from __future__ import annotations

import pytest
import torch

from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment
from distmetrics.strategies.devices import device_list, one_flag
from distmetrics.strategies.registry import resolve
from distmetrics.train import Trainer

LAUNCHED = Environment(launcher="torchrun", rank=0, world_size=6, local_rank=0, local_world_size=3)


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (2, [0, 1]),
        ("2", [0, 1]),
        ([1, 3], [1, 3]),
        ((1,), [1]),
        ("1, 3", [1, 3]),
        ("3,", [3]),
        (-1, [0, 1, 2, 3]),
        ("-1", [0, 1, 2, 3]),
        ("auto", [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_gpus(gpus, devices, found):
    assert device_list(devices, "cuda", None) == found


@pytest.mark.parametrize(("devices", "found"), [(2, 2), (-1, 1), ("auto", 1), (None, 1), ("3", 3)])
def test_processes_on_cpu(devices, found):
    assert device_list(devices, "cpu", None) == list(range(found))


def test_auto_is_what_the_launcher_started(gpus):
    assert device_list("auto", "cuda", LAUNCHED) == [0, 1, 2]
    assert device_list(None, "cpu", LAUNCHED) == [0, 1, 2]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (5, "devices=5, but the GPUs that can be used are .0, 1, 2, 3."),
        ([0, 7], "are .0, 1, 2, 3."),
        ("4, 5", "devices='4, 5', but the GPUs"),
        ([-2], "each device's number once"),
        (1.5, "got 1.5"),
        ([True], "got \\[True\\]"),
    ],
)
def test_devices_that_are_not_there(gpus, devices, message):
    with pytest.raises(ConfigurationError, match=message):
        device_list(devices, "cuda", None)


def test_a_device_of_a_rank(gpus, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    strategy = resolve("ddp", devices="1, 3", accelerator="gpu")
    assert (strategy.device, strategy.backend, strategy.devices) == (torch.device("cuda", 1), "nccl", 2)


def test_shorthands(gpus):
    assert one_flag("auto", "auto", gpus=2) == (2, "gpu")
    assert one_flag(None, "cuda", gpus="0, 1") == ("0, 1", "gpu")
    assert one_flag("auto", "auto", tpu_cores=8) == (8, "tpu")
    assert one_flag(3, "cpu", gpus=0) == (3, "cpu")
    assert Trainer(gpus=[1]).strategy.device == torch.device("cuda", 1)
    for flags in ({"gpus": 2, "tpu_cores": 1}, {"gpus": 2, "tpu_cores": None}):
        with pytest.raises(ConfigurationError, match=r"gpus=2.*together with devices=3"):
            one_flag(3, "auto", **flags)

"""What the flags of a strategy mean, and what they can't mean."""

from __future__ import annotations

import pytest
import torch

from distmetrics import strategies
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment
from distmetrics.strategies import DDP, available
from distmetrics.strategies.devices import device_list, one_flag
from distmetrics.strategies.registry import resolve
from tests.strategies.common import Cluster

LAUNCHED = Environment(launcher="torchrun", rank=0, world_size=6, local_world_size=3)
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "n"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("devices", "on_gpus", "on_cpu"),
    [
        ("3", [0, 1, 2], [0, 1, 2]),
        (-1, [0, 1, 2, 3], [0]),
        ("-1", [0, 1, 2, 3], [0]),
        ("auto", [0, 1, 2, 3], [0]),
        (None, [0, 1, 2, 3], [0]),
        ([1, 3], [1, 3], None),
        ((1,), [1], None),
        ("1, 3", [1, 3], None),
        ("3,", [3], None),
        (5, "devices=5, but the GPUs that can be used are .0, 1, 2, 3.", None),
        ([0, 7], "are .0, 1, 2, 3.", "the GPUs that can be used are .].*Do: .* devices=2"),
        ([0, 0], "each device's number once, got .0, 0.", None),
        (0, "positive number, -1, 'auto', or a list .*, got 0", None),
        *[(wrong, f"got .?{wrong}", None) for wrong in (1.5, True, "two")],
        *[([wrong], f"got .{wrong}", None) for wrong in (-2, True)],
    ],
)
def test_devices(gpus, devices, on_gpus, on_cpu):
    for kind, expected in (("cuda", on_gpus), ("cpu", on_cpu)):
        if isinstance(expected, str):
            with pytest.raises(ConfigurationError, match=f"(?s){expected}"):
                device_list(devices, kind, None)
        elif expected is not None:
            assert device_list(devices, kind, None) == expected
    if devices in ("auto", None):  # what the launcher has started
        assert device_list(devices, "cuda", LAUNCHED) == [0, 1, 2]


def test_shorthands_and_the_device_of_a_rank(gpus):
    assert one_flag("auto", "auto", gpus=2) == (2, "gpu")
    assert one_flag(None, "cuda", gpus="0, 1") == ("0, 1", "gpu")
    assert one_flag("auto", "auto", tpu_cores=8) == (8, "tpu")
    assert one_flag(3, "cpu", gpus=0) == (3, "cpu")
    for flags in ({"gpus": 2, "tpu_cores": 1}, {"gpus": 2}):
        with pytest.raises(ConfigurationError, match=r"gpus=2.*together with devices=3"):
            one_flag(3, "auto", **flags)
    made = resolve("ddp", devices="auto", gpus="1, 3")
    assert (made.device, made.backend, made.devices) == (torch.device("cuda", 1), "nccl", 2)


def test_names_classes_and_objects(monkeypatch):
    extras = ("auto", "deepspeed", "xla", "tpu_spawn")  # need packages that may not be installed
    for name in set(available()).difference(extras):
        assert resolve(name, accelerator="cpu").name == name.replace("notebook", "fork")
    made = DDP(bucket_cap_mb=1)
    assert resolve(made, devices=2, accelerator="cpu") is made
    assert (made.options, made.devices) == ({"bucket_cap_mb": 1}, 2)
    with pytest.raises(AttributeError, match="no attribute 'FSPD'"):
        strategies.FSPD  # noqa: B018
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    made = resolve("auto", devices="auto", accelerator="cpu")
    assert (made.name, made.devices, made.world_size, made.local_rank) == ("ddp", 3, 6, 1)


CLUSTER = {"strategy": "ddp", "devices": 2}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"strategy": "dddp"}, "no strategy 'dddp'; there are auto, .*Likely: 'ddp' or 'ddp2'"),
        ({"strategy": 3}, "must be a name or a Strategy, got an object of int"),
        ({"strategy": torch.nn.Linear}, "must be a name or a Strategy, got the class Linear"),
        ({"strategy": "dp", "num_nodes": 2}, "'dp': num_nodes=2, .*Do: .* 'ddp2' in the place of"),
        ({"strategy": "ddp_fork", "num_nodes": 2}, "'ddp_fork': num_nodes=2, .*Do: .*='ddp'"),
        ({"strategy": "ddp", "num_nodes": 0}, "num_nodes must be positive and whole, got 0"),
        (
            CLUSTER | {"num_nodes": 3, "plugins": [Cluster(0, 1)]},
            "num_nodes=3, and this process is one of 2, on 1 mach",
        ),
        (CLUSTER | {"plugins": [Cluster(0, 1)] * 2}, "plugins must be one cluster environment"),
        ({"strategy": "fsdp", "precision": 16}, "no scaled loss .*Do: .*bf16-mixed"),
        ({"strategy": "ddp", "precision": 8}, "precision must be 64, 32, 16, .*, got 8"),
        ({"strategy": "single", "devices": 2}, "runs on one device, and devices=2"),
        ({"strategy": "ddp", "accelerator": "tpu"}, "used by strategy='xla' alone"),
        ({"strategy": "ddp", "accelerator": "dp"}, "'auto' or 'cpu' or 'gpu' .* got 'dp'"),
    ],
)
def test_flags_that_make_no_sense(flags, message):
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        resolve(**{"accelerator": "cpu", **flags})

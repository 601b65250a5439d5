"""What the flags of a strategy mean, and what they can't mean; what numbers a model is computed in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics import strategies
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment
from distmetrics.strategies import DDP, available
from distmetrics.strategies.devices import device_list, one_flag
from distmetrics.strategies.precision import Precision
from distmetrics.strategies.registry import resolve
from tests.run.models import Logistic
from tests.strategies.common import Cluster, train

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


NAMES = {"64-true": (64, "64", "64-true"), "bf16-true": ("bf16-true",), "32-true": (32, None)}
NAMES |= {"bf16-mixed": ("bf16", "bf16-mixed"), "16-mixed": (16, "16-mixed")}
WEIGHTS = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


class Overflows(Logistic):
    """Notes in which dtypes a step finds itself; its first loss is infinite."""

    def training_step(self, batch, batch_idx):
        made, logits = torch.zeros(1), self(batch[0])
        self.dtypes = [each.dtype for each in (batch[0], self.layer.weight, made, logits)]
        loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), batch[1].float())
        return loss * (float("inf") if batch_idx == 0 else 1)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_sees(name):
    assert {Precision(flag).name for flag in NAMES[name]} == {name}
    module, _ = train("single", 1, module=Overflows(), precision=NAMES[name][0], epochs=1)
    *own, logits = module.dtypes
    assert own == [WEIGHTS.get(name, torch.float32)] * 3
    assert logits == {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(name, own[0])
    assert torch.get_default_dtype() == torch.float32
    if name == "16-mixed":  # a step that overflows is left out
        assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


class Own(torch.optim.SGD):
    def step(self, loss_of=None):
        return super().step(loss_of)


def test_float16_scales_the_loss_and_keeps_the_scale():
    module, trainer = train("single", 1, precision=16)
    expected, _ = train("single", 1)
    weights = [[*each.parameters()] for each in (module, expected)]
    torch.testing.assert_close(*weights, rtol=0, atol=2e-2)
    state = trainer.strategy.precision.state()
    assert state["grad_scaler"]["scale"] > 1
    other = resolve("single", accelerator="cpu", precision=16).precision
    other.load_state({"grad_scaler": {**state["grad_scaler"], "scale": 8.0}})
    assert other.state()["grad_scaler"]["scale"] == 8.0
    optimizer = Own([nn.Parameter(torch.ones(1))])  # any optimizer is given a closure
    assert Precision(32).step(optimizer, lambda: 3.0) == 3.0
    with pytest.raises(ConfigurationError, match=r"precision=16 scales the loss(.|\n)*'bf16'"):
        Precision(16).step(optimizer, lambda: 3.0)

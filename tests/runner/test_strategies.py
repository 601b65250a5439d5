"""The loop of one process under every strategy that starts its own ranks."""

from __future__ import annotations

import pytest
import torch

from distmetrics import ConfigurationError, Runner
from distmetrics.strategies.fsdp import FSDPSpawn
from tests.runner import loops
from tests.runner.loops import Fit, plain
from tests.runner.test_runner import assert_same
from tests.strategies.common import in_ranks
from tests.train.test_ddp_spawn import no_process_is_left

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
__all__ = ["no_process_is_left"]


def flags(strategy, devices=2, **more):
    return {"strategy": strategy, "devices": devices, "accelerator": "cpu", **more}


def test_replicas():
    for options in ({}, {"clip": 0.3}):
        assert_same(Fit(**flags("dp", devices=3)).run(**options), plain(**options))


def two_machines():
    fit = Fit(**flags("ddp2"))
    assert fit.launch(lambda runner: runner.local_rank) == 0  # of one process on each
    return fit.run(clip=0.3)


def test_replicas_on_two_machines():
    for found in in_ranks(2, two_machines):
        assert_same(found, plain(clip=0.3))


def test_sharded_over_one_rank():
    assert_same(Fit(**flags("fsdp_spawn", devices=1)).run(), plain())


@pytest.mark.parametrize("strategy", ["ddp_sharded_spawn", "fsdp_spawn", FSDPSpawn(wrap=[torch.nn.Linear])])
def test_sharded(strategy, tmp_path):
    found = Fit(**flags(strategy)).run(clip=0.3, steps=2)
    assert_same(found, plain(clip=0.3))
    weights, state, again, home = Runner(**flags(strategy)).launch(loops.checkpoint, tmp_path / "saved.pt")
    expected_weights, expected_state, expected_again, _ = Runner(strategy="single", accelerator="cpu").launch(
        loops.checkpoint, tmp_path / "single.pt"
    )
    for name, value in expected_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(home.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    for index, entry in expected_state["state"].items():
        for key, value in entry.items():
            torch.testing.assert_close(state["state"][index][key], value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(again, expected_again, rtol=1e-6, atol=1e-7)


def test_two_sharded_models():
    expected = Runner(strategy="single", accelerator="cpu").launch(loops.two_models)
    for found, wanted in zip(Runner(**flags("fsdp_spawn")).launch(loops.two_models), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), (64, 1e-6)])
def test_precision(precision, tolerance):
    expected = plain()[1]
    for more in (flags("single", devices=1), flags("ddp_spawn")):
        weights = Fit(**more, precision=precision).run()[1]
        for name, value in expected.items():
            torch.testing.assert_close(weights[name].float(), value, rtol=tolerance, atol=tolerance)
            assert weights[name].dtype == (torch.float64 if precision == 64 else torch.float32)


def test_a_plain_word_for_several_devices():
    assert Runner(tpu_cores=None, gpus=None, accelerator="cpu", num_nodes=1, precision=32).world_size == 1
    with pytest.raises(ConfigurationError):
        Runner(accelerator="cpu", precision="33")
    with pytest.raises(ConfigurationError):
        Runner(accelerator="cpu", num_nodes=0)
    with pytest.raises(ConfigurationError):
        Runner(accelerator="cpu", plugins=[3])

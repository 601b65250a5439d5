"""A loop of one's own under DeepSpeed. Skipped where it is not installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from distmetrics import ConfigurationError, Runner
from distmetrics.strategies.deepspeed import DeepSpeed
from tests.runner import loops
from tests.runner.loops import Fit, plain
from tests.runner.test_runner import assert_same
from tests.strategies.common import in_ranks

INSTALLED = importlib.util.find_spec("deepspeed") is not None


def all_in_one(stage, folder):
    flags = {"strategy": DeepSpeed(stage=stage), "devices": 2, "accelerator": "cpu"}
    fitted = Fit(**flags).run(clip=0.3, steps=2)
    weights, state, answer, home = Runner(**flags).launch(loops.checkpoint, folder)
    with pytest.raises(ConfigurationError, match="steps without a closure"):
        Runner(**flags).launch(loops.by_closure)
    return fitted, weights, state, answer, home.state_dict()


@pytest.mark.skipif(not INSTALLED, reason="deepspeed is not installed: its stages are not run")
@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_stages(stage, tmp_path):
    import deepspeed  # noqa: F401  (once, before the ranks fork)

    expected = Runner(strategy="single", accelerator="cpu").launch(loops.checkpoint, tmp_path / "single.pt")
    for fitted, weights, state, answer, home in in_ranks(2, all_in_one, stage, tmp_path / "saved.pt"):
        assert_same(fitted, plain(clip=0.3))
        for name, value in expected[0].items():
            torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(home[name], value, rtol=1e-6, atol=1e-7)
        for index, entry in expected[1]["state"].items():
            for key, value in entry.items():
                torch.testing.assert_close(state["state"][index][key], value, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(answer, expected[2], rtol=1e-6, atol=1e-7)

"""DeepSpeed's stages. Skipped where it is not installed: ``pip install -e '.[deepspeed]'`` runs them."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies import DeepSpeed
from distmetrics.strategies.base import Entry
from distmetrics.strategies.registry import resolve
from tests.strategies.common import Deep, assert_same, in_ranks, outcome, single, train
from tests.strategies.test_own_loop import run
from tests.strategies.test_states import check, expected, resumed, resumed_single, whole_states

INSTALLED = importlib.util.find_spec("deepspeed") is not None
needs_deepspeed = pytest.mark.skipif(not INSTALLED, reason="deepspeed is not installed: its stages are not run")
slow = pytest.mark.timeout(400)  # a process that imports it builds an extension once


@pytest.mark.skipif(INSTALLED, reason="deepspeed is installed")
def test_without_it_the_command_is_told():
    with pytest.raises(MissingDependencyError, match=r"strategy='deepspeed' needs deepspeed(.|\n)*install deepspeed"):
        resolve("deepspeed", accelerator="cpu")


def test_wrong_options():
    with pytest.raises(ConfigurationError, match="stage must be 0, 1, 2 or 3, got 4"):
        DeepSpeed(stage=4)
    for precision in (16, 64):
        with pytest.raises(ConfigurationError, match="runs precision=32 and 'bf16-mixed'"):
            resolve(DeepSpeed(), accelerator="cpu", precision=precision)
    with pytest.raises(ConfigurationError, match="trains one model with one optimizer"):
        DeepSpeed().training_call(Entry(Deep()), [None, None])


def script(stage, flags):
    module, trainer = train(DeepSpeed(stage=stage), 2, module=Deep(), batch_size=6, **flags)
    assert type(module.after) is nn.Linear
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    return outcome(module, trainer)


def make(stage):
    return lambda: DeepSpeed(stage=stage)


def all_in_one(stage, start):
    """One start of the library for everything: that is what takes the time."""
    found = script(stage, {"gradient_clip_val": 0.5, "num_sanity_val_steps": 1})
    low = script(stage, {"precision": "bf16"}) if stage == 2 else None
    whole = whole_states(make(stage), {})
    added = whole_states(make(stage), {"accumulate": 3})
    return found, low, whole, added, resumed(make(stage), *start), run(DeepSpeed(stage=stage), 2)


@needs_deepspeed
@slow
@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stages(stage):
    import deepspeed  # noqa: F401  (once, before the ranks fork)

    weights, state, wanted = resumed_single()
    own = run("single", 1)
    for found, low, whole, added, again, looped in in_ranks(2, all_in_one, stage, (weights, state)):
        assert_same(found, outcome(*single(Deep, clip=0.5)))
        if low is not None:
            assert_same(low, outcome(*single(Deep, precision="bf16")), atol=4e-3, rel=2e-2)
        check(whole, expected({}))
        check(added, expected({"accumulate": 3}))
        check(again, wanted)
        assert looped[0][3] == pytest.approx(own[0][3], rel=1e-5), "what the evaluation within the loop has seen"
        for name, value in own[1].items():
            torch.testing.assert_close(looped[1][name], value, rtol=0, atol=1e-6)

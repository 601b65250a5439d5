"""DeepSpeed's stages; they run where it is installed: ``pip install -e '.[deepspeed]'``."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from distmetrics import ConfigurationError, Runner
from distmetrics.strategies import DeepSpeed
from distmetrics.strategies.base import Entry
from distmetrics.strategies.registry import resolve
from tests.run import loops
from tests.strategies.common import Deep, assert_same, in_ranks, outcome, single, train
from tests.strategies.test_split import loop, same, trained

INSTALLED = importlib.util.find_spec("deepspeed") is not None


def test_wrong_options():
    for precision in (16, 64):
        with pytest.raises(ConfigurationError, match="runs precision=32 and 'bf16-mixed'"):
            resolve(DeepSpeed(), accelerator="cpu", precision=precision)
    with pytest.raises(ConfigurationError, match="trains one model with one optimizer"):
        DeepSpeed().training_call(Entry(Deep()), [None, None])


def fitted(stage, **flags):
    module, trainer = train(DeepSpeed(stage=stage), 2, module=Deep(), batch_size=6, **flags)
    assert type(module.after) is nn.Linear
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    return outcome(module, trainer)


def all_in_one(stage, start, path):
    """One start of the library for everything: that is what takes the time."""
    flags = {"strategy": DeepSpeed(stage=stage), "devices": 2, "accelerator": "cpu"}
    found = fitted(stage, gradient_clip_val=0.5, num_sanity_val_steps=1)
    low = fitted(stage, precision="bf16") if stage == 2 else None
    whole = trained(DeepSpeed(stage=stage)), trained(DeepSpeed(stage=stage), accumulate=3)
    again = trained(DeepSpeed(stage=stage), start)
    looped = Runner(**flags).launch(loop)
    kept = Runner(**flags).launch(loops.checkpoint, path)
    with pytest.raises(ConfigurationError, match="steps without a closure"):
        Runner(**flags).launch(loops.by_closure)  # after which the world is broken
    return found, low, *whole, again, looped, kept


@pytest.mark.skipif(not INSTALLED, reason="deepspeed is not installed: its stages are not run")
@pytest.mark.gloo
@pytest.mark.timeout(400)  # a process that imports it builds an extension once
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stages(stage, tmp_path):
    import deepspeed  # noqa: F401  (once, before the ranks fork)

    start, alone = trained("single"), Runner(strategy="single", accelerator="cpu")
    seen, weights = alone.launch(loop)
    saved = alone.launch(loops.checkpoint, tmp_path / "single.pt")
    for found in in_ranks(2, all_in_one, stage, start[:2], tmp_path / "saved.pt"):
        fit, low, whole, added, again, looped, kept = found
        assert_same(fit, outcome(*single(Deep, clip=0.5)))
        if low is not None:
            assert_same(low, outcome(*single(Deep, precision="bf16")), atol=4e-3, rel=2e-2)
        same(whole, start)
        same(added, trained("single", accumulate=3))
        same(again, trained("single", start))
        torch.testing.assert_close(looped, (seen, weights), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(kept[:3], saved[:3], rtol=1e-6, atol=1e-7)

"""Whatever the strategy: after 10 steps the weights of one process, and every number that it logs."""

from __future__ import annotations

import pytest
import torch

from distmetrics.strategies import FSDP
from tests.strategies.common import Deep, assert_same, in_ranks, outcome, single, train
from tests.strategies.forked import ForkedFSDP, ForkedSharded
from tests.train.models import Logistic

VAL = [7, 1]  # uneven, and a rank that has nothing to validate
pytestmark = pytest.mark.filterwarnings("ignore:No (positive|negative) samples in targets")


@pytest.mark.parametrize("val", VAL)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_dp(devices, val):
    assert_same(outcome(*train("dp", devices, val=val)), outcome(*single(val=val)))


@pytest.mark.gloo
@pytest.mark.parametrize("val", VAL)
@pytest.mark.parametrize("make", ["ddp_fork", "ddp_notebook", ForkedSharded, ForkedFSDP])
def test_started_here(make, val):
    strategy = make if isinstance(make, str) else make()
    found = train(strategy, 2, batch_size=6, val=val, gradient_clip_val=0.05)
    assert_same(outcome(*found), outcome(*single(val=val, clip=0.05)))


def script(strategy, devices, batch_size, make, flags):
    module, trainer = train(strategy, devices, module=make(), batch_size=batch_size, **flags)
    assert type(module) is make
    return outcome(module, trainer)


@pytest.mark.gloo
@pytest.mark.parametrize("val", VAL)
@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded", "fsdp"])
def test_scripts(strategy, val):
    for found in in_ranks(2, script, strategy, 2, 6, Logistic, {"val": val}):
        assert_same(found, outcome(*single(val=val)))


@pytest.mark.gloo
@pytest.mark.parametrize("val", VAL)
def test_ddp2(val):
    """Two processes as on two machines, with three replicas each."""
    for found in in_ranks(2, script, "ddp2", 3, 6, Logistic, {"val": val}):
        assert_same(found, outcome(*single(val=val)))


@pytest.mark.gloo
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"wrap": (torch.nn.Linear,)},
        {"wrap": (torch.nn.Sequential, torch.nn.Linear), "reshard": False},
        {"replicas": 2},
        {"cpu_offload": True},
    ],
)
def test_fsdp_with_its_options(options):
    flags = {"gradient_clip_val": 0.5, "num_sanity_val_steps": 1}
    world_size = 4 if "replicas" in options else 3
    found = in_ranks(world_size, script, FSDP(**options), world_size, 12 // world_size, Deep, flags)
    for each in found:
        assert_same(each, outcome(*single(Deep, clip=0.5)))


@pytest.mark.gloo
@pytest.mark.parametrize("strategy", ["ddp_sharded_spawn", "fsdp_spawn"])
def test_spawned(strategy):
    assert_same(outcome(*train(strategy, 2, batch_size=6)), outcome(*single()))


@pytest.mark.gloo
@pytest.mark.parametrize("strategy", ["ddp_fork", ForkedSharded, ForkedFSDP, "dp"])
@pytest.mark.parametrize("precision", ["bf16", 64])
def test_precision(strategy, precision):
    made = strategy if isinstance(strategy, str) else strategy()
    found = train(made, 2, batch_size=12 if strategy == "dp" else 6, precision=precision)
    expected = outcome(*single(precision=precision))
    tolerance = 1e-6 if precision == 64 else 2e-3
    assert_same(outcome(*found), expected, atol=tolerance, rel=1e-6 if precision == 64 else 2e-2)

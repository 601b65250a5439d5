"""The strategy for XLA, with a stand-in for torch_xla; ``xla_script.py`` runs it on the real one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies import XLA
from distmetrics.strategies.registry import resolve
from tests.strategies.common import assert_same, outcome, single, train


@pytest.fixture
def stand_in(monkeypatch):
    """A torch_xla whose one device is the CPU; returns what was asked of it."""
    asked = []
    library = ModuleType("torch_xla")
    library.device = lambda: torch.device("cpu")
    library.sync = lambda: asked.append("sync")
    monkeypatch.setitem(sys.modules, "torch_xla", library)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    return asked


def test_one_device(stand_in):
    assert_same(outcome(*train("xla", 1)), outcome(*single()))
    assert len(stand_in) == 10 + 5 * 4, "once a training step, once an evaluation step"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"devices": [0, 1]}, r"one device of a machine or on all, got devices=\[0, 1\]"),
        ({"num_nodes": 2}, "num_nodes=2"),
        ({"precision": 16}, "no scaled loss"),
    ],
)
def test_flags_that_make_no_sense(stand_in, flags, message):
    with pytest.raises(ConfigurationError, match=message):
        resolve("xla", **{"accelerator": "tpu", **flags})


def test_a_tpu_is_found_by_auto(stand_in, monkeypatch):
    strategy = resolve("auto", devices=8, accelerator="tpu")
    assert (type(strategy), strategy.devices, strategy.isolated) == (XLA, 8, True)
    assert not resolve(XLA(spmd=True), devices=-1, accelerator="tpu").isolated
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    text = r"strategy='xla' needs torch_xla(.|\n)*pip install torch_xla"
    with pytest.raises(MissingDependencyError, match=text):
        resolve("tpu_spawn")

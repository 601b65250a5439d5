"""Two machines with two ranks each train to the weights of one process, and log its numbers."""

from __future__ import annotations

import json

import pytest
import torch

from distmetrics.train import Trainer
from tests.machines import torchrun, two_machines
from tests.train.models import Logistic, loader

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [pytest.param("ddp", 2, marks=pytest.mark.long), pytest.param("ddp2", 1, marks=pytest.mark.long), ("hsdp", 2)],
)
def test_the_numbers_are_those_of_one_process(strategy, ranks, tmp_path):
    with two_machines() as names:
        torchrun(names, "tests.train.on_machines", str(tmp_path), strategy, ranks=ranks)
    module = Logistic()
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=2)
    trainer.fit(module, loader(24, 12), loader(5, 2, seed=1))
    (expected,) = trainer.validate(module, loader(5, 2, seed=1))
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    for rank in range(2 * ranks):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["world_size"] == 2 * ranks
        torch.testing.assert_close(torch.tensor(found["weights"]), weights, rtol=1e-6, atol=1e-7)
        assert found["validate"] == pytest.approx(expected, rel=1e-6)

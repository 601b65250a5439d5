"""Two machines with two ranks each train to the weights of one process, and log its numbers."""

from __future__ import annotations

import json

import pytest
import torch

from tests.machines import torchrun, two_machines
from tests.run.models import Logistic, loader
from tests.run.threads import trainer


@pytest.mark.gloo
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        pytest.param("ddp", 2, marks=pytest.mark.long),
        pytest.param("ddp2", 1, marks=pytest.mark.long),
        ("hsdp", 2),
    ],
)
def test_the_numbers_are_those_of_one_process(strategy, ranks, tmp_path):
    with two_machines() as names:
        torchrun(names, "tests.run.on_machines", str(tmp_path), strategy, ranks=ranks)
    module, run = Logistic(), trainer(max_epochs=2)
    run.fit(module, loader(24, 12), loader(5, 2, seed=1))
    (expected,) = run.validate(module, loader(5, 2, seed=1))
    for rank in range(2 * ranks):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["world_size"] == 2 * ranks
        assert found["validate"] == pytest.approx(expected, rel=1e-6)
        for name, value in module.state_dict().items():
            weights = torch.tensor(found["weights"][name])
            torch.testing.assert_close(weights, value, rtol=1e-6, atol=1e-7)

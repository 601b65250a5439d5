"""Trainers that one rank makes for itself in public repositories."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

PROBE = """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def on_train_epoch_end(self):
        if self.global_rank == 0:
            self.probe()

    def probe(self):
        trainer = pl.Trainer({arguments})
        trainer.fit(self.other, self.loader)
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("devices=1", []),
        ("devices=[self.gpu]", []),
        ("gpus=self.options.gpu_ids", [6]),
        ("devices=[self.gpu], num_nodes=2", [6]),
        ("devices=self.devices", [6]),
    ],
)
def test_a_trainer_of_one_rank_s_own(arguments: str, expected: list[int]) -> None:
    assert lines(PROBE.format(arguments=arguments), "DL101") == expected

"""What other files of public repositories say: of Lightning's release, of devices, of who moves a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from tests.lint.helpers import lines


def _codes(folder: Path, files: dict[str, str], code: str, capsys: pytest.CaptureFixture[str]) -> int:
    for name, text in {"pyproject.toml": "", **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    main(["check", str(folder), "--review", "--select", code, "--no-cache"])
    return capsys.readouterr().out.count(f" {code} ")


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


ONE, SOME = "trainer:\n  devices: 1  # GPU\n  strategy: auto\n", "trainer:\n  max_epochs: 3\n"


PARTS = """\
import torch
from torch import nn

class Embed(nn.Module):
    def forward(self, x, waves):
        waves = scale(waves)
        {move}
        return x * waves
"""
WHOLE = """\
import torch
from torch import nn
from parts import Embed

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = {made}

    def forward(self, x, waves):
        return self.embed(x, waves)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x):
        waves = torch.tensor([1.0, 2.0])
        return self.decoder(x, waves)
"""
MOVES, STAYS = "waves = waves.to(x.device)", "waves = waves.float()"


@pytest.mark.parametrize(
    ("move", "made", "expected"),
    [(MOVES, "Embed()", 0), (MOVES, "Embed().half()", 0), (STAYS, "Embed()", 1), (MOVES, "nn.Bilinear(2, 2, 2)", 1)],
)
def test_a_module_that_hands_on_to_one_that_moves(
    tmp_path: Path, move: str, made: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"parts.py": PARTS.format(move=move), "whole.py": WHOLE.format(made=made)}
    assert _codes(tmp_path, files, "DL002", capsys) == expected
    joined = files["parts.py"] + files["whole.py"].replace("from parts import Embed\n", "")
    assert len(lines(joined, "DL002")) == expected

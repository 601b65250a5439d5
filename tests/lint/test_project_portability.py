"""What other files have to say about step outputs and samplers."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.rules import RULES
from distlint.run import check_files

BASE = """\
from lightning.pytorch import LightningModule

class Base(LightningModule):
    def {hook}(self):
        {statement}
"""
MODEL = """\
from .base import Base

class Model(Base):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_validation_epoch_end(self):
        self.log("n", float(len(self.outputs)), sync_dist=True)
        super().on_validation_epoch_end()
"""
DATA = """\
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.data, sampler=DistributedSampler(self.data))
"""


def codes(folder: Path, code: str, **files: str) -> list[str]:
    """Codes of the findings in a small package."""
    (folder / "pyproject.toml").write_text("")
    paths = []
    for name, source in {"__init__": "", **files}.items():
        path = folder / "package" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        paths.append(path)
    return [found.code for found in check_files(paths, [RULES[code]]).findings]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [("self.outputs.clear()", []), ("self.outputs = []", []), ("print(self.outputs)", ["DL301"])],
)
def test_a_base_in_another_file_may_clear(tmp_path: Path, statement: str, expected: list[str]) -> None:
    base = BASE.format(hook="on_validation_epoch_end", statement=statement)
    assert codes(tmp_path, "DL301", base=base, model=MODEL) == expected


def test_a_base_that_nobody_knows_is_for_review(tmp_path: Path) -> None:
    model = "import lightning\n" + MODEL.replace(".base", "elsewhere")
    assert codes(tmp_path, "DL301", model=model) == ["DL301"]
    (found,) = check_files([tmp_path / "package" / "model.py"], [RULES["DL301"]]).findings
    assert found.message.endswith("unless a base class in another file empties it")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("devices=2", ["DL004"]), ("use_distributed_sampler=False", []), ("replace_sampler_ddp=False", [])],
)
def test_a_trainer_in_another_file_may_opt_out(tmp_path: Path, arguments: str, expected: list[str]) -> None:
    train = f"from lightning.pytorch import Trainer\n\ntrainer = Trainer({arguments})\n"
    assert codes(tmp_path, "DL004", data=DATA, train=train) == expected

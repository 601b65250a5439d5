"""DL004: which loaders a sampler is given to, and what becomes of its repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.rules import RULES
from distlint.run import check_files

DATA = """\
import webdataset as wds
import torch.utils.data as data
from lightning.pytorch import LightningDataModule
from monai.data import ThreadDataLoader
from torch.utils.data import DataLoader, DistributedSampler
from .loaders import Loader as Unknown

class Own(DataLoader):
    pass

class Feed:
    pass

class Data(LightningDataModule):
    def val_dataloader(self):
        {made}
"""


@pytest.mark.parametrize(
    ("made", "is_reported"),
    [
        ("return wds.WebLoader(self.x, sampler=DistributedSampler(self.x))", False),
        ("return Feed(self.x, sampler=DistributedSampler(self.x))", False),
        ("return Unknown(self.x, sampler=DistributedSampler(self.x))", False),
        ("return DataLoader(self.x, sampler=DistributedSampler(self.x))", True),
        ("s = DistributedSampler(self.x); return data.DataLoader(self.x, sampler=s)", True),
        ("s = DistributedSampler(self.x); return [wds.WebLoader(1, sampler=s), DataLoader(2, sampler=s)]", True),
    ],
)
@pytest.mark.parametrize(("end", "confidence"), [("", "review"), ("Trainer().fit(model, Data())", "sure")])
def test_samplers_of_loaders_of_torch(made: str, is_reported: bool, end: str, confidence: str, tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_text(DATA.replace("LightningDataModule\n", "LightningDataModule, Trainer\n", 1).format(made=made) + end)
    findings = check_files([path], [RULES["DL004"]]).findings
    assert [found.confidence for found in findings] == [confidence] * is_reported

"""What a class is, by its bases or by its methods."""

from __future__ import annotations

import libcst as cst
import pytest

from distlint.facts import ModuleFacts


def kinds(source: str) -> set[str]:
    """Kinds of the last class."""
    facts = ModuleFacts(cst.parse_module(source))
    return list(facts.classes.values())[-1].kinds


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\nclass A(torch.nn.Module): pass", {"module"}),
        ("from torch import nn\nclass A(nn.Linear): pass", {"module"}),
        ("import pytorch_lightning as pl\nclass A(pl.LightningModule): pass", {"module", "lightning"}),
        ("from lightning.pytorch import LightningModule as L\nclass A(L): pass", {"module", "lightning"}),
        ("import lightning as L\nclass A(L.LightningDataModule): pass", {"datamodule"}),
        ("from lightning.pytorch.callbacks import ModelCheckpoint\nclass A(ModelCheckpoint): pass", {"callback"}),
        ("from lightning.fabric import Fabric\nclass A(Fabric): pass", {"lite"}),
        ("from torch.utils.data import Dataset\nclass A(Dataset[int]): pass", {"dataset"}),
        ("from torchvision.datasets import CIFAR10\nclass A(CIFAR10): pass", {"dataset"}),
        ("from torch.utils.data import Sampler\nclass A(Sampler): pass", set()),
        ("from torchmetrics import Metric\nclass A(Metric): pass", {"metric", "module"}),
        ("from torchgeo import NonGeoDataset\nclass A(NonGeoDataset): pass", {"dataset"}),
        ("class A: pass", {"plain"}),
        ("import abc\nclass A(abc.ABC, object): pass", {"plain"}),
        ("from theirs import Base\nclass A(Base): pass", set()),
        ("from theirs import Base\nclass A(Base):\n def training_step(self): pass", {"module", "lightning"}),
        ("import torch\nfrom theirs import Base\nclass A(Base):\n def forward(self): pass", {"module"}),
        ("from theirs import Base\nclass A(Base):\n def forward(self): pass", set()),
        ("import torch\nclass A:\n def forward(self): pass", {"plain"}),
        ("import torch\nclass F(torch.autograd.Function):\n def forward(c): pass", {"plain"}),
        ("from torch import nn\nclass A(nn.Module): pass\nclass B(A): pass", {"module"}),
        ("from torch import nn\nclass Mixin: pass\nclass B(Mixin, nn.Module): pass", {"module"}),
        ("class A(A): pass", {"plain"}),
    ],
)
def test_kinds(source: str, expected: set[str]) -> None:
    assert kinds(source) == expected


def test_attributes_and_methods_of_bases_in_the_file() -> None:
    source = """\
class Base:
    def __init__(self):
        self.x, other.x = 1, 2
        self.y: int = 3
    def run(self): pass
class Child(Base):
    def setup(this):
        this.y = 4
"""
    facts = ModuleFacts(cst.parse_module(source))
    child = list(facts.classes.values())[1]
    assert child.method("run") is not None
    assert child.method("missing") is None
    assert [facts.code(value) for value in child.values("y")] == ["4", "3"]

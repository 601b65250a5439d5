"""What public repositories call in their modules: what has weights on the device, and what moves its inputs itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.rules import RULES
from distlint.run import check_files
from tests.lint.helpers import lines

MODEL = """\
import torch
import timm
import segmenter
from pytorch_metric_learning import losses
from torch import nn
from lightning.pytorch import LightningModule

class Plain(nn.Module):
    def forward(self, x, y):
        return x * y

class Mover(nn.Module):
    def forward(self, x, y):
        return x * y.to(x.device)

class Later(nn.Module):
    def forward(self, x, y):
        return self.late(x, y)

    def late(self, x, y):
        return x * y.cuda()

class Beside(nn.Module):
    def forward(self, x, y):
        return x.cuda() * y

class Picker(nn.Module):
    def forward(self, x, y):
        return x[y] + y.shape[0]

class Model(LightningModule):
    def __init__(self, model, loss, make):
        super().__init__()
        self.{name} = {value}

    def training_step(self, batch, batch_idx):
        return self.{name}(batch, torch.arange(3).long())
"""


@pytest.mark.parametrize(
    ("name", "value", "is_reported"),
    [
        ("loss_fn", "losses.NTXentLoss()", False),
        ("encoder", "losses.NTXentLoss()", False),
        ("encoder", "segmenter.Net()", False),
        ("encoder", "timm.create_model('vit')", True),
        ("encoder", "make()", True),
        ("loss", "make()", False),
        ("model", "model", True),
        ("model", "None", False),
        ("criterion", "loss", False),
        ("embed_loss", "loss", False),
        ("score", "loss", False),
        ("fuse", "Plain()", True),
        ("fuse", "Mover()", False),
        ("fuse", "Mover().to('cuda')", False),
        ("fuse", "Mover().eval().half()", False),
        ("fuse", "Plain().cuda()", True),
        ("encoder", "Mover()", False),
        ("fuse", "Picker()", False),
        ("fuse", "Later()", False),
        ("fuse", "Beside()", True),
        ("fuse", "nn.Sequential()", True),
        ("fuse", "nn.functional.mse_loss", False),
        ("fuse", "len(batch)", False),
    ],
)
def test_what_is_called_has_weights(name: str, value: str, is_reported: bool) -> None:
    assert bool(lines(MODEL.format(name=name, value=value), "DL002")) is is_reported


@pytest.mark.parametrize(("value", "is_reported"), [("Plain()", True), ("Mover()", False), ("nn.GELU()", True)])
def test_what_a_module_gives_back_is_where_it_was_given(value: str, is_reported: bool) -> None:
    source = MODEL.format(name="fuse", value=value).replace(
        "self.fuse(batch, torch.arange(3).long())", "self.fuse(batch) * torch.ones(3)"
    )
    assert bool(lines(source, "DL002")) is is_reported


PARTS = """\
import torch
from torch import nn

class Base(nn.Module):
    def take(self, y):
        return {taken}

class Part(Base):
    def forward(self, x, y):
        return x * self.take(y)
"""
WHOLE = """\
import torch
from lightning.pytorch import LightningModule
from .parts import Part

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.fuse = Part()

    def training_step(self, batch, batch_idx):
        return self.fuse(batch, torch.ones(3))
"""


@pytest.mark.parametrize(("taken", "expected"), [("y", [11]), ("y.cuda()", []), ("y.type_as(self.weight)", [])])
def test_modules_of_other_files(tmp_path: Path, taken: str, expected: list[int]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / "package"
    folder.mkdir()
    for name, source in {"__init__": "", "parts": PARTS.format(taken=taken), "whole": WHOLE}.items():
        (folder / f"{name}.py").write_text(source)
    report = check_files(sorted(folder.glob("*.py")), [RULES["DL002"]])
    assert [each.line for each in report.findings] == expected


NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def is_cuda(self):
        return next(self.parameters()).is_cuda

    def forward(self, x, flag):
{body}
"""
ARMS = """\
        if {test}:
            x = x * torch.ones(3).cuda()
        else:
            x = x * torch.ones(3)
        return x"""
OTHER_ARMS = """\
        if {test}:
            x = x * torch.ones(3)
        else:
            x = x * torch.ones(3).cuda()
        return x"""
LEAVES = """\
        if {test}:
            return x * torch.ones(3).cuda()
        return x * torch.ones(3)"""
INLINE = """\
        return x * (torch.ones(3).cuda() if {test} else torch.ones(3))"""
MEETS = """\
        mask = torch.ones(3)
        if {test}:
            return x * mask.cuda()
        else:
            return x * mask"""


@pytest.mark.parametrize("body", [ARMS, LEAVES, INLINE, MEETS])
@pytest.mark.parametrize(
    ("test", "is_reported"),
    [
        ("self.is_cuda()", False),
        ("torch.cuda.is_available()", False),
        ("x.is_cuda and flag", True),
        ("x.is_cuda or flag", False),
        ("self.use_gpu", False),
        ("x.device.type == 'cuda'", False),
        ("x.device.type != 'cpu'", False),
        ("x.get_device() >= 0", False),
        ("self.n_gpu > 0", False),
        ("self.n_gpu > 1", True),
        ("torch.cuda.current_device() == 0", True),
        ("self.training", True),
        ("not self.is_cuda()", True),
    ],
)
def test_arms_without_an_accelerator(body: str, test: str, is_reported: bool) -> None:
    assert bool(lines(NET.format(body=body.format(test=test)), "DL002")) is is_reported


@pytest.mark.parametrize(
    ("test", "is_reported"),
    [
        ("not self.is_cuda()", False),
        ("x.device.type == 'cpu'", False),
        ("x.device.type != 'cuda'", False),
        ("x.get_device() == -1", False),
        ("self.n_gpu == 0", False),
        ("len(x) == 0", True),
        ("self.is_cuda()", True),
    ],
)
def test_arms_for_the_host(test: str, is_reported: bool) -> None:
    assert bool(lines(NET.format(body=OTHER_ARMS.format(test=test)), "DL002")) is is_reported


@pytest.mark.parametrize(
    ("moved", "is_reported"),
    [
        ("mask = mask.cuda()", False),
        ("x, mask = x.cuda(), mask.cuda()", False),
        ("mask = Variable(mask.cuda())", False),
        ("mask = send_to_device(mask)", False),
        ("mask = widen(mask)", True),
    ],
)
def test_what_is_moved_on_some_way(moved: str, is_reported: bool) -> None:
    body = f"        mask = torch.ones(3)\n        if flag:\n            {moved}\n        return x * mask"
    assert bool(lines(NET.format(body=body), "DL002")) is is_reported

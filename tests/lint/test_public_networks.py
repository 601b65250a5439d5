"""What public repositories call in their modules: what has weights, and arms for devices."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

MODEL = """\
import torch
import segmenter
from torch import nn
from lightning.pytorch import LightningModule

class Mover(nn.Module):
    def forward(self, x, y):
        return x * y.to(x.device)

class Model(LightningModule):
    def __init__(self, model):
        super().__init__()
        self.part = {value}

    def training_step(self, batch, batch_idx):
        return {returned}
"""


@pytest.mark.parametrize(
    ("value", "is_reported"),
    [
        ("nn.Bilinear(3, 3, 3)", True),
        ("nn.TransformerEncoderLayer(3, 3)", True),
        ("nn.GELU()", False),
        ("nn.functional.mse_loss", False),
        ("Mover()", False),
        ("segmenter.Net()", False),
        ("model", False),
    ],
)
def test_what_is_called_has_weights(value: str, is_reported: bool) -> None:
    source = MODEL.format(value=value, returned="self.part(batch, torch.arange(3).long())")
    assert bool(lines(source, "DL002")) is is_reported


@pytest.mark.parametrize("value", ["nn.GELU()", "nn.Linear(3, 3)", "model"])
def test_what_a_module_gives_back_is_where_it_was_given(value: str) -> None:
    assert lines(MODEL.format(value=value, returned="self.part(batch) * torch.ones(3)"), "DL002")


NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def is_cuda(self):
        return next(self.parameters()).is_cuda

    def forward(self, x: torch.Tensor, flag):
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
MEETS = """\
        mask = torch.ones(3)
        if {test}:
            return x * mask.cuda()
        else:
            return x * mask"""


@pytest.mark.parametrize("body", [ARMS, LEAVES, MEETS])
@pytest.mark.parametrize(
    ("test", "is_reported"),
    [
        ("self.is_cuda()", False),
        ("torch.cuda.is_available()", False),
        ("x.is_cuda and flag", False),
        ("x.is_cuda or flag", False),
        ("self.use_gpu", False),
        ("x.device.type == 'cuda'", False),
        ("x.device.type != 'cpu'", False),
        ("x.get_device() >= 0", False),
        ("self.n_gpu > 0", False),
        ("self.n_gpu > 1", False),
        ("torch.cuda.current_device() == 0", False),
        ("self.training", True),
        ("not self.is_cuda()", False),
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
        ("self.is_cuda()", False),
    ],
)
def test_arms_for_the_host(test: str, is_reported: bool) -> None:
    assert bool(lines(NET.format(body=OTHER_ARMS.format(test=test)), "DL002")) is is_reported


@pytest.mark.parametrize("test", ["x.is_cuda", "x.dim() == 1"])
def test_what_is_moved_in_one_of_two_values(test: str) -> None:
    body = f"        return x * (torch.ones(3).cuda() if {test} else torch.ones(3))"
    assert lines(NET.format(body=body), "DL002") == []


@pytest.mark.parametrize(
    ("moved", "is_reported"),
    [
        ("mask = mask.cuda()", False),
        ("x, mask = x.cuda(), mask.cuda()", False),
        ("mask = Variable(mask.cuda())", False),
        ("mask = send_to_device(mask)", False),
        ("mask = widen(mask)", False),
        ("mask = mask.cuda() if x.is_cuda else mask", False),
        ("mask = mask.float()", True),
    ],
)
def test_what_is_moved_on_some_way(moved: str, is_reported: bool) -> None:
    body = f"        mask = torch.ones(3)\n        if flag:\n            {moved}\n        return x * mask"
    assert bool(lines(NET.format(body=body), "DL002")) is is_reported

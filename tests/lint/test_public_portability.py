"""Devices and pickling in public repositories, in small: what is right beside the nearest thing that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.rules import RULES
from distlint.run import check_files
from tests.lint.helpers import lines

FORWARD = """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x: torch.Tensor):
{body}
        return x
"""
MAKES = "x = torch.gather(x, 1, torch.arange(3).repeat(4).unsqueeze(-1))"


@pytest.mark.parametrize(
    ("guard", "is_reported"),
    [
        ("torch.jit.is_tracing()", False),
        ("torch.jit.is_scripting() or torch.jit.is_tracing()", False),
        ("torch.onnx.is_in_onnx_export() and self.fast", False),
        ("not torch.jit.is_tracing()", False),
        ("self.fast", True),
    ],
)
@pytest.mark.parametrize("arms", ["{makes}", "x = x + 1\n        else:\n            {makes}"])
def test_tensors_made_where_a_trace_goes_or_does_not(guard: str, arms: str, is_reported: bool) -> None:
    body = f"        if {guard}:\n            {arms.format(makes=MAKES)}"
    assert bool(lines(FORWARD.format(body=body), "DL002")) is is_reported


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("self.hparams.gpus > 0", [7]),
        ("self.use_gpu", [7]),
        ("n_gpu", [7]),
        ("self.useGPU", [7]),
        ("self.gpu_rank == 0", [7]),
        ("self.use_cuda", []),
        ("self.device_type == 'cuda'", []),
        ("self.training", [7]),
    ],
)
def test_guards_that_speak_of_gpus(guard: str, expected: list[int]) -> None:
    assert lines(FORWARD.format(body=f"        if {guard}:\n            x = x.cuda()"), "DL001") == expected


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("shift = transforms.Lambda(lambda t: t.apply_(lambda x: x + k))\n        return shift(x)", []),
        ("t = transforms.Lambda(lambda t: t + k)\n        return self.t(t(x))", []),
        ("return transforms.Lambda(lambda t: t + k)(x)", []),
        ("shift = transforms.Lambda(lambda t: t + k)\n        return shift", [6]),
        ("shift = transforms.Lambda(lambda t: t + k)\n        self.shift = shift\n        return shift(x)", [6]),
        ("shift = transforms.Lambda(lambda t: t + k)\n        return lambda: Keep(shift)", [6]),
        ("self.shift = transforms.Lambda(lambda t: t + k)\n        return self.shift(x)", [6]),
    ],
)
def test_transforms_that_are_only_called(use: str, expected: list[int]) -> None:
    source = f"""\
from torch.utils.data import Dataset
from torchvision import transforms

class Data(Dataset):
    def pick(self, x, k):
        {use}
"""
    assert lines(source, "DL005") == expected


OWN = """\
from .base import Base

class Own(Base):
    def __init__(self):
        self.logs = {"rewards": make(lambda: 3), "f": lambda x: x}

    def training_step(self, model, inputs):
        return model(inputs)

    def forward(self, model, inputs):
        return model(inputs)
"""


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("from transformers import Trainer", []),
        ("from trl import GRPOTrainer as Trainer", []),
        ("from lightning.pytorch import LightningModule as Trainer", [5]),
        ("from elsewhere import Trainer", [5]),
    ],
)
def test_trainers_of_transformers_are_no_modules(tmp_path: Path, root: str, expected: list[int]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    folder = tmp_path / "package"
    folder.mkdir()
    for name, source in {"__init__": "", "base": f"{root}\n\nclass Base(Trainer):\n    pass\n", "own": OWN}.items():
        (folder / f"{name}.py").write_text(source)
    report = check_files(sorted(folder.glob("*.py")), [RULES["DL005"]])
    assert [each.line for each in report.findings] == expected

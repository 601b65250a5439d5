"""Repairs of the rules on portability and cost: what they make of a file, and that they bring nothing new."""

from __future__ import annotations

import pytest

from distlint.rules import RULES
from tests.lint.test_repairs import find, repaired

GROUPS = [rule for rule in RULES.values() if rule.group in ("portability", "cost")]
EXAMPLES = [
    pytest.param(rule.code, each.source, id=f"{rule.code}-{n}") for rule in GROUPS for n, each in enumerate(rule.bad)
]


@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
@pytest.mark.parametrize(("code", "source"), EXAMPLES)
def test_a_repair_removes_its_finding_and_brings_no_other(code: str, source: str, unsafe: bool) -> None:
    before = {found.code for found in find(source)}
    done = repaired(source, code, unsafe=unsafe)
    assert [found for found in find(done, code) if found.fix is not None and (found.fix.safe or unsafe)] == []
    assert {found.code for found in find(done)} <= before


MODULE = """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []
{init}
    def validation_step(self, batch, batch_idx):
        x, y = batch
{step}
    def on_validation_epoch_end(self):
        self.log("score", torch.cat(self.outputs).mean(), sync_dist=True)
"""


@pytest.mark.parametrize(
    ("code", "place", "before", "after"),
    [
        ("DL001", "step", "x = x.cuda(non_blocking=True)", "x = x.to(self.device, non_blocking=True)"),
        ("DL001", "step", 'z = torch.ones(3, device="cuda:0")', "z = torch.ones(3, device=self.device)"),
        ("DL001", "step", 'x = x.to("cuda", torch.half)', "x = x.to(self.device, torch.half)"),
        (
            "DL003",
            "init",
            "self.mean = torch.zeros(\n            3\n        )  # of all",
            'self.register_buffer("mean", torch.zeros(\n            3\n        ), persistent=False)  # of all',
        ),
        ("DL301", "step", "self.outputs.append(x)", "sync_dist=True)\n        self.outputs.clear()\n"),
    ],
)
def test_what_a_repair_writes(code: str, place: str, before: str, after: str) -> None:
    parts = {"init": "", "step": ""}
    parts[place] = f"        {before}\n"
    if code == "DL003":
        parts["step"] = "        z = batch - self.mean\n"
    source = MODULE.format(**parts)
    done = repaired(source, code, unsafe=True)
    assert after in done
    assert find(done, code) == []


def test_a_part_of_the_batch_lends_no_device() -> None:
    source = MODULE.format(init="", step="        z = x + torch.ones(3)\n")
    assert [found.fix for found in find(source, "DL002")] == [None]


def test_a_partner_that_is_a_parameter_lends_its_device() -> None:
    source = """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        return x + torch.ones(
            *x.shape,  # the same
        )
"""
    assert "*x.shape, device=x.device,  # the same" in repaired(source, "DL002")


def test_a_sampler_gives_way_to_shuffle() -> None:
    source = """\
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def val_dataloader(self):
        return DataLoader(self.data, sampler=DistributedSampler(self.data, shuffle=False), batch_size=2)
"""
    assert repaired(source, "DL004") == source
    assert "DataLoader(self.data, shuffle=False, batch_size=2)" in repaired(source, "DL004", unsafe=True)

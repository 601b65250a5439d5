"""More of what rules report and what they do not, beside the examples of their pages."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

TURNS_OF_ONE_RANK = """\
import torch.distributed as dist

def step(rank, batches):
    for batch in batches:
        if rank > 0:
            continue
        dist.all_reduce(batch)
    if rank == 1:
        dist.broadcast(batch, 0)
    else:
        dist.barrier()
"""
A_TRAINER_BY_ITS_NAME = """\
def save(trainer, path):
    if trainer.global_rank == 0:
        trainer.save_checkpoint(path)
"""
A_WAY_OUT = """\
def results(self, parts, rank, everywhere):
    synchronize(self.accelerator)
    if not everywhere and rank != 0:
        return None
    merged = merge(parts)
    if everywhere:
        self.accelerator.wait_for_everyone()
    return merged
"""
A_BACKWARD_PASS_ALONE = """\
import torch

def train(model, train_loader):
    for batch in train_loader:
        loss = model(batch)
        if not torch.isnan(loss):
            loss.backward()
"""
HOOKS = """\
import os
import torch.distributed as dist
from accelerate import Accelerator

class Loop:
    def __init__(self):
        self.hooks = []

    def add(self, hook):
        self.hooks.append(hook)

    def run(self, accelerator: Accelerator, folder, scores):
        if self.hooks:
            dist.barrier()
        if os.path.exists(folder):
            accelerator.load_state(folder)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, list(scores))
        names = sorted({name for part in found for name in part})
        if not names:
            return
        dist.barrier()
"""
A_LOG_OF_ITS_OWN = """\
class Trainer:
    def log(self, name, value):
        print(name, value)

    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        self.reporter.log("loss", loss)
"""
A_MODULE_OF_DISTMETRICS_BY_ITS_TRAINER = """\
from distmetrics.train import Trainer
from .models import Base

class Model(Base):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.loss(batch))
"""
A_STAGE_THAT_IS_GIVEN = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def _step(self, batch, stage):
        loss = self.loss(batch)
        if stage == "train":
            self.log("loss", loss)
        else:
            self.log(f"{stage}_loss", loss, sync_dist=True)
        self.log("both", loss, sync_dist=stage != "train")
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self._step(batch, "val")
"""
A_GATHER_IN_BOTH_ARMS = """\
import torch.distributed as dist

def gather(x, dst):
    if dist.get_rank() == dst:
        parts = [x.clone() for _ in range(dist.get_world_size())]
        dist.gather(x, parts, dst=dst)
        return parts
    dist.gather(x, dst=dst)
    return []
"""


@pytest.mark.parametrize(
    ("code", "source", "expected"),
    [
        pytest.param("DL101", TURNS_OF_ONE_RANK, [7, 9], id="turns of a loop that one rank alone makes"),
        pytest.param("DL101", A_TRAINER_BY_ITS_NAME, [3], id="a trainer by its name"),
        pytest.param("DL101", A_WAY_OUT, [], id="a return of ranks that others never take"),
        pytest.param("DL103", A_BACKWARD_PASS_ALONE, [], id="a backward pass alone"),
        pytest.param("DL103", HOOKS, [], id="hooks, a checkpoint, names of all ranks"),
        pytest.param("DL202", A_LOG_OF_ITS_OWN, [], id="a log of its own"),
        pytest.param("DL202", A_MODULE_OF_DISTMETRICS_BY_ITS_TRAINER, [], id="a module of distmetrics by its trainer"),
        pytest.param("DL202", A_STAGE_THAT_IS_GIVEN, [], id="a stage that is given"),
        pytest.param("DL101", A_GATHER_IN_BOTH_ARMS, [], id="a gather in both arms"),
    ],
)
def test_reported_at(code: str, source: str, expected: list[int]) -> None:
    assert lines(source, code) == expected

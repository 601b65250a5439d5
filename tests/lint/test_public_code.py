"""Code of public repositories in small: what once was reported and is right, and what is close to it and is not."""

from __future__ import annotations

import pytest

from distlint.engine import check_source
from distlint.rules import RULES

RIGHT = [
    (
        "DL101",
        """\
import torch.distributed as dist

def load(path, everywhere=False):
    if everywhere:
        dist.barrier()
    return path.read()

def main(path, rank):
    if rank == 0:
        return load(path)
    return None
""",
    ),
    (
        "DL101",
        """\
def main(fabric, model, batches, group):
    if fabric.global_rank == 0:
        play(fabric, batches, group)
    else:
        train(fabric, model, batches)

def play(fabric, batches, group):
    for batch in batches:
        print(batch)

def train(fabric, model, batches):
    for batch in batches:
        fabric.backward(model(batch))
""",
    ),
    (
        "DL101",
        """\
import torch.distributed as dist

def serve(rank, server, request):
    if rank == 0:
        dist.broadcast(request, 0)
        server.generate(request)
        dist.broadcast(request, 0)
    else:
        server.generate_other_ranks()
    if rank != 0:
        server.follow()
        return
    dist.broadcast(request, 0)
""",
    ),
    (
        "DL101",
        """\
import torch.distributed as dist

def load(args, evaluate):
    if args.local_rank not in [-1, 0] and not evaluate:
        dist.barrier()
    data = read(args)
    if args.local_rank == 0 and not evaluate:
        dist.barrier()
    return data
""",
    ),
    (
        "DL101",
        """\
import pytest
import torch.distributed as dist

@pytest.mark.parametrize("rank_zero_only", [True, False])
def test_barrier(rank_zero_only):
    dist.barrier()
""",
    ),
    (
        "DL103",
        """\
import torch.distributed as dist

def validate(model, val_loader, most):
    batches = enumerate(val_loader)
    for index, batch in batches:
        loss = model(batch)
        dist.all_reduce(loss)
        if index + 1 >= most:
            break
""",
    ),
    (
        "DL103",
        """\
from itertools import cycle
import torch.distributed as dist

def train(model, train_loader, parts):
    for batch, part in zip(train_loader, cycle(range(1, parts + 1))):
        loss = model(batch)
        if part == parts:
            dist.all_reduce(loss)
""",
    ),
    (
        "DL005",
        """\
from collections import defaultdict
import tensorflow as tf

class Speed(tf.keras.callbacks.Callback):
    def __init__(self, every):
        self.every = defaultdict(lambda: every)
""",
    ),
    (
        "DL001",
        """\
from torch import nn

class Ensemble(nn.Module):
    def __init__(self, models):
        super().__init__()
        self.parts = nn.ModuleList(model.to(f"cuda:{index}") for index, model in enumerate(models))
""",
    ),
    (
        "DL001",
        """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def make(self, shape):
        if self.args.accelerator.upper() == "GPU":
            return torch.empty(shape, device="cuda")
        return torch.empty(shape)
""",
    ),
    (
        "DL208",
        """\
from torch.utils.data import DataLoader, DistributedSampler

def train(model, path, epochs):
    for epoch in range(epochs):
        data = read(path, epoch)
        sampler = DistributedSampler(data)
        loader = DataLoader(data, sampler=sampler)
        for batch in loader:
            model(batch)
""",
    ),
    (
        "DL201",
        """\
from lightning.pytorch import LightningModule

def compute_f1(candidates, references):
    scores = []
    for candidate, reference in zip(candidates, references):
        scores.append(overlap(candidate, reference))
    score = sum(scores) / float(len(candidates))
    return score

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("f1", compute_f1(self.generate(batch), batch.answers), sync_dist=True)
""",
    ),
]
WRONG = [
    (
        "DL202",
        [4],
        """\
class Model(L.LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

trainer = L.Trainer(strategy="ddp")
""",
    ),
    (
        "DL101",
        [4],
        """\
def train(accelerator, step, every, most):
    if accelerator.is_main_process:
        if step % every == 0:
            accelerator.save_state("step")
    if step >= most:
        accelerator.save_state("last")
""",
    ),
    (
        "DL103",
        [9],
        """\
import torch
import torch.distributed as dist

def train(model, train_loader, names):
    for name, batch in zip(names, train_loader):
        loss = model(batch)
        if not torch.isfinite(loss):
            continue
        dist.all_reduce(loss)
""",
    ),
    (
        "DL208",
        [4],
        """\
from torch.utils.data import DataLoader, DistributedSampler

def train(model, data, epochs):
    for epoch in range(epochs):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, sampler=sampler)
        for batch in loader:
            model(batch)
""",
    ),
    (
        "DL001",
        [7],
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def merge(self, parts):
        self.cpu()
        merged = sum(parts)
        self.cuda()
        return merged
""",
    ),
    (
        "DL001",
        [5],
        """\
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        y = x.cuda()
        return self.layer(y), y.cpu()
""",
    ),
]


@pytest.mark.parametrize(("code", "source"), RIGHT)
def test_right_code_is_not_reported(code: str, source: str) -> None:
    assert [found.line for found in check_source(source.encode(), "x.py", [RULES[code]])] == []


@pytest.mark.parametrize(("code", "lines", "source"), WRONG)
def test_what_is_wrong_is_reported_once(code: str, lines: list[int], source: str) -> None:
    assert [found.line for found in check_source(source.encode(), "x.py", [RULES[code]])] == lines

"""What distlint reports and what it leaves alone: whole programs, each fault marked at its line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.acceptance import python

LIGHTNING = """\
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import F1Score
class Model(LightningModule):
    def __init__(self):
        super().__init__(); self.f1 = F1Score("binary"); self.right = F1Score("binary")
        self.table = torch.eye(3)  # DL003
        self.moved = torch.eye(3); self.register_buffer("mean", torch.zeros(3))
        self.kept = []; self.cleared = []
    def training_step(self, batch, batch_idx):
        x, y = batch
        noisy = x + torch.rand(3).cuda()  # DL001
        moved = x + torch.rand(3).to(x.device) + torch.rand(3, device=self.device)
        turned = x @ self.table + x @ self.moved.to(x.device) + self.mean
        loss = F.cross_entropy(self.net(noisy + moved + turned), y)
        self.log("loss", loss, sync_dist=True)  # DL302
        self.log("epoch_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        if batch_idx % 100 == 0: self.log("seldom", loss, sync_dist=True)
        return loss
    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        f1 = f1_score(y.cpu(), self(x).argmax(-1).cpu())
        self.log("score", f1, sync_dist=True)  # DL201
        self.log("val_loss", loss)  # DL202
        self.log("first", loss, rank_zero_only=True)  # DL203
        self.log("f1", self.f1(self(x), y))  # DL204
        self.log("synced", loss, sync_dist=True)
        self.log("each", loss, on_step=True, on_epoch=False)
        self.log("all", self.all_gather(loss).mean(), rank_zero_only=True)
        self.right.update(self(x), y); self.log("right_f1", self.right, sync_dist=True)
        self.cleared.append(x)
        self.kept.append(x)  # DL301
    def on_validation_epoch_end(self):
        print(torch.mean(self.all_gather(self.cleared)))  # DL209
        x = torch.mean(self.all_gather(torch.stack(self.cleared)))
        self.cleared.clear()
        if self.trainer.is_global_zero:
            print(torch.cat(self.kept).mean(), x)
            print(self.all_gather(self.mean))  # DL101
    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("score", self.scale.mean(), sync_dist=True)  # DL101 or DL102
            self.log("spread", self.scale.std(), rank_zero_only=True)
    def predict_step(self, batch, batch_idx):
        shifted = batch + torch.ones(3)  # DL002
        return shifted, batch * torch.tensor(0.5) + torch.ones(3, device=batch.device)
class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, sampler=DistributedSampler(self.train))  # DL004
    def val_dataloader(self): return DataLoader(self.val)
def show(x): print(x.cuda())
def train(model, train_set, epochs):
    sampler = DistributedSampler(train_set)
    for epoch in range(epochs):
        sampler.set_epoch(epoch); loader = DataLoader(train_set, sampler=sampler)
        for x, y in loader: model(x, y).backward()
trainer = Trainer(devices=4, strategy="ddp", callbacks=[ModelCheckpoint(monitor="score")])
trainer.fit(Model(), datamodule=Data())
"""
TORCH = """\
import torch, wandb
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
def wait(): dist.barrier()
def save(model, path):
    if dist.get_rank() != 0: return
    model.write(path)
    dist.barrier()  # DL101
def reduce(scores):
    main = dist.get_rank() == 0
    return dist.all_reduce(scores) if main else None  # DL101
def help(rank):
    if rank == 0: wait()  # DL101
def tell(rank, scores):
    rank == 0 and dist.broadcast(scores, 0)  # DL101
def right(rank, download, scores, group):
    if rank == 0:
        dist.barrier()
    else:
        dist.barrier()
    if rank != 0: dist.barrier()
    download()
    if rank == 0: dist.barrier()
    if rank == 0: dist.all_reduce(scores, group=group)
    if dist.get_world_size() > 1: dist.barrier()
def train(net, loader, train_set, epochs):
    model = DDP(net)
    mixed = DataLoader(train_set, sampler=DistributedSampler(train_set))
    for epoch in range(epochs):  # DL208
        for x, y in mixed: model(x, y).backward()
    for x, y in loader:
        loss = model(x, y)
        if torch.isnan(loss): continue  # DL110
        loss.backward()
    for x, y in loader:
        bad = torch.isnan(x).any().float()
        dist.all_reduce(bad)
        if bad > 0: continue
        model(x, y).backward()
    for x, y in loader:
        try: model(x, y).backward()
        except RuntimeError: continue  # DL109
        try: model(x, y).backward()
        except RuntimeError: raise ValueError(x)
    for step, (x, y) in enumerate(loader):
        loss = model(x, y)
        loss.backward()
        shown, seldom = loss.detach(), loss.detach()
        dist.all_reduce(shown)  # DL304
        wandb.log({"loss": shown})
        if step % 100 == 0:
            dist.all_reduce(seldom); wandb.log({"seldom": seldom})
def evaluate(model, test_set):
    for x in DataLoader(test_set, sampler=DistributedSampler(test_set)):  # DL205
        print(model(x).mean())
    for x in DataLoader(test_set, sampler=DistributedSampler(test_set, shuffle=False)):
        print(model(x).mean())
def validate(model, loader):
    accelerator = Accelerator()
    total = sum(model(**batch).loss for batch in loader)
    accelerator.reduce(total, reduction="sum")  # DL212
    accelerator.log({"own": total, "all": accelerator.reduce(total, reduction="sum")})
class Rows(Dataset):
    def __init__(self, scale, names):
        self.scale = lambda x: x * scale  # DL005
        self.names = sorted(names, key=lambda name: -len(name))
def work(rank, x):
    DataLoader(x, collate_fn=lambda y: y, num_workers=2, multiprocessing_context="spawn")  # DL005
    DataLoader(x, collate_fn=lambda y: y, num_workers=0)
    DataLoader(x, collate_fn=work, num_workers=2, multiprocessing_context="spawn")
if __name__ == "__main__":
    mp.spawn(work, args=(Rows(2, []),), nprocs=2)
"""
REPLICAS = """\
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy
class Model(LightningModule):
    def __init__(self):
        super().__init__(); self.lost, self.counted = Accuracy("binary"), Accuracy("binary")
    def validation_step(self, batch, batch_idx):
        self.lost.update(self(batch[0]), batch[1])  # DL211
        return self(batch[0]), batch[1]
    def validation_step_end(self, outputs): self.counted.update(*outputs)
model = Model()
Trainer(devices=2, strategy="dp").fit(model)
"""
PROGRAMS = {"lightning": LIGHTNING, "torch": TORCH, "replicas": REPLICAS}


def write(folder: Path, settings: str = "", **files: str) -> Path:
    """Write Python files, ``src__a`` for ``src/a.py``, and ``[tool.distlint]``."""
    texts = {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
    for name, text in {"pyproject.toml": f"[tool.distlint]\n{settings}", **texts}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def found(folder: Path, options: str = "") -> list[tuple[str, int, str]]:
    """The path, line and code of each finding."""
    command = f"-m distlint check --output-format json {options}"
    done = python(*command.split(), cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    findings = [(each["path"], each["line"], each["code"]) for each in json.loads(done.stdout)]
    assert done.returncode == bool(findings)
    return findings


def marks(program: str) -> dict[int, str]:
    """The codes of faults by their lines."""
    lines = enumerate(program.splitlines(), 1)
    return {number: mark[1] for number, line in lines if (mark := re.search("# (DL.*)", line))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_fault_is_reported_at_its_line_and_nothing_else(tmp_path: Path, name: str) -> None:
    marked = marks(PROGRAMS[name])
    findings = [(line, code) for _, line, code in found(write(tmp_path, main=PROGRAMS[name]))]
    assert [line for line, _ in findings] == [*marked]  # one finding a line
    assert all(code in marked[line].split(" or ") for line, code in findings)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("trainer = Trainer(", "trainer = Trainer(use_distributed_sampler=False, "),
        ("sampler=DistributedSampler(self.train))  # DL004", "shuffle=True)"),
    ],
)
def test_a_sampler_of_ones_own_is_right_where_the_trainer_is_told(
    tmp_path: Path, before: str, after: str
) -> None:
    assert before in LIGHTNING
    findings = found(write(tmp_path, main=LIGHTNING.replace(before, after)))
    assert "DL004" not in {code for *_, code in findings}


def test_fix_mends_what_is_safe_to_mend_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    after = {code for *_, code in found(write(tmp_path, main=LIGHTNING), "--fix")}
    assert after <= {"DL001", "DL004", "DL101", "DL102", "DL201", "DL203", "DL209", "DL302"}
    text = (tmp_path / "main.py").read_text()
    for line in """shifted = batch + torch.ones(3, device=batch.device)  # DL002
        self.register_buffer("table", torch.eye(3), persistent=False)  # DL003
        self.log("val_loss", loss, sync_dist=True)  # DL202
        self.f1.update(self(x), y)
        self.log("f1", self.f1)  # DL204
        self.kept.clear()""".splitlines():
        assert line in text
    assert ast.parse(text)
    assert re.findall("  # .*", text) == re.findall("  # .*", LIGHTNING)
    assert len({*LIGHTNING.splitlines()} - {*text.splitlines()}) <= 5
    assert {code for *_, code in found(tmp_path, "--fix")} == after
    assert (tmp_path / "main.py").read_text() == text


def test_unsafe_fixes_and_diff_are_asked_for(tmp_path: Path) -> None:
    def run(options: str, status: int) -> str:
        command = f"-m distlint check --select DL001,DL004,DL202 {options}"
        done = python(*command.split(), cwd=write(tmp_path, main=LIGHTNING))
        assert done.returncode == status
        return done.stdout

    patch = run("--diff", status=1)
    assert '+        self.log("val_loss", loss, sync_dist=True)  # DL202' in patch
    assert not {"cuda", "Sampler"} & set(re.findall(r"\w+", patch))
    patch = run("--diff --unsafe-fixes", status=1)
    assert "-        noisy = x + torch.rand(3).cuda()" in patch
    assert "+        return DataLoader(self.train, shuffle=True)  # DL004" in patch
    assert (tmp_path / "main.py").read_text() == LIGHTNING
    run("--fix --unsafe-fixes", status=0)
    assert "noisy = x + torch.rand(3).cuda()" not in (tmp_path / "main.py").read_text()

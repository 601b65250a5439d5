"""What distlint makes of whole projects, of newer syntax, and of what it once got wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance import python

MODEL = """\
import torch.nn.functional as F
from lightning.pytorch import LightningModule
class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))
"""
FIT = 'from lightning.pytorch import Trainer\nTrainer(strategy="ddp", devices=4).fit(Model())\n'
MONITORED = """\
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
class Model(LightningModule):
    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("score", self.scale.mean())
Trainer(devices=4, strategy="ddp", callbacks=[ModelCheckpoint(monitor="score")]).fit(Model())
"""
EPOCHS = """\
from torch.utils.data import DataLoader, DistributedSampler
def train(model, optimizer, dataset, epochs):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
            optimizer.step()
"""
SAVE = """\
import torch.distributed as dist
def save(name: str):
    print(f"saving {name}")
    if dist.get_rank() == 0:
        dist.barrier()
"""


def shown(folder: Path, **files: str) -> list[str]:
    """Write modules; return what distlint shows of them by default, as path, line and code."""
    (folder / "pyproject.toml").write_text('[project]\nname = "project"\n')
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ended = python("-m", "distlint", "check", ".", "--output-format", "concise", cwd=folder)
    assert ended.returncode in (0, 1)
    found = [line.partition(" ") for line in ended.stdout.splitlines() if ".py:" in line]
    return [f"{place.rsplit(':', 2)[0]} {text[:5]}" for place, _, text in found]


def test_facts_of_code_and_settings_are_told_with_their_places(tmp_path: Path) -> None:
    settings = "trainer:\n  devices: 4\n  # devices: 8\nmonitor: val_loss\n"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ddp.yaml").write_text(settings)
    assert shown(tmp_path, model=MODEL) == ["model.py:5 DL202"]
    told = python("-m", "distlint", "facts", "model.py", cwd=tmp_path).stdout.splitlines()
    assert [line for line in told if "several devices" in line] == [
        "configs/ddp.yaml:2: several devices, by devices: devices: 4"
    ]
    assert "configs/ddp.yaml:4: monitors: monitor: val_loss" in told


def test_what_waits_for_several_devices_is_counted_in_the_last_line(tmp_path: Path) -> None:
    assert shown(tmp_path, model=MODEL) == []
    told = python("-m", "distlint", "check", ".", cwd=tmp_path).stderr.splitlines()[-1]
    assert told.startswith('1 finding waits for devices = "many" in [tool.distlint]')


def test_a_retired_code_is_told_and_is_no_error(tmp_path: Path) -> None:
    settings = '[tool.distlint]\nignore = ["DL107"]\n'
    (tmp_path / "job.py").write_text(f"{SAVE[:-1]}  # distlint: ignore[DL103]\n")
    (tmp_path / "pyproject.toml").write_text(settings)
    ended = python("-m", "distlint", "check", ".", "--output-format", "concise", cwd=tmp_path)
    assert ended.returncode == 1
    assert re.findall(r"^\S+: (DL\d+) ", ended.stdout, re.MULTILINE) == ["DL101", "DL900"]
    assert "DL103 is retired" in ended.stdout
    assert "DL107 is retired" in ended.stderr
    assert "retired" in python("-m", "distlint", "explain", "DL103", cwd=tmp_path).stdout


def test_a_trainer_in_another_file_speaks_for_the_module(tmp_path: Path) -> None:
    together = shown(tmp_path, model=MODEL + FIT)
    assert together == ["model.py:5 DL202"]
    assert shown(tmp_path, model=MODEL, train="from model import Model\n" + FIT) == together


def test_a_monitored_log_of_one_rank_is_told_and_mended(tmp_path: Path) -> None:
    assert shown(tmp_path, model=MONITORED) == ["model.py:6 DL102"]
    python("-m", "distlint", "check", ".", "--fix", "--unsafe-fixes", cwd=tmp_path)
    mended = (tmp_path / "model.py").read_text()
    # On every rank: callbacks of each of them read the name.
    assert '        self.log("score", self.scale.mean())\n' in mended.splitlines(keepends=True)
    assert shown(tmp_path, model=mended) == []


def test_a_comment_is_no_call_of_set_epoch(tmp_path: Path) -> None:
    without = shown(tmp_path, train=EPOCHS)
    assert "DL208" in str(without)
    assert shown(tmp_path, train=EPOCHS + "# TODO: set_epoch\n") == without


@pytest.mark.parametrize(("was", "new"), [("save(", "save[T]("), ("{name}", '{f"{name}"}')])
def test_newer_syntax_than_the_hosts_is_read(was: str, new: str, tmp_path: Path) -> None:
    older = shown(tmp_path, job=SAVE)
    assert older == ["job.py:5 DL101"]
    assert shown(tmp_path, job=SAVE.replace(was, new)) == older

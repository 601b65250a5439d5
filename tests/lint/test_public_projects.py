"""What other files of public repositories say: of Lightning's release, of devices, of who moves a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from tests.lint.helpers import lines

CALLBACK = """\
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities import rank_zero_only
{more}

class Save(Callback):
    @rank_zero_only
    def on_train_epoch_end(self, trainer, pl_module):
        trainer.save_checkpoint("epoch.ckpt")
"""
OLD = "import pytorch_lightning as pl\npl.Trainer(gpus=4).fit(model)\n"
HOOK = """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_epoch_end(self, outputs):
        pass
"""


def _codes(folder: Path, files: dict[str, str], code: str, capsys: pytest.CaptureFixture[str]) -> int:
    for name, text in {"pyproject.toml": "", **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    main(["check", str(folder), "--review", "--select", code, "--no-cache"])
    return capsys.readouterr().out.count(f" {code} ")


@pytest.mark.parametrize(
    ("more", "files", "expected"),
    [
        ("", {}, 1),
        ("", {"train.py": OLD}, 0),
        ("", {"model.py": HOOK}, 0),
        ("", {"train.py": "import pytorch_lightning as pl\npl.Trainer.from_argparse_args(args)\n"}, 0),
        ("", {"train.py": "from pytorch_lightning.plugins import DDPPlugin\n"}, 0),
        ("", {"train.py": "from . import pytorch_lightning\nTrainer(gpus=4)\n"}, 1),
        ("", {"train.py": "from transformers import Trainer\nTrainer(resume_from_checkpoint=path)\n"}, 1),
        # what Lightning 2.0 brought
        ("", {"train.py": OLD, "other.py": "import lightning as L\n"}, 1),
        ("", {"train.py": OLD, "other.py": "import pytorch_lightning as pl\npl.Trainer(precision='16-mixed')\n"}, 1),
        ("", {"train.py": OLD + "pl.Trainer(use_distributed_sampler=False)\n"}, 1),
        # what shards states
        ("", {"train.py": OLD + "strategy = 'deepspeed_stage_2'\n"}, 1),
        ("", {"train.py": OLD + "from pytorch_lightning.strategies import DDPFullyShardedStrategy\n"}, 1),
        ("", {"train.py": OLD, "conf/trainer.yaml": "strategy: fsdp\n"}, 1),
        ("", {"train.py": OLD, "conf/trainer.yaml": "strategy: ddp\n"}, 0),
        ("STRATEGY = 'ddp_sharded'", {"train.py": OLD}, 1),
    ],
)
def test_a_project_for_a_lightning_that_saves_alone(
    tmp_path: Path, more: str, files: dict[str, str], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _codes(tmp_path, {"callbacks.py": CALLBACK.format(more=more), **files}, "DL101", capsys) == expected


def test_another_release_is_another_answer_of_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "callbacks.py").write_text(CALLBACK.format(more=""))
    for train, expected in (("", 1), (OLD, 0), ("", 1)):
        (tmp_path / "train.py").write_text(train)
        assert main(["check", str(tmp_path), "--select", "DL101", "--cache-dir", str(tmp_path / "kept")]) == expected


PROBE = """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def on_train_epoch_end(self):
        if self.global_rank == 0:
            self.probe()

    def probe(self):
        trainer = pl.Trainer({arguments})
        trainer.fit(self.other, self.loader)
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("devices=1", []),
        ("devices=[self.gpu]", []),
        ("gpus=self.options.gpu_ids", [6]),
        ("devices=[self.gpu], num_nodes=2", [6]),
        ("devices=self.devices", [6]),
    ],
)
def test_a_trainer_of_one_rank_s_own(arguments: str, expected: list[int]) -> None:
    assert lines(PROBE.format(arguments=arguments), "DL101") == expected


MODEL = """\
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))
"""
TRAIN = """\
import os
import lightning.pytorch as pl
from model import Model
{visible}

pl.Trainer(max_epochs=3{more}).fit(Model())
"""


@pytest.mark.parametrize(
    ("visible", "more", "expected"),
    [
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '3'", "", 0),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '3'", ", devices=1", 0),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '3'", ", devices=4, accelerator='cpu'", 1),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '3'", ", num_nodes=2", 1),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'", "", 1),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = args.gpus", "", 1),
        ("os.environ['CUDA_DEVICE_ORDER'] = '0'", "", 1),
        ("if debug:\n    os.environ['CUDA_VISIBLE_DEVICES'] = '0'", "", 1),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'", "", 1),
    ],
)
def test_a_program_that_sees_one_gpu(
    tmp_path: Path, visible: str, more: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    train = TRAIN.format(visible=visible, more=more)
    assert _codes(tmp_path, {"model.py": MODEL, "train.py": train}, "DL202", capsys) == expected


FROM_SETTINGS = (
    "from hydra.utils import instantiate\nfrom lightning import Trainer\ntrainer = instantiate(cfg.trainer)\n"
)
STARRED = "import lightning as L\nL.Trainer(**cfg.trainer).fit(load(cfg.model))\n"
ONE, SOME = "trainer:\n  devices: 1  # GPU\n  strategy: auto\n", "trainer:\n  max_epochs: 3\n"


@pytest.mark.parametrize(
    ("train", "settings", "expected"),
    [
        (FROM_SETTINGS, {"a.yaml": ONE}, 0),
        (STARRED, {"a.yaml": ONE}, 0),
        (STARRED, {"a.yaml": "gpus: [2]\n"}, 0),
        (STARRED, {"a.json": '{"devices": 1, "num_nodes": 1}'}, 0),
        (STARRED, {"a.yaml": ONE, "run.sh": "python train.py trainer.devices=[1] epochs=3\n"}, 0),
        ("", {"a.yaml": "_target_: lightning.Trainer\ndevices: 1\n"}, 0),
        (STARRED, {"a.yaml": SOME}, 1),
        (FROM_SETTINGS, {"a.yaml": SOME}, 1),
        (STARRED, {"a.yaml": "devices: auto\n"}, 1),
        (STARRED, {"a.yaml": "devices: [0, 1]\n"}, 1),
        (STARRED, {"a.yaml": "devices:\n  - 0\n  - 1\n"}, 1),
        (STARRED, {"a.yaml": ONE, "b.yaml": "devices: 4\n"}, 1),
        (STARRED, {"a.yaml": ONE, "b.yaml": "strategy: ddp\n"}, 1),
        (STARRED, {"a.yaml": ONE, "b.yaml": "num_nodes: 2\n"}, 1),
        (STARRED, {"a.yaml": ONE, "run.sh": "python train.py trainer.devices=4\n"}, 1),
        (STARRED, {"a.yaml": ONE, "run.sh": "torchrun --nproc_per_node 8 train.py\n"}, 1),
        (STARRED.replace("**", "strategy='ddp', **"), {"a.yaml": ONE}, 1),
        (STARRED + "L.Trainer(devices=2)\n", {"a.yaml": ONE}, 1),
        ("import lightning as L\nL.Trainer(devices=2)\n", {"a.yaml": ONE}, 1),
    ],
)
def test_devices_that_settings_give(
    tmp_path: Path, train: str, settings: dict[str, str], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a module that nothing imports, since settings name it."""
    assert _codes(tmp_path, {"model.py": MODEL, "train.py": train, **settings}, "DL202", capsys) == expected


def test_one_device_waits_for_nobody_in_a_step() -> None:
    source = MODEL.replace("validation", "training").replace("batch))", "batch), sync_dist=True)")
    assert lines(source, "DL302") == [5]
    assert lines(source + "pl.Trainer(devices=2)\n", "DL302") == [5]
    assert lines(source + "pl.Trainer(devices=1)\n", "DL302") == []


PARTS = """\
import torch
from torch import nn

class Embed(nn.Module):
    def forward(self, x, waves):
        waves = scale(waves)
        {move}
        return x * waves
"""
WHOLE = """\
import torch
from torch import nn
from parts import Embed

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = {made}

    def forward(self, x, waves):
        return self.embed(x, waves)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x):
        waves = torch.tensor([1.0, 2.0])
        return self.decoder(x, waves)
"""
MOVES, STAYS = "waves = waves.to(x.device)", "waves = waves.float()"


@pytest.mark.parametrize(
    ("move", "made", "expected"),
    [(MOVES, "Embed()", 0), (MOVES, "Embed().half()", 0), (STAYS, "Embed()", 1), (MOVES, "nn.Bilinear(2, 2, 2)", 1)],
)
def test_a_module_that_hands_on_to_one_that_moves(
    tmp_path: Path, move: str, made: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"parts.py": PARTS.format(move=move), "whole.py": WHOLE.format(made=made)}
    assert _codes(tmp_path, files, "DL002", capsys) == expected
    joined = files["parts.py"] + files["whole.py"].replace("from parts import Embed\n", "")
    assert len(lines(joined, "DL002")) == expected

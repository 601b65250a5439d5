"""DL202 where every trainer is made for one device, and what a callback is given that is no data."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from distlint.cli import main
from distlint.facts.trainers import ONE, OTHER, read_devices
from tests.lint.helpers import check, lines

MODULE = """\
import torch
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))
"""
BEFORE_2 = """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def validation_epoch_end(self, outputs):
        self.epochs += 1
"""


@pytest.mark.parametrize(
    ("made", "is_one"),
    [
        ("pl.Trainer(devices=1)", True),
        ("pl.Trainer(devices='1', accelerator='auto', strategy='auto', num_nodes=1)", True),
        ("pl.Trainer(devices=[3])", True),
        ("pl.Trainer(gpus=1 if torch.cuda.is_available() else 0)", True),
        ("pl.Trainer(devices=min(1, torch.cuda.device_count()))", True),
        ("pl.Trainer(gpus=int(torch.cuda.is_available()))", True),
        ("pl.Trainer(gpus=int(torch.cuda.is_available() and data not in small))", True),
        ("pl.Trainer(gpus=int(torch.cuda.is_available() and wanted))", False),
        ("N = min(1, torch.cuda.device_count())\npl.Trainer(devices=N)", True),
        ("def main(use):\n    n = 1 if use else 0\n    pl.Trainer(gpus=n)", True),
        ("pl.Trainer(devices=1)\npl.Trainer(devices=2)", False),
        ("pl.Trainer(devices=1)\npl.Trainer(devices=config.devices)", False),
        ("pl.Trainer(devices=1, num_nodes=2)", False),
        ("pl.Trainer(devices=1, strategy='ddp')", True),
        ("pl.Trainer(gpus=1, accelerator='ddp')", True),
        ("pl.Trainer(devices=1, **more)", True),
        ("pl.Trainer(max_epochs=1, accelerator='cpu', **more)", False),
        ("pl.Trainer(gpus=8, accelerator='dp')", True),
        ("pl.Trainer(gpus=n, strategy='dp')", True),
        ("pl.Trainer(gpus=8, strategy='dp', num_nodes=2)", False),
        ("pl.Trainer(devices=[0, 1])", False),
        ("pl.Trainer(devices=2 if torch.cuda.is_available() else 1)", False),
        ("pl.Trainer(devices=min(2, torch.cuda.device_count()))", False),
        ("N = 1\nN = torch.cuda.device_count()\npl.Trainer(devices=N)", False),
        ("def main(n=1):\n    pl.Trainer(gpus=n)", False),
        ("for n in (1, 2):\n    pl.Trainer(devices=n)", False),
        ("pl.Trainer(devices=1)\nLightningCLI(Model)", False),
        ("devices = 1", False),
    ],
)
def test_trainers_of_the_file(made: str, is_one: bool) -> None:
    assert lines(MODULE + made + "\n", "DL202") == ([] if is_one else [6])


def test_trainers_of_another_kind_say_nothing() -> None:
    source = "from transformers import Trainer\nimport trl\nTrainer(model)\ntrl.Trainer(model)\n"
    assert read_devices(ast.parse(source)) == frozenset()
    assert read_devices(ast.parse(source + "import lightning as L\nL.Trainer(devices=1)\n")) == {ONE}
    assert read_devices(ast.parse(source + "import lightning as L\nL.Trainer()\n")) == {OTHER}


@pytest.mark.parametrize(
    ("files", "is_silent"),
    [
        ({"train.py": "import pl\nfrom model import Model\npl.Trainer(devices=1).fit(Model())\n"}, True),
        (
            {
                "train.py": "import pl\nfrom model import Model\npl.Trainer(devices=1)\n",
                "more.py": "import pl\npl.Trainer(devices=4)\n",
            },
            False,
        ),
        ({"train.py": "import pl\npl.Trainer(devices=4)\n"}, False),
        ({"train.py": "import pl\npl.Trainer(devices=1).fit(from_settings())\n"}, True),
        ({"train.py": "import pl\npl.Trainer(devices=1).fit(from_settings())\n", "run.sh": "torchrun a.py"}, False),
        ({"train.py": "import pl\npl.Trainer(max_epochs=3)\n"}, True),
        ({"train.py": "import lightning as L\nL.Trainer(max_epochs=3)\n"}, False),  # it takes all that it sees
        ({"train.py": "import pl\npl.Trainer(accelerator='cpu')\n"}, True),
        ({"train.py": "import pl\npl.Trainer(accelerator='gpu')\n"}, False),
        ({"train.py": "import pl\npl.Trainer(gpus=arguments.gpus)\n"}, False),
        ({"train.py": "import pl\npl.Trainer(max_epochs=3)\n", "a.py": "import torch.distributed\n"}, False),
        ({"train.py": "import pl\ndef made(n=1):\n    return pl.Trainer(devices=n)\n"}, True),
        ({"train.py": "import pl\ndef made(n=2):\n    return pl.Trainer(devices=n)\n"}, False),
        ({"train.py": "import pl\ndef made(n):\n    return pl.Trainer(devices=n)\n"}, False),
        ({"train.py": "import pl\nn = 1 if use else None\npl.Trainer(devices=n)\n"}, True),
        ({"train.py": "import pl\nif use:\n    n = 1\nelse:\n    n = None\npl.Trainer(devices=n)\n"}, True),
        ({"tests/test_model.py": "import pl\nfrom model import Model\npl.Trainer(devices=1)\n"}, False),
        ({"train_test.py": "import pl\nfrom model import Model\npl.Trainer(devices=1)\n"}, True),
        (
            {"train_test.py": "import pl\nfrom model import Model\ndef test_fit():\n    pl.Trainer(devices=1)\n"},
            False,
        ),
        (
            {
                "train.py": "import pl\nfrom model import Model\npl.Trainer(devices=1)\n",
                "a.yaml": "_target_: lightning.Trainer\n",
            },
            False,
        ),
        ({}, False),
        ({"loop.py": "from net import Net\nloss(Net()).backward()\n"}, True),  # nothing uses the module
        ({"loop.py": "from model import Model\nloss(Model()).backward()\n"}, False),
        ({"loop.py": "loss(Net()).backward()\n", "train.py": "import pl\npl.Trainer(devices=n)\n"}, False),
        (
            {"train.py": "import pl\npl.Trainer(devices=4).fit(make(name))\n", "a.yaml": "class_path: a.model.Model\n"},
            False,
        ),
        ({"train.py": "import pl\npl.Trainer(devices=4).fit(import_module(name).Model())\n"}, False),
        (
            {
                "train.py": "import pl\nfrom run import run\nrun(devices=4)\npl.Trainer(devices=4)\n",
                "model.py": MODULE + "\ndef make():\n    return Model()\n",
            },
            False,
        ),
        (
            {
                "train.py": "import pl\npl.Trainer(max_epochs=3)\n",
                "a.py": "import torch.distributed\n",
                "b.py": BEFORE_2,
            },
            False,
        ),
        ({"train.py": "import pl\npl.Trainer(max_epochs=3)\n", "model.py": BEFORE_2 + "# ddp\n"}, True),
        (
            {
                "train.py": "import pl\ndef made(n=1):\n    return pl.Trainer(devices=n)\n",
                "model.py": BEFORE_2 + "# ddp\n",
            },
            False,
        ),
        (
            {
                "train.py": "import other\nimport pl\npl.Trainer(devices=4).fit(other.Model())\n",
                "other.py": MODULE.replace("log", "note"),
            },
            True,
        ),
        ({"loop.py": "loss(Net()).backward()\n", "a.yaml": "_target_: lightning.Trainer\n"}, False),
    ],
)
def test_trainers_of_the_project(
    tmp_path: Path, files: dict[str, str], is_silent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"pyproject.toml": "", "model.py": MODULE, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path), "--review", "--select", "DL202", "--no-cache"]) == (0 if is_silent else 1)


@pytest.mark.parametrize(("devices", "is_silent"), [("1", True), ("8", False)])
def test_a_module_that_another_file_trains(
    tmp_path: Path, devices: str, is_silent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    train = f"import lightning as L\nfrom model import Model\nL.Trainer(devices={devices}).fit(Model())\n"
    files = {"model.py": MODULE + "pl.Trainer(devices=1).fit(Model())\n", "train.py": train, "pyproject.toml": ""}
    files["other.py"] = "import lightning as L\nL.Trainer(devices=2)\n"  # which has nothing to do with it
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path), "--review", "--select", "DL202", "--no-cache"]) == (0 if is_silent else 1)


CALLBACK = """\
import lightning.pytorch as pl

class Watch(pl.Callback):
    def on_validation_batch_end(self, {parameters}):
        {module}.log("value", {value})
"""


@pytest.mark.parametrize(
    ("parameters", "module", "value", "is_data"),
    [
        ("trainer, pl_module, outputs, batch", "pl_module", "pl_module.current_epoch", False),
        (
            "trainer, lightning_module: pl.LightningModule, outputs, batch",
            "lightning_module",
            "lightning_module.current_epoch",
            False,
        ),
        ("t, lightning_module: 'pl.LightningModule', outputs, batch", "lightning_module", "t.global_step", False),
        ("trainer, pl_module, module, batch", "pl_module", "module['loss']", True),
        ("trainer, lightning_module: pl.LightningModule, outputs, batch", "lightning_module", "outputs['loss']", True),
    ],
)
def test_what_a_callback_is_given(parameters: str, module: str, value: str, is_data: bool) -> None:
    source = CALLBACK.format(parameters=parameters, module=module, value=value)
    assert lines(source, "DL202") == ([5] if is_data else [])


@pytest.mark.parametrize(
    ("hook", "seen"),
    [
        ("validation_step(self, batch, batch_idx)", "of one batch on one rank"),
        ("validation_epoch_end(self, batch)", "of the batches on one rank"),
        ("on_validation_epoch_end(self, batch)", "of the batches on one rank"),
    ],
)
def test_what_the_value_of_a_metric_is_of(hook: str, seen: str) -> None:
    source = f"""\
        from lightning.pytorch import LightningModule
        from torchmetrics import AUROC

        class Model(LightningModule):
            def __init__(self):
                self.auc = AUROC(task="binary")

            def {hook}:
                self.log("auc", self.auc(batch, batch))
        """
    [found] = check(textwrap.dedent(source), "DL204")
    assert seen in found.message

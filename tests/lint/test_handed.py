"""DL001 and DL005 are sure of what is seen to be placed or pickled, and of nothing else."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from distlint.cli import main

NETS = """\
from torch import nn
from lightning.pytorch import LightningModule

class Base(LightningModule):
    def training_step(self, batch, batch_idx):
        return batch.cuda()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = lambda x: 2 * x

    def forward(self, x):
        return x.cuda()

class Model(Base):
    def __init__(self):
        super().__init__()
        self.net = Net()

class Unused(LightningModule):
    def __init__(self):
        super().__init__()
        self.scale = lambda x: 2 * x

    def training_step(self, batch, batch_idx):
        return batch.cuda()
"""
TRAINER = "import lightning.pytorch as pl\nfrom nets import Model, Unused\n"


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(code: str, **files: str) -> tuple[set[str], set[str]]:
        """By code, the classes whose findings are sure, given a main program."""
        monkeypatch.chdir(tmp_path)
        for name, text in {"nets": NETS, "main": textwrap.dedent(code), **files}.items():
            Path(f"{name}.py").write_text(text)
        capsys.readouterr()
        main(["check", ".", "--review", "--select", "DL001,DL005", "--output-format", "json"])
        found = json.loads(capsys.readouterr().out)
        assert sum(each["code"] == "DL001" for each in found) == 3
        sure = [each for each in found if each["confidence"] == "sure"]
        by_code = ([each["line"] for each in sure if each["code"] == code] for code in ("DL001", "DL005"))
        placed, pickled = ({_class(line) for line in lines} for lines in by_code)
        return placed, pickled

    return run


def _class(line: int) -> str:
    above = [text for text in NETS.splitlines()[:line] if text.startswith("class ")]
    return above[-1].removeprefix("class ").partition("(")[0]


@pytest.mark.parametrize(
    "program",
    [
        TRAINER + "pl.Trainer(devices=2).fit(Model())",
        TRAINER + "def main():\n    trainer = pl.Trainer(strategy='ddp')\n    model = Model()\n    trainer.fit(model)",
        TRAINER + "model = Model.load_from_checkpoint(p)\ntrainer = pl.Trainer(devices=n)\ntrainer.test(model.eval())",
        TRAINER + "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)",
        "import nets\nfrom lightning import Fabric\nfabric = Fabric()\nmodel = fabric.setup(nets.Model())",
        "from nets import Model\nfrom accelerate import Accelerator\na = Accelerator()\nmodel = a.prepare(Model())",
        "from nets import Model\nfrom transformers import Trainer\nTrainer(model=Model()).train()",
        TRAINER + "class Run:\n    def a(self):\n        self.t = pl.Trainer(devices=2)\n"
        "        self.m = Model()\n    def b(self):\n        self.t.fit(self.m)",
    ],
)
def test_what_a_trainer_is_given_is_placed(seen, program: str) -> None:
    """With its bases, and with the networks that it makes for itself."""
    assert seen(program) == ({"Base", "Net"}, set())


@pytest.mark.parametrize(
    "program",
    [
        TRAINER + "Model().cuda()\npl.Trainer(devices=2)",
        TRAINER + "pl.Trainer(devices=1).fit(Model())",
        "from nets import Model\nfrom mine import Trainer\nTrainer(devices=2).fit(Model())",
        "from nets import Model\nfrom sklearn.svm import SVC\nSVC().fit(Model())",
        "from nets import Model\ndef run(trainer):\n    trainer.fit(Model())",
        TRAINER + "def f():\n    model = Model()\ndef g(model):\n    pl.Trainer(devices=2).fit(model)",
    ],
)
def test_what_is_not_seen_to_be_placed(seen, program: str) -> None:
    assert seen(program) == (set(), set())


@pytest.mark.parametrize(
    "program",
    [
        "import torch\nfrom nets import Model\nmodel = Model()\ntorch.save(model, p)",
        "import torch.multiprocessing as mp\nfrom nets import Model\nmp.spawn(f, args=(Model(), 1))",
    ],
)
def test_what_is_pickled(seen, program: str) -> None:
    assert seen(program) == (set(), {"Net"})


def test_trainers_that_spawn_pickle_what_they_place(seen) -> None:
    program = TRAINER + "pl.Trainer(strategy='ddp_spawn').fit(Model())"
    assert seen(program) == ({"Base", "Net"}, {"Net"})


def test_state_dicts_are_not_the_object(seen) -> None:
    program = "import torch\nfrom nets import Model\nmodel = Model()\ntorch.save({'model': model.state_dict()}, p)"
    assert seen(program) == (set(), set())


@pytest.mark.parametrize(
    ("context", "main_program", "is_sure"),
    [
        ("", "", False),
        ("", "import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n", False),
        ("", "import data\nimport torch.multiprocessing as mp\nmp.set_start_method('spawn')\n", True),
        (", multiprocessing_context='spawn'", "", True),
        (", multiprocessing_context='fork'", "", False),
    ],
)
def test_what_spawned_workers_are_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    context: str,
    main_program: str,
    is_sure: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = f"""\
from torch.utils.data import DataLoader, Dataset

class Tiles(Dataset):
    def __init__(self):
        self.remap = lambda x: x

loader = DataLoader(Tiles(), num_workers=2, collate_fn=lambda x: x{context})
"""
    Path("data.py").write_text(source)
    Path("main.py").write_text(main_program)
    main(["check", ".", "--review", "--select", "DL005", "--output-format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert [(each["line"], each["confidence"] == "sure") for each in found] == [(5, is_sure), (7, is_sure)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import model", [6, 9]),
        ("import model\nfrom accelerate import Accelerator", []),
        ("import model\nfrom accelerate import Accelerator\nimport lightning", [6, 9]),
        ("import model\nimport torch.distributed as dist\ndist.init_process_group('nccl')\nmp.spawn(f)", [6, 9]),
    ],
)
def test_modules_of_a_project_that_is_launched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    expected: list[int],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = lambda x: x

    def forward(self, x):
        return x.cuda()
"""
    Path("model.py").write_text(source)
    Path("main.py").write_text(program)
    main(["check", ".", "--review", "--select", "DL001,DL005", "--output-format", "json"])
    assert [each["line"] for each in json.loads(capsys.readouterr().out)] == expected

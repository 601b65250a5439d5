"""What Lightning does with code of public repositories: when it waits, what it keeps, in small."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

SAVE = """\
{imports}

class Setup({base}):
{hooks}
    def on_exception(self, trainer, pl_module, error):
        if trainer.global_rank == 0:
            trainer.save_checkpoint("last.ckpt")

def main(trainer):
    try:
        trainer.fit()
    except Exception:
        trainer.save_checkpoint("last.ckpt")
        raise
"""
HOOK = "    def on_fit_start(self, trainer, pl_module):\n        pass\n"


def _saved(imports: str = "from pytorch_lightning import Callback, Trainer", hooks: str = HOOK) -> list[int]:
    return lines(SAVE.format(imports=imports, base="Callback", hooks=hooks), "DL101", "DL106")


@pytest.mark.parametrize(
    "imports",
    [
        "from lightning.pytorch import Callback",
        "from pytorch_lightning import Callback, Trainer\ntrainer = Trainer(devices=2)",
        "from pytorch_lightning import Callback\nfrom pytorch_lightning.overrides import distributed",
        "from pytorch_lightning import Callback\nfrom lightning_fabric.utilities.distributed import all_gather_ddp",
        "from pytorch_lightning import Callback\nModel.add_argparse_args(parser)",
        # before 2.1 as well, where states are sharded
        "from pytorch_lightning import Callback, Trainer\ntrainer = Trainer(gpus=2, strategy='ddp_sharded')",
        "from pytorch_lightning import Callback\nfrom pytorch_lightning.lite import LightningLite as DeepSpeedLite",
    ],
)
def test_a_trainer_that_waits_when_it_saves(imports: str) -> None:
    assert len(_saved(imports)) == 2


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("class Callback:\n    pass", []),
        ("from project.callbacks import Callback", [9]),
        ("from lightning.pytorch import Callback", [9]),
    ],
)
def test_classes_that_a_trainer_of_the_project_drives(imports: str, expected: list[int]) -> None:
    source = SAVE.format(imports=imports, base="Callback", hooks=HOOK).partition("\ndef main")[0]
    assert [line - imports.count("\n") for line in lines(source, "DL101")] == expected


STEP = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def {hook}(self, batch, batch_idx):
        loss = self(batch)
        {before}
        self.log("loss", loss, sync_dist=True{how})
        {after}
"""
LEAVES = "if loss.isnan():\n            return None"


@pytest.mark.parametrize(
    ("hook", "how", "after", "expected"),
    [
        ("training_step", "", "", [8]),
        ("training_step", ", on_step=True, on_epoch=True", "", [8]),
        ("training_step", ", on_step=False, on_epoch=True", "", []),
        ("training_step", ", on_step=self.often", "", [8]),
        ("validation_step", "", "", []),
        ("validation_step", ", on_step=True", "", [8]),
        ("validation_step", "", "self.all_gather(loss)", [9]),
        ("training_step", ", on_step=False", "self.log('first', loss, sync_dist=True)", [9]),
    ],
)
def test_a_log_for_the_epoch_after_a_step_that_some_leave(hook: str, how: str, after: str, expected: list[int]) -> None:
    source = STEP.format(hook=hook, before=LEAVES, how=how, after=after)
    assert lines(source, "DL103") == expected


@pytest.mark.parametrize("how", ["", ", on_step=False", ", on_step=True"])
@pytest.mark.parametrize("hook", ["training_step", "validation_step"])
def test_a_log_that_few_batches_come_to(hook: str, how: str) -> None:
    """None of a rank's may: then it misses the reduction at the epoch's end."""
    source = STEP.format(hook=hook, before="if loss > 9:", how=how, after="return loss").replace(
        "  self.log", "      self.log"
    )
    assert lines(source, "DL103") == [7]


KEEP = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.kept = []

    def {hook}(self, batch, batch_idx):
        self.kept.{grow}

    def {end}(self):
        show(self.kept)
"""


@pytest.mark.parametrize(
    ("hook", "grow", "expected"),
    [
        ("validation_step", "append(self(batch))", [9]),
        ("test_step", "extend(self(batch))", [9]),
        ("validation_step", "extend(self(batch).tolist())", []),
        ("validation_step", "extend(range(len(batch)))", []),
        ("validation_step", "append({'loss': self(batch).item(), 'size': len(batch)})", []),
        ("validation_step", "append({'loss': self(batch), 'size': len(batch)})", [9]),
        ("predict_step", "append(self(batch))", []),
    ],
)
def test_what_is_kept(hook: str, grow: str, expected: list[int]) -> None:
    end = f"on_{hook.removesuffix('_step')}_epoch_end"
    assert lines(KEEP.format(hook=hook, grow=grow, end=end), "DL301") == expected


FORWARD = """\
import lightning.pytorch as pl
from torchmetrics import Accuracy, AUROC

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.metric = {metric}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("metric", self.metric(self(x), y))

pl.Trainer(devices={devices})
"""
ACCURACY, AUROC = 'Accuracy(task="multiclass", num_classes=3)', 'AUROC(task="binary")'


@pytest.mark.parametrize(
    ("metric", "devices", "expected"),
    [(ACCURACY, 1, "review"), (ACCURACY, 2, "sure"), (AUROC, 1, "sure"), (AUROC, 2, "sure")],
)
def test_a_metric_s_batches_on_one_device(metric: str, devices: int, expected: str) -> None:
    """The mean over batches is right for accuracy, and for AUROC on one device as wrong as on two."""
    (found,) = check(FORWARD.format(metric=metric, devices=devices), "DL204")
    assert (found.line, found.confidence) == (11, expected)

"""Metrics in plain containers, and values of a callback's own loaders, as public repositories have them, in small."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

MODULE = """\
import torch
import torchmetrics
from pytorch_lightning import LightningModule
from torchmetrics import Accuracy
from .metrics import Retrieval

class Lists(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("seen", default=[], dist_reduce_fx="cat")

def make():
    return Accuracy(task="binary")

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.metrics = {made}

    def validation_step(self, batch, batch_idx):
        x, y = self(batch), batch["y"]
        kept = x.detach().cpu()
        {step}

    def on_validation_epoch_end(self):
        {end}
"""
MADE = "{name: Accuracy(task='binary') for name in ('a', 'b')}"
STEP = "self.metrics[batch['name']].update(x, y)"
RESET = "self.metrics['a'].reset()"
BOTH = "never moved to the device and never reset"


def _messages(made: str, step: str, end: str) -> list[str]:
    source = MODULE.replace("{made}", made).replace("{step}", step).replace("{end}", end)
    return [found.message for found in check(source, "DL210")]


@pytest.mark.parametrize(
    "end",
    [
        RESET,
        "for key in self.metrics: self.metrics[key].reset()",
        "for metric in self.metrics.values(): metric.reset()",
        "for i, (name, metric) in enumerate(self.metrics.items()): metric.reset()",
        "[metric.reset() for metric in self.metrics.values()]",
        "metrics = self.metrics\n        for metric in metrics.values(): metric.reset()",
        "metric = self.metrics['a']\n        metric.reset()",
        "self.metrics.get('a').reset()",
    ],
)
def test_metrics_that_the_class_resets(end: str) -> None:
    [message] = _messages(MADE, STEP, end)
    assert "never moved to the device:" in message
    assert "reset" not in message
    assert message.endswith("if they are updated with tensors on a GPU")


@pytest.mark.parametrize(
    "made",
    [
        "[Accuracy(task='binary')]",
        "{'a': torchmetrics.MetricCollection([Accuracy(task='binary')])}",
        "{'a': make()}",
        "[Lists(), Accuracy(task='binary')]",
    ],
)
def test_metrics_of_the_library_and_others(made: str) -> None:
    [message] = _messages(made, STEP, RESET)
    assert "never moved to the device:" in message


@pytest.mark.parametrize(
    "step",
    [
        "for metric in self.metrics.values(): metric.to(self.device)",
        "self.metrics['a'] = self.metrics['a'].cuda()",
    ],
)
def test_metrics_that_are_moved(step: str) -> None:
    assert _messages(MADE, step, RESET) == []


@pytest.mark.parametrize(
    ("end", "harm"),
    [
        ("pass", BOTH),
        ("self.others['a'].reset()", BOTH),
        ("print(self.metrics['a'].compute().cpu())", BOTH),
        ("for metric in self.others: metric.reset()", BOTH),
        ("self.metrics = {k: m.to(self.device) for k, m in self.metrics.items()}", "they are never reset"),
    ],
)
def test_metrics_that_nothing_resets(end: str, harm: str) -> None:
    for made in (MADE, MADE.replace("Accuracy(task='binary')", "Lists()")):
        [message] = _messages(made, STEP, end)
        assert harm in message


@pytest.mark.parametrize("reset", ["pass", "for metric in self.filled: metric.reset()"])
def test_metrics_that_are_added(reset: str) -> None:
    made = "{}; self.filled = []; self.filled.append(Accuracy(task='binary')); self.filled.append(Lists())"
    found = _messages(made, STEP, reset)
    assert len(found) == 2
    assert all((BOTH in message) == (reset == "pass") for message in found)


CALLBACK = """\
import torch
from lightning.pytorch import Callback, Trainer
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader
from tqdm import tqdm

class Watch(Callback):
    def __init__(self, held: DataLoader, data):
        super().__init__()
        self.held_out = held
        self.val_dl = DataLoader(data)

    def measure(self, pl_module):
        for x, y in self.val_dl:
            return f1_score(y, pl_module(x))

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        {loop}
            value = f1_score(y, pl_module(x))
        pl_module.log("f1", {value}, sync_dist=True)
"""
LOOP = "for x, y in self.val_dl:"


def _logged(loop: str = LOOP, value: str = "value") -> int:
    return len(lines(CALLBACK.format(loop=loop, value=value), "DL201"))


@pytest.mark.parametrize("loop", [LOOP, "for i, (x, y) in enumerate(tqdm(self.val_dl)):", "for x, y in self.held_out:"])
def test_a_callback_s_own_loaders(loop: str) -> None:
    assert _logged(loop) == 0


def test_loaders_that_a_trainer_may_deal_out() -> None:
    assert _logged("for x, y in trainer.val_dataloaders:") == 1
    assert _logged("for x, y in [batch]:") == 1


def test_where_the_value_of_a_callback_is_computed() -> None:
    assert _logged(value="self.measure(pl_module)") == 0
    assert _logged(value="f1_score(outputs['y'], outputs['p'])") == 1


def test_a_collection_that_a_callback_calls_on_its_own_loaders() -> None:
    source = """\
        from lightning.pytorch import Callback
        from torchmetrics import AUROC, MetricCollection

        class Watch(Callback):
            def __init__(self, loader):
                self.loader = loader
                self.metrics = MetricCollection({"auc": AUROC(task="binary")})

            def on_validation_epoch_end(self, trainer, pl_module):
                for x, y in self.loader:
                    pl_module.log_dict(self.metrics(pl_module(x), y), sync_dist=True)
        """
    assert lines(source, "DL201") == []
    assert lines(source.replace("in self.loader:", "in trainer.val_dataloaders:"), "DL201") == [11]

"""What a logged value is, seen through data flow: one small step a case."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

HEAD = """\
import math
import numpy as np
import torch
import torch.nn.functional as F
import torchmetrics
import torchmetrics.functional as tmf
from scipy.stats import spearmanr
from sklearn import metrics
from sklearn.metrics import f1_score, roc_auc_score, mean_squared_error
from torcheval.metrics.functional import multiclass_f1_score
from transformers.data.metrics import acc_and_f1
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        self.f1 = torchmetrics.F1Score(task="binary")
        self.accuracy = torchmetrics.Accuracy(task="binary")
        self.criterion = torch.nn.CrossEntropyLoss()
        self.distance = torch.nn.MSELoss()
        self.each = torch.nn.CrossEntropyLoss(reduction="none")
        self.temperature = torch.nn.Parameter(torch.zeros(()))

    def best(self, y, p):
        if len(y) == 0:
            return 0.0, 0.0
        return f1_score(y, p), metrics.accuracy_score(y, p)

    def validation_step(self, batch, batch_idx):
        y, p = batch
        loss = self.criterion(p, y)
"""


def logged(value: str, before: str = "pass", how: str = "sync_dist=True") -> bool:
    """Whether logging the value is reported."""
    return bool(lines(f'{HEAD}        {before}\n        self.log("value", {value}, {how})\n', "DL201"))


NOT_AVERAGEABLE = [
    "f1_score(y, p)",
    "metrics.f1_score(y, p)",
    'f1_score(y, p, average="macro")',
    "roc_auc_score(y, p)",
    "metrics.r2_score(y, p)",
    "metrics.balanced_accuracy_score(y, p)",
    "mean_squared_error(y, p, squared=False)",
    "spearmanr(y, p).statistic",
    "spearmanr(y, p)[0]",
    'tmf.f1_score(p, y, task="binary")',
    'tmf.f1_score(p, y, task="multiclass", num_classes=3, average="macro")',
    "tmf.classification.multiclass_f1_score(p, y, 3)",
    'tmf.auroc(p, y, task="binary")',
    'tmf.accuracy(p, y, task="multiclass", num_classes=3, average="macro")',
    "tmf.mean_squared_error(p, y, squared=False)",
    "multiclass_f1_score(p, y, average=None).mean()",
    "self.f1(p, y)",
    "torch.exp(loss)",
    "loss.exp()",
    "math.exp(loss.item())",
    "torch.exp(self.criterion(p, y))",
    "torch.exp(F.cross_entropy(p, y))",
    'torch.exp(self.losses(batch)["nll"])',
    "torch.sqrt(F.mse_loss(p, y))",
    "F.mse_loss(p, y).sqrt()",
    "self.distance(p, y) ** 0.5",
    "((p - y) ** 2).mean().sqrt()",
    "torch.mean((p - y).square()).sqrt()",
    "torch.tensor(f1_score(y, p))",
    "float(f1_score(y, p))",
    "torch.as_tensor(f1_score(y, p)).to(self.device)",
    "100 * f1_score(y, p)",
    "f1_score(y, p) * 100",
    "self.best(y, p)[0]",
    'acc_and_f1(p, y)["f1"]',
    "np.mean([f1_score(y[:, i], p[:, i]) for i in range(3)])",
]


@pytest.mark.parametrize("value", NOT_AVERAGEABLE)
def test_not_averageable(value: str) -> None:
    assert logged(value)
    assert logged("score", f"score = {value}")
    assert not logged(value, how="on_epoch=True")
    assert not logged(value, how="sync_dist=False")
    assert not logged(value, how='sync_dist=True, reduce_fx="max"')
    assert logged(value, how='sync_dist=True, reduce_fx="mean"')


SILENT = [
    "loss",
    "metrics.accuracy_score(y, p)",
    "mean_squared_error(y, p)",
    "self.accuracy(p, y)",
    "self.f1",
    "self.f1.compute()",
    "self.theirs(p, y)",
    "torch.exp(self.temperature)",
    "torch.exp(log_probability).mean()",
    "torch.exp(self.each(p, y)).mean()",
    'torch.exp(F.cross_entropy(p, y, reduction="none")).mean()',
    "torch.sqrt(p).mean()",
    "((p - y) ** 2).mean(dim=1).sqrt().mean()",
    'f1_score(y, p, average="micro")',
    'f1_score(y, p, average="samples")',
    'tmf.f1_score(p, y, task="multiclass", num_classes=3)',
    'tmf.f1_score(p, y, task="multilabel", num_labels=3, multidim_average="samplewise").mean()',
    "np.mean([f1_score(a, b) for a, b in zip(y, p)])",
    "np.mean([f1_score(y[i], p[i]) for i in range(len(y))])",
    "self.best(y, p)[1]",
    'acc_and_f1(p, y)["acc"]',
    "f1_score(self.all_gather(y), self.all_gather(p))",
    "torch.exp(self.all_gather(loss).mean())",
    "val_f1",
    '"f1"',
]


@pytest.mark.parametrize("value", SILENT)
def test_silent(value: str) -> None:
    assert not logged(value)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("score = f1_score(y, p)\n        score = loss", False),
        ("score = loss\n        score = f1_score(y, p)", True),
        ("score = loss\n        if y.any():\n            score = f1_score(y, p)", True),
        ("if y.any():\n            score = loss\n        else:\n            score = f1_score(y, p)", True),
        ("score = f1_score(y, p)\n        if y.any():\n            score = 1\n        else: score = 2", False),
        ("try:\n            score = roc_auc_score(y, p)\n        except ValueError:\n            score = 0.5", True),
        ("score, other = f1_score(y, p), loss", True),
        ("other, score = f1_score(y, p), loss", False),
        ("score, _ = self.best(y, p)", True),
        ("_, score = self.best(y, p)", False),
        ("score: float = f1_score(y, p)", True),
        ("y = self.all_gather(y)\n        score = f1_score(y, p)", False),
        ("torch.distributed.all_reduce(loss)\n        score = torch.exp(loss)", False),
        ('found = {"a": loss, "b": f1_score(y, p)}\n        score = found["b"]', True),
        ('found = {"a": loss, "b": f1_score(y, p)}\n        score = found["a"]', False),
        ('found = dict(a=loss)\n        found["b"] = f1_score(y, p)\n        score = found["b"]', True),
    ],
)
def test_definitions_that_reach_the_call(before: str, expected: bool) -> None:
    assert logged("score", before) is expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('self.log_dict({"loss": loss, "f1": f1_score(y, p)}, sync_dist=True)', True),
        ('self.log_dict({"loss": loss, "f1": self.f1}, sync_dist=True)', False),
        ('self.log_dict({f"val_{k}": v for k, v in {"f1": f1_score(y, p)}.items()}, sync_dist=True)', True),
        ('self.log_dict(dictionary={"f1": f1_score(y, p)}, sync_dist=True)', True),
        ('self.log(name="f1", value=f1_score(y, p), sync_dist=True)', True),
        ('[self.log(k, v, sync_dist=True) for k, v in {"f1": f1_score(y, p)}.items()]', True),
        ("self.log_dict(self.theirs(y, p), sync_dist=True)", False),
        ("self.log_dict(unknown, sync_dist=True)", False),
    ],
)
def test_ways_to_log(call: str, expected: bool) -> None:
    assert bool(lines(f"{HEAD}        {call}\n", "DL201")) is expected


@pytest.mark.parametrize("key", ["val_f1", "auc", "ppl", "rmse"])
def test_the_key_does_not_matter(key: str) -> None:
    assert lines(f'{HEAD}        self.log("{key}", loss, sync_dist=True)\n', "DL201") == []
    assert lines(f'{HEAD}        self.log("{key}_loss", f1_score(y, p), sync_dist=True)\n', "DL201") != []


def test_only_the_arm_of_a_single_process_is_silent() -> None:
    body = '        if self.trainer.world_size {}:\n            self.log("f1", f1_score(y, p), sync_dist=True)\n'
    assert lines(HEAD + body.format("> 1"), "DL201") != []
    assert lines(HEAD + body.format("== 1"), "DL201") == []

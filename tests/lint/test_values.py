"""What is known of a value inside one function."""

from __future__ import annotations

import libcst as cst
import pytest

from distlint.facts import Facts
from distlint.values import Values
from tests.lint.helpers import parsed

MODULE = """\
import math, torch
import torch.distributed as dist
import torch.nn.functional as F
import numpy as np
from torch import nn
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score, accuracy_score
from torchmetrics import F1Score, MeanMetric
from mine import own

class Model(LightningModule):
    def __init__(self):
        self.f1 = F1Score("binary")
        self.scores = nn.ModuleDict({{"a": F1Score("binary")}})
        self.criterion = nn.CrossEntropyLoss()
        self.other = own()

    def shared(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        {body}
"""
KINDS = {
    "1": "constant",
    "'a'": "constant",
    "None": "constant",
    "batch": "share",
    "x": "share",
    "self(x)": "share",
    "x.mean().item()": "share",
    "2 * x + 1": "share",
    "batch['x']": "share",
    "loss": "loss",
    "loss.item()": "loss",
    "loss * 0.5": "loss",
    "{'a': loss}['a']": "loss",
    "self.criterion(self(x), y)": "loss",
    "self.shared(batch)": "loss",
    "self.f1": "metric",
    "self.scores['a']": "metric",
    "F1Score('binary')": "metric",
    "self.f1(x, y)": "result",
    "self.f1.compute()": "result",
    "self.scores['a'].compute()": "result",
    "dist.all_reduce(x)": "reduced",
    "self.all_gather(x).mean()": "reduced",
    "f1_score(y, self(x))": "not averageable",
    "f1_score(y.cpu(), x.cpu(), average='macro')": "not averageable",
    "accuracy_score(y, x)": "share",
    "np.median(x)": "not averageable",
    "torch.exp(loss)": "not averageable",
    "batch_idx": "unknown",
    "unknown": "unknown",
    "self.other": "unknown",
    "own()": "unknown",
    "torch.ones(3)": "unknown",
    "x.shape": "unknown",
}  # fmt: skip


def value(expression, *before, facts=None):
    body = "\n        ".join([*before, f"probe({expression})"])
    source = parsed(MODULE.format(body=body), facts or Facts())
    (call,) = (c for c in source.nodes(cst.Call) if source.name(c.func) == "probe")
    return Values(source).of(call.args[0].value)


@pytest.mark.parametrize("expression", KINDS)
def test_expressions_and_variables_that_hold_them(expression):
    kind = KINDS[expression]
    assert value(expression).kind == kind
    if kind != "unknown":
        assert value("z", f"z = {expression}").kind == kind
        assert value("b", f"a, b = 1, {expression}").kind == kind
        assert value("d['k']", f"d = {{'k': {expression}}}").kind == kind
    if kind not in ("unknown", "metric"):
        assert value("z", "z = 1", "if x:", f"    z = {expression}").kind == kind


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        (["z = x", "z = self.all_gather(z)"], "reduced"),
        (["z = x", "dist.all_reduce(z)"], "reduced"),
        (["z = self.all_gather(x)", "z = x"], "share"),
        (["z = x", "if x:", "    z = self.all_gather(x)"], "reduced"),
        (["z = 0", "for each in batch:", "    z += each"], "share"),
        (["z = x", "z = unknown(1)"], "unknown"),
        (["z, w = loss, x"], "loss"),
        (["z: float = loss"], "loss"),
        (["if (z := loss) > 0: pass"], "loss"),
    ],
)
def test_what_a_variable_is_after_several_statements(before, kind):
    assert value("z", *before).kind == kind


def test_what_the_user_has_declared():
    assert value("own(x)").kind == "share"
    facts = Facts(non_averageable={"mine.own": "it ranks"}, averageable=frozenset({"f1_score"}))
    found = value("own(x)", facts=facts)
    assert (found.kind, found.name, found.reason) == ("not averageable", "own", "it ranks")
    assert value("f1_score(x, y)", facts=facts).kind == "share"


@pytest.mark.parametrize("link", ["({} + x)", "f({})", "[{}]", "({} if x else y)", "{}.mean()"])
def test_what_is_deep_ends(link):
    expression = "x"
    for _ in range(60):
        expression = link.format(expression)
    assert value(expression).kind in ("unknown", "share")
    assert value("z", "z = x", *["z = z + z"] * 60).kind in ("unknown", "share")

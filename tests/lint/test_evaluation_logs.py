"""DL202 to DL204: what is made from one rank's data, and what an evaluation reaches."""

from __future__ import annotations

import textwrap

import pytest

from distlint.analysis.project import ClassSummary, Project
from distlint.engine import check_source
from distlint.model import Finding
from distlint.rules import RULES
from tests.lint import helpers

IMPORTS = "\nfrom lightning.pytorch import Callback, LightningModule\nimport torch\n"


def check(source: str, *codes: str) -> list[Finding]:
    """Findings in a file that imports what it needs, at its end so that lines are those of the source."""
    return helpers.check(textwrap.dedent(source) + IMPORTS, *codes)


def lines(source: str, *codes: str) -> list[int]:
    """The lines of the findings."""
    return [found.line for found in check(source, *codes)]


STEP = """\
import torch
import torch.distributed as dist
from einops import reduce
from torchmetrics import Accuracy, Metric

class Model(LightningModule):
    def __init__(self):
        self.accuracy = Accuracy(task="binary")
        self.stepwise = Accuracy(task="binary", dist_sync_on_step=True)

    def validation_step(self, batch, batch_idx):
        {before}
        self.log("value", {value})
"""


def _codes(before: str, value: str) -> list[str]:
    return [found.code for found in check(STEP.format(before=before, value=value), "DL202", "DL203", "DL204")]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("pass", "batch.mean()"),
        ("loss = self.loss(batch)", "loss"),
        ("loss, parts = self.loss(batch)", "parts['kl'].item()"),
        ("x, *rest = batch", "x.sum() / 3"),
        ("parts = {}; parts['a'] = self(batch)", "parts['a']"),
        ("parts = []; parts.append(self(batch))", "torch.stack(parts).mean()"),
        ("parts = {'a': [self(x) for x in batch]}", "sum(parts['a'])"),
        ("total = 0; total += self(batch)", "total if self.flag else 0"),
        ("x = self(batch).gather(1, batch.y)", "x.mean()"),
        ("x = reduce(self(batch), 'b c -> b', 'mean')", "x.mean()"),
        ("value = max(self(x) for x in batch)", "-value"),
        ("scores = self.metric.compute(predictions=self(batch))", "scores['f1']"),
    ],
)
def test_a_rank_s_own_value(before: str, value: str) -> None:
    assert _codes(before, value) == ["DL202"]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("pass", "3"),
        ("pass", "self.accuracy"),
        ("pass", "self.accuracy.compute()"),
        ("pass", "self.stepwise(batch, batch)"),
        ("pass", "self.trainer.optimizers[0].param_groups[0]['lr']"),
        ("pass", "len(batch)"),
        ("pass", "batch.shape[0]"),
        ("pass", "batch_idx"),
        ("metric = getattr(self, 'accuracy')", "metric"),
        ("loss = self.all_gather(self.loss(batch))", "loss.mean()"),
        ("loss = self.loss(batch); dist.all_reduce(loss)", "loss"),
        ("parts = [None, None]; dist.all_gather_object(parts, batch)", "sum(parts)"),
        ("loss = reduce_tensor(self.loss(batch))", "loss"),
        ("parts = {'a': self(batch)}; dist.all_reduce(parts['a'])", "parts['a']"),
        ("self.total = self(batch); dist.all_reduce(self.total)", "self.total / 2"),
        ("loss, reduced = self.proxy(batch)", "reduced['avg']"),
        ("for i, _ in enumerate(batch): pass", "i"),
    ],
)
def test_the_same_on_every_rank_or_unknown(before: str, value: str) -> None:
    assert _codes(before, value) == []


@pytest.mark.parametrize("value", ["self.accuracy(batch, batch)", "self.accuracy(batch, batch).item()"])
def test_the_value_of_a_metric_is_another_finding(value: str) -> None:
    assert _codes("pass", value) == ["DL204"]


HELPER = """\
class Model(LightningModule):
    def _step(self, batch, stage, train=False):
        loss = self.loss(batch)
        {body}
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train", True)

    def validation_step(self, batch, batch_idx):
        {call}
"""
CALL = 'self._step(batch, "val")'


@pytest.mark.parametrize(
    ("body", "call", "expected"),
    [
        ('self.log("x", loss)', CALL, True),
        ('self.log("x", loss)', "pass", False),
        ('if stage == "val": self.log("x", loss)', CALL, True),
        ('if stage in ("val", "test"): self.log("x", loss)', CALL, True),
        ('if stage.startswith("v"): self.log("x", loss)', CALL, True),
        ('if not train: self.log("x", loss)', CALL, True),
        ('if self.training or stage == "val": self.log("x", loss)', CALL, True),
        ('if self.global_step % 10: self.log("x", loss)', CALL, True),
        ('if stage == "train": self.log("x", loss)', CALL, False),
        ('if stage != "val": self.log("x", loss)', CALL, False),
        ('if train: self.log("x", loss)', CALL, False),
        ('if self.training: self.log("x", loss)', CALL, False),
        ('if stage == "train": self.log("x", loss)', "self._step(batch, self.stage)", False),
        ('self.log("x", loss)', "self.training or self._step(batch, 'val')", True),
        ('self.log("x", loss)', "if self.training: self._step(batch, 'val')", False),
    ],
)
def test_helpers_are_judged_by_the_stage_they_are_given(body: str, call: str, expected: bool) -> None:
    source = HELPER.format(body=body, call=call)
    assert bool(check(source, "DL202")) is expected


def test_a_helper_that_leaves_before() -> None:
    body = 'if stage == "val":\n            return loss\n        self.log("x", loss)'
    assert check(HELPER.format(body=body, call=CALL), "DL202") == []


@pytest.mark.parametrize(
    ("signature", "expected"),
    [("LightningModule", [3]), ("Callback", [3]), ("object", []), ("torch.utils.data.Dataset", [])],
)
def test_only_lightning_logs_count(signature: str, expected: list[int]) -> None:
    source = (
        f"class A({signature}):\n    def validation_step(self, batch, batch_idx):\n        self.log('x', self(batch))\n"
    )
    assert lines(source, "DL202") == expected


def test_a_log_method_of_its_own() -> None:
    source = """\
    class Base(LightningModule):
        def log(self, name, value):
            super().log(name, value, sync_dist=True)

    class Model(Base):
        def validation_step(self, batch, batch_idx):
            self.log("x", self(batch))
    """
    assert check(source, "DL202") == []


def _apply(source: str, found: list[Finding]) -> str:
    """The source after all fixes."""
    text = source.splitlines(keepends=True)
    edits = [edit for each in found for edit in (each.fix.edits if each.fix is not None else ())]
    for edit in sorted(edits, key=lambda edit: (edit.line, edit.column), reverse=True):
        before, after = text[edit.line - 1][: edit.column - 1], text[edit.end_line - 1][edit.end_column - 1 :]
        text[edit.line - 1 : edit.end_line] = [before + edit.text + after]
    return "".join(text)


def test_a_loss_gets_the_flag_where_every_batch_logs_it() -> None:
    source = """\
class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)  # kept
        self.log("other", self.score(batch))
        if batch_idx:
            self.log("sometimes", loss)
"""
    found = check(source, "DL202")
    assert [each.fix is not None for each in found] == [True, False, False]
    fixed = _apply(source, found)
    assert 'self.log("loss", loss, prog_bar=True, sync_dist=True)  # kept' in fixed
    assert [each.fix for each in check(fixed, "DL202")] == [None, None]


@pytest.mark.parametrize(
    ("options", "logged", "expected"),
    [
        (
            "",
            "on_epoch=True",
            "self.accuracy.update(self(batch), batch.y)\n        self.log('x', self.accuracy, on_epoch=True)",
        ),
        ("", "on_step=True", "self.accuracy(self(batch), batch.y)\n        self.log('x', self.accuracy, on_step=True)"),
        (", average='none'", "on_epoch=True", None),
    ],
)
def test_a_metric_object_is_logged_instead_of_its_value(options: str, logged: str, expected: str | None) -> None:
    source = f"""\
from torchmetrics import Accuracy

class Model(LightningModule):
    def __init__(self):
        self.accuracy = Accuracy(task="binary"{options})

    def validation_step(self, batch, batch_idx):
        self.log('x', self.accuracy(self(batch), batch.y), {logged})
"""
    found = check(source, "DL204")
    assert len(found) == 1
    fixed = _apply(source, found)
    if expected is None:
        assert fixed == source
    else:
        assert expected in fixed
        assert check(fixed, "DL204") == []


def test_a_metric_that_two_stages_share_is_not_rewritten() -> None:
    source = """\
    from torchmetrics import Accuracy

    class Model(LightningModule):
        def __init__(self):
            self.accuracy = Accuracy(task="binary")

        def training_step(self, batch, batch_idx):
            self.log("a", self.accuracy(self(batch), batch.y))

        def validation_step(self, batch, batch_idx):
            self.log("b", self.accuracy(self(batch), batch.y))
    """
    (found,) = check(source, "DL204")
    assert (found.line, found.fix) == (11, None)


def test_integers_and_containers_are_mended() -> None:
    source = "import torch\n\ndef f(fabric, x):\n    return fabric.all_reduce(torch.tensor(x.numel()))\n"
    fixed = _apply(source, check(source, "DL207"))
    assert "fabric.all_reduce(torch.tensor(x.numel()).float())" in fixed
    assert check(fixed, "DL207") == []
    source = """\
from torch import nn
from torchmetrics import Accuracy

class Model(nn.Module):
    def __init__(self):
        self.metrics = {"train": Accuracy(), "accuracy": Accuracy()}
        self.several = [
            Accuracy(),  # first
        ]
"""
    fixed = _apply(source, check(source, "DL210"))
    assert "self.several = nn.ModuleList([\n            Accuracy(),  # first\n        ])" in fixed
    assert [each.fix for each in check(fixed, "DL210")] == [None]  # "train" is a method of ModuleDict


def test_a_loop_that_reduces_every_item() -> None:
    source = """\
    class Model(LightningModule):
        def validation_step(self, batch, batch_idx):
            losses = self.losses(batch)
            for name, value in losses.items():
                dist.all_reduce(value)
            self.log_dict(losses)
    """
    assert check(source, "DL202") == []
    assert lines(source.replace("dist.all_reduce(value)", "print(value)"), "DL202") == [6]


def test_steps_that_return_gathered_values() -> None:
    source = """\
    class Model(LightningModule):
        def validation_step(self, batch, batch_idx):
            return {"loss": self.all_gather(self.loss(batch))}

        def validation_epoch_end(self, outputs):
            self.log("loss", torch.stack([output["loss"] for output in outputs]).mean())
    """
    assert check(source, "DL202") == []
    assert lines(source.replace("self.all_gather(self.loss(batch))", "self.loss(batch)"), "DL202") == [6]


def test_a_metric_class_of_another_file() -> None:
    source = """\
from package.scores import Hits

class Model(LightningModule):
    def __init__(self):
        self.hits = Hits()

    def validation_step(self, batch, batch_idx):
        self.log("hits", self.hits(self(batch), batch.y))
"""
    assert [found.code for found in check(source, "DL202", "DL204")] == ["DL202"]
    hits = ClassSummary("package.scores.Hits", "scores.py", 1, family="metric")
    project = Project(classes={hits.name: hits})
    found = check_source((source + IMPORTS).encode(), "model.py", [RULES["DL202"], RULES["DL204"]], project=project)
    assert [each.code for each in found] == ["DL204"]

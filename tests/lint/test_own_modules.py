"""What a class of a trainer is: modules of distmetrics log for themselves; methods reach others of their class."""

from __future__ import annotations

import textwrap

import pytest

from tests.lint.helpers import check

LIGHTNING = "from lightning.pytorch import LightningModule as Module"
OURS = "from distmetrics.train import Module"
STEP = """\
import torch
{imports}

class Base(Module):
    pass

class Model({base}):
    def {hook}(self, batch, batch_idx):
        loss = self(batch)
{body}

    def test_step(self, batch, batch_idx):
        pass
"""
BODIES = [
    ("DL102", 'if self.global_rank == 0:\n    self.log("first", loss)'),
    ("DL102", 'if self.global_rank == 0:\n    self.log("first", loss, sync_dist=True)'),
    ("DL103", 'if loss > 1:\n    self.log("large", loss, sync_dist=True)'),
    ("DL104", 'for label in torch.unique(batch["y"]):\n    self.log(f"of_{label}", loss, sync_dist=True)'),
    ("DL105", 'for name in {"a", "b"}:\n    self.log(name, loss, sync_dist=True)'),
    (
        "DL107",
        'if loss > 1:\n    self.log("large", loss, sync_dist=True)\nelse:\n    self.log("small", loss, sync_dist=True)',
    ),
    ("DL202", 'self.log("loss", loss)'),
    ("DL203", 'self.log("loss", loss, rank_zero_only=True)'),
]


def _codes(code: str, imports: str, base: str, body: str, hook: str = "validation_step") -> list[str]:
    source = STEP.format(imports=imports, base=base, hook=hook, body=textwrap.indent(body, " " * 8))
    return [found.code for found in check(source, code)]


@pytest.mark.parametrize("base", ["Module", "Base"])
@pytest.mark.parametrize(("code", "body"), BODIES)
def test_every_rule_knows_the_modules_of_distmetrics(code: str, body: str, base: str) -> None:
    """They combine by name whatever ranks log."""
    assert _codes(code, LIGHTNING, base, body) == [code]
    assert _codes(code, OURS, base, body) == []


@pytest.mark.parametrize(("code", "body"), BODIES[:3])
@pytest.mark.parametrize("hook", ["training_step", "shared_step", "on_train_epoch_end"])
def test_a_step_that_is_synced_at_once_needs_every_rank(code: str, body: str, hook: str) -> None:
    """In training, distmetrics combines with ``sync_dist=True`` right after the step."""
    expected = [code] if "sync_dist" in body and not hook.startswith("on_") else []
    assert _codes(code, OURS, "Module", body, hook) == expected


@pytest.mark.parametrize(("code", "body"), BODIES)
def test_every_rule_knows_the_trainers_of_others(code: str, body: str) -> None:
    """The hooks of theirs are called like Lightning's."""
    assert _codes(code, "from composer import ComposerModel as Module", "Module", body) == []


def test_a_list_that_is_grown_and_read_by_methods_of_methods() -> None:
    source = """\
    from lightning.pytorch import LightningModule

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.parts = []

        def validation_step(self, batch, batch_idx):
            self.keep(batch)

        def keep(self, batch):
            self.keep_one(self(batch))

        def keep_one(self, part):
            self.parts.append(part)

        def on_validation_epoch_end(self):
            self.report()

        def report(self):
            self.show()

        def show(self):
            print({shown})
    """
    (found,) = check(source.replace("{shown}", "self.parts"), "DL301")
    assert (found.line, "every validation step" in found.message) == (15, True)
    assert check(source.replace("{shown}", "self.scores"), "DL301") == []


@pytest.mark.parametrize(("method", "expected"), [("cuda", ["DL204"]), ("contiguous", ["DL204"]), ("argmax", [])])
def test_what_hands_on_the_value_of_a_metric(method: str, expected: list[str]) -> None:
    source = f"""\
    from lightning.pytorch import LightningModule
    from torchmetrics import Accuracy

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.accuracy = Accuracy(task="binary")

        def validation_step(self, batch, batch_idx):
            self.log("accuracy", self.accuracy(self(batch), batch.y).{method}())
    """
    assert [found.code for found in check(source, "DL204")] == expected

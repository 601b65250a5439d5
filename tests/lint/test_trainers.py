"""DL202 where every trainer is made for one device, and what a callback is given that is no data."""

from __future__ import annotations

import textwrap

import pytest

from tests.lint.helpers import check, lines

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

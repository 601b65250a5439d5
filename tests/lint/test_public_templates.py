"""What findings in public repositories were wrong about, in small."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

LISTS = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.features = []

    def training_step(self, batch, batch_idx):
        if {test}:
            self.features.append(self(batch))

    def on_train_epoch_end(self):
        plot(self.features)
"""


@pytest.mark.parametrize(
    ("test", "is_bounded"),
    [
        ("self.current_epoch == 0", True),
        ("self.trainer.max_epochs - 1 == self.current_epoch", True),
        ("self.current_epoch > 0", False),
        ("self.step == 0", False),
    ],
)
def test_a_list_of_one_epoch(test: str, is_bounded: bool) -> None:
    assert lines(LISTS.replace("{test}", test), "DL301") == ([] if is_bounded else [10])


TEMPLATE = """\
from pytorch_lightning import LightningModule
from torchmetrics import Accuracy, MetricCollection

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.plain = {"accuracy": Accuracy(task="binary")}
        self.train_metrics = {made}
"""


@pytest.mark.parametrize(
    ("made", "is_template"),
    [
        ("MetricCollection(self.plain)", True),
        ("MetricCollection(self.plain).clone(prefix='train/')", True),
        ("copy(self.plain)", False),
        ("MetricCollection(self.others)", False),
    ],
)
def test_metrics_that_a_collection_is_made_of(made: str, is_template: bool) -> None:
    assert lines(TEMPLATE.replace("{made}", made), "DL210") == ([] if is_template else [7])

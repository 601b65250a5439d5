"""Lightning in the processes of a report."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

QUIET = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False}


def joined(comm: Any) -> None:
    """Tell Lightning and Fabric of the process group that is there."""
    from tests.integrations.modules import elastic

    os.environ |= elastic(comm)


def trainer(comm: Any, **options: Any) -> Any:
    """Return a Trainer over the ranks of a report."""
    import lightning.pytorch as lightning

    joined(comm)
    settings: dict[str, Any] = {
        **QUIET,
        "accelerator": "cpu",
        "devices": comm.world_size,
        "strategy": "ddp",
        "enable_checkpointing": False,
        "default_root_dir": tempfile.gettempdir(),
    }
    return lightning.Trainer(**(settings | options))


def module(step: Callable[[Any, Any, int], Any], **metrics: Any) -> Any:
    """Return a module with metrics, of which a validation step is given."""
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            for name, metric in metrics.items():
                setattr(self, name, metric)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0].float().reshape(-1, 1)).mean() * 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            step(self, batch, batch_idx)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()

"""Lightning and Accelerate as the examples need them: small, quiet, and in the process group that is there."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.guard.agreement.runner import EXAMPLE

__all__ = ["accelerator", "column", "loader", "numbered", "trainer", "whole"]

QUIET = {
    "accelerator": "cpu",
    "num_sanity_val_steps": 0,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "max_epochs": 1,
}


def trainer(devices: Any = 2, strategy: str = "ddp", library: str = "lightning.pytorch", **more: Any) -> Any:
    """A real Trainer of two processes, however many the example wants; of one, where it wants one."""
    one = devices in (1, [1])
    size = {"devices": 1, "strategy": "auto"} if one else {"devices": 2, "strategy": strategy}
    return importlib.import_module(library).Trainer(**QUIET | size | more)


def whole(fragment: type[Any], **methods: Any) -> Any:
    """An instance of an example's LightningModule, with what the example leaves out: a layer, steps, an optimizer.

    ``methods`` are further methods and attributes of the class.
    """

    def set_up(self: Any) -> None:
        fragment.__init__(self)
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    rest = {
        "forward": lambda self, x: self.layer(x),
        "training_step": lambda self, batch, batch_idx: self(batch).mean(),
        "validation_step": lambda self, batch, batch_idx: None,
        "test_step": lambda self, batch, batch_idx: None,
        "configure_optimizers": lambda self: torch.optim.SGD(self.parameters(), lr=0.0),
    }
    own = {name for name in rest if getattr(getattr(fragment, name, None), "__module__", "") == EXAMPLE}
    lacking = {name: value for name, value in rest.items() if name not in own}
    return type("Whole", (fragment,), lacking | methods | {"__init__": set_up})()


def loader(*batches: Any) -> DataLoader[Any]:
    """These very batches, one a step."""
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def column(*values: float) -> torch.Tensor:
    """One sample a value."""
    return torch.tensor(values).unsqueeze(1)


def accelerator(**more: Any) -> Any:
    """A real Accelerator on the CPU."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    return Accelerator(cpu=True, **more)


def numbered(folder: str = ".") -> Any:
    """One that numbers its checkpoints, for which all ranks wait for each other."""
    from accelerate.utils import ProjectConfiguration  # type: ignore[import-untyped]

    return accelerator(project_config=ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True))

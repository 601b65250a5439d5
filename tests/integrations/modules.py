"""What a rank is told where torchrun has started it, and Lightning's trainer for it; imported by every process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def elastic(comm: Any) -> dict[str, str]:
    """What torchrun tells a process; the group that is there already is then used."""
    return {
        "RANK": str(comm.rank),
        "LOCAL_RANK": str(comm.rank),
        "WORLD_SIZE": str(comm.world_size),
        "LOCAL_WORLD_SIZE": str(comm.world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }


class Rows(IterableDataset[Any]):
    """Rows in a stream, the same on every rank."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def trainer_of(comm: Any, lightning: Any, callbacks: list[Any], **options: Any) -> Any:
    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    strategy = "ddp" if comm.world_size > 1 else "auto"
    options = {"strategy": strategy, "num_sanity_val_steps": 0, "devices": comm.world_size, **QUIET} | options
    return lightning.Trainer(accelerator="cpu", callbacks=callbacks, **options)

"""A model, its data, and what Hugging Face makes of them on a rank; no report of its own."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from tests.integrations.modules import elastic


def _rows(count: int) -> list[dict[str, Any]]:
    numbers = torch.arange(1.0, count + 1)
    return [{"x": number.reshape(1), "labels": number.reshape(1)} for number in numbers]


class Model(torch.nn.Module):
    """Predicts 0, so that the loss of n is n²."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean loss of the batch."""
        logits = self.weight * x
        return {"loss": mse_loss(logits, labels), "logits": logits}


class WithOptions(Model):
    """Takes further arguments, as language models do."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, **options: Any
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss of the batch."""
        return super().forward(x, labels)


def by_hand(count: int) -> float:
    """Return the loss of one process."""
    return float(torch.arange(1.0, count + 1).square().mean())


def _join(comm: Any) -> None:
    """Be a rank as torchrun starts it; wait for ranks that import slowly."""
    import distmetrics.integrations.accelerate
    import distmetrics.integrations.transformers  # noqa: F401

    os.environ |= elastic(comm)
    dist.barrier()


def accelerator_of(comm: Any) -> Any:
    """Return an accelerator of this rank's world."""
    from accelerate import Accelerator

    _join(comm)
    return Accelerator(cpu=True)


def trainer_of(comm: Any, count: int, *, batch_size: int, takes_options: bool = False) -> Any:
    """Return a trainer that evaluates ``count`` samples."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    _join(comm)
    arguments = TrainingArguments(
        output_dir="runs",
        per_device_eval_batch_size=batch_size,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = WithOptions() if takes_options else Model()
    trainer = Trainer(model=model, args=arguments, eval_dataset=_rows(count))
    trainer.remove_callback(PrinterCallback)
    return trainer

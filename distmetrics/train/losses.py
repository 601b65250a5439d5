"""The loss that a training step returned, and what it may not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distmetrics.collectives.ops import all_gather
from distmetrics.errors import InputError, compose

if TYPE_CHECKING:
    from distmetrics.train.trainer import Trainer


def loss_of(output: Any) -> Tensor | None:
    """Return the loss in what ``training_step`` returned, or None to skip the step.

    Raises:
        InputError: there is none, it is no scalar tensor, or it has no gradient.
    """
    if output is None:
        return None
    loss = (
        output.get("loss")
        if not isinstance(output, Tensor) and isinstance(output, Mapping)
        else output
    )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise InputError(
            "training_step must return a loss of one element, or a dict with such under 'loss'; "
            f"got {got}"
        )
    if not loss.requires_grad:
        raise InputError(
            "the loss of training_step has no gradient",
            likely="it was computed from something detached, under no_grad, or every parameter "
            "is frozen.",
            do="return the loss as it was computed; log loss.detach(), if you must.",
        )
    return loss


def check_finite(trainer: Trainer, loss: Tensor | None, index: int) -> None:
    """Refuse a loss that is no number on some rank, on every rank; one exchange a step."""
    value = torch.zeros(()) if loss is None else loss.detach().float().reshape(()).cpu()
    losses = all_gather(value, comm=trainer.strategy.comm(), name="loss").tolist()
    if all(abs(value) < float("inf") for value in losses):
        return
    text = compose(
        f"the loss is not finite in step {index} of epoch {trainer.current_epoch}",
        {rank: f"loss {value:.6g}" for rank, value in enumerate(losses)},
        notes=["The step's update was not made."],
        likely="a learning rate that is too high, a logarithm or a root of 0, or NaN in the batch.",
        do="look at that batch; Trainer(detect_anomaly=True) names the operation that made it.",
    )
    raise InputError(text, rank=trainer.global_rank)

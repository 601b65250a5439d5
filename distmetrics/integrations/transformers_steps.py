"""One pass of a Hugging Face trainer over a rank's data: its steps, and what is kept of them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer_pt_utils import find_batch_size

from distmetrics.data.padding import fresh
from distmetrics.errors import InputError
from distmetrics.integrations.named_metrics import each
from distmetrics.integrations.transformers_concat import stored
from distmetrics.integrations.transformers_loss import weight_of
from distmetrics.metrics.function import from_function
from distmetrics.tree import map_leaves, move

_SUMS = ("total", "weight", "finite_total", "finite_weight", "losses", "rows")


class Outputs(NamedTuple):
    """What the trainer's ``prediction_step`` has made of a batch.

    Attributes:
        loss: the mean over what counts in the batch, or None without labels.
        logits: the model's output but for the loss, a tuple if it is several tensors; the generated
            tokens under ``predict_with_generate``.
        labels: the batch's labels, or None.
    """

    loss: Any
    logits: Any
    labels: Any


class Pass:
    """One pass over a rank's data."""

    def __init__(self, attachment: Any, *, keeps: bool, has_fillers: bool) -> None:
        self.attachment = attachment
        self.trainer = attachment.trainer
        self.keeps = keeps
        self.has_fillers = has_fillers
        self.weight = weight_of(attachment.weight, self.trainer)
        self.sums = from_function(dict, dict.fromkeys(_SUMS, "sum"))
        self.batches: list[Any] = []
        self.error: Exception | None = None
        self.lacks_labels = False
        is_theirs = type(self.trainer).compute_loss is not Trainer.compute_loss
        self.has_own_loss = is_theirs or self.trainer.compute_loss_func is not None
        self.include = tuple(self.trainer.args.include_for_metrics)

    @contextmanager
    def in_charge(self, *, loss_only: bool) -> Iterator[None]:
        """Let the trainer's steps end here, and let none of them talk to other ranks."""
        trainer = self.trainer
        step, compute_loss = trainer.prediction_step, trainer.compute_loss

        def prediction_step(
            model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
        ) -> tuple[None, None, None]:
            given = copy.copy(inputs)  # a step of the user's may take the labels out
            self._take(inputs, *step(model, given, loss_only, *args, **kwargs))
            return None, None, None

        def own_mean(
            model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any
        ) -> Any:
            if num_items_in_batch is not None and self.has_own_loss:
                kwargs["num_items_in_batch"] = self.weight(inputs, _rows(inputs))
            return compute_loss(model, inputs, *args, **kwargs)

        others = [name for name in self.include if name != "inputs"]
        self._reset_metrics()
        with (
            _replaced(trainer, prediction_step=prediction_step, compute_loss=own_mean),
            _replaced(
                trainer.args, average_tokens_across_devices=False, include_for_metrics=others
            ),
        ):
            yield

    def _reset_metrics(self) -> None:
        for metric in each(self.attachment.metrics):
            metric.reset()
            if hasattr(metric, "to"):
                metric.to(self.trainer.args.device)

    def _take(self, inputs: Any, loss: Any, logits: Any, labels: Any) -> None:
        """Consume a batch, unless it only fills up."""
        if self.error is not None or (self.has_fillers and not len(fresh(torch.empty(1)))):
            return
        try:
            with torch.no_grad():
                self._add(move(inputs, self.trainer.args.device), Outputs(loss, logits, labels))
        except Exception as error:
            if not self.has_fillers:
                raise
            self.error = error  # the others need this rank in the model until the last batch

    def _add(self, inputs: Any, outputs: Outputs) -> None:
        rows = _rows(inputs)
        self.sums.update(rows=rows)
        if outputs.loss is not None:
            weight = torch.as_tensor(self.weight(inputs, rows), device=outputs.loss.device)
            self.sums.update(**_terms(outputs.loss, weight))
        is_default = self.attachment.update is update_classifier
        if is_default and outputs.labels is None:
            self.lacks_labels = True
        elif self.attachment.named:
            self.attachment.update(self.attachment.metrics, outputs, inputs)
        if self.keeps:
            self.batches.append(self._kept(inputs, rows, outputs))

    def _kept(self, inputs: Any, rows: int, outputs: Outputs) -> dict[str, Any]:
        """Return what predictions of all ranks are put together of."""
        trainer = self.trainer
        logits, preprocess = outputs.logits, trainer.preprocess_logits_for_metrics
        if logits is not None and preprocess is not None:
            logits = preprocess(logits, outputs.labels)
        kept = {"predictions": logits, "label_ids": outputs.labels}
        if "inputs" in self.include:
            kept["inputs"] = inputs[getattr(trainer.model, "main_input_name", "input_ids")]
        if "loss" in self.include and outputs.loss is not None:
            kept["losses"] = outputs.loss.mean().repeat(rows)
        return {name: stored(tree) for name, tree in kept.items() if tree is not None}


def _rows(inputs: Any) -> int:
    return find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]


def update_classifier(metrics: Any, outputs: Outputs, inputs: Any) -> None:
    """Update metrics of a model that gives each sample one class."""
    logits, labels = outputs.logits, outputs.labels
    is_classifier = isinstance(logits, Tensor) and isinstance(labels, Tensor)
    if not is_classifier or logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        shapes = [map_leaves(_shape, tree) for tree in (logits, labels)]
        raise InputError(
            "attach: what the metrics are to be updated with is known only for models that give "
            f"a sample one class; here logits are {shapes[0]} and labels {shapes[1]}",
            do="attach(trainer, metrics, update=lambda metrics, outputs, inputs: …).",
        )
    for metric in each(metrics):
        metric.update(logits, labels)


def _shape(leaf: Any) -> str:
    return f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _terms(loss: Tensor, weight: Tensor) -> dict[str, Any]:
    """Return what a batch adds to the sums; the mean of nothing is NaN, and adds nothing."""
    total = torch.where(weight > 0, loss.detach().float().mean() * weight, 0.0)
    is_finite = total.isfinite()
    return {
        "total": total,
        "weight": weight,
        "finite_total": torch.where(is_finite, total, 0.0),
        "finite_weight": torch.where(is_finite, weight, 0),
        "losses": 1,
    }


@contextmanager
def _replaced(target: Any, **values: Any) -> Iterator[None]:
    """Give an object other attributes for the length of the block."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    try:
        vars(target).update(values)
        yield
    finally:
        for name in values:
            if name in before:
                vars(target)[name] = before[name]
            else:
                vars(target).pop(name, None)

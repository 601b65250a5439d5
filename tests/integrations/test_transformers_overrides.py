"""Hugging Face's trainers as users change them, with metrics attached: the numbers of one process, or what to do."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection

from distmetrics import InputError, SingleCommunicator
from distmetrics.testing import run
from tests.integrations import hf

pytest.importorskip("transformers")
from transformers import Trainer, YolosConfig, YolosForObjectDetection

from distmetrics.integrations.transformers import attach

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(300), pytest.mark.xdist_group("transformers")]


class Pops(Trainer):
    """Takes the labels out of the batch that it is given."""

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        labels = inputs.pop("labels")
        with torch.no_grad():
            logits = model(**inputs).logits
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), logits, labels


class Losses(Trainer):
    """Gives a loss for each row."""

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        with torch.no_grad():
            logits = model(inputs["input_ids"], inputs["attention_mask"]).logits
        return cross_entropy(logits, inputs["labels"], reduction="none"), logits, inputs["labels"]


class Targets(torch.nn.Module):
    """Calls its labels otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hf.model_of("tokens")

    def forward(self, input_ids: Any = None, attention_mask: Any = None, targets: Any = None) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=targets)
        return {"loss": output.loss, "logits": output.logits}


def collate(rows: list[Any]) -> Any:
    batch = hf.collate(rows)
    batch["targets"] = batch.pop("labels")
    return batch


def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    logits = outputs["logits"]
    if labels.ndim > 1:
        logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return cross_entropy(logits, labels, reduction="sum") / num_items_in_batch


def detector(rows: Any) -> Any:
    """Return the evaluation of a model whose loss asks all ranks how many boxes they have."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = YolosConfig(**sizes, image_size=[16, 16], patch_size=8, num_detection_tokens=4, num_labels=2)
    model = YolosForObjectDetection(config)
    trainer = hf.trainer_of("classifier", rows, batch_size=1, model=model, remove_unused_columns=False)
    trainer.data_collator = lambda rows: {
        "pixel_values": torch.stack([row["pixels"] for row in rows]),
        "labels": [row["labels"] for row in rows],
    }
    counters = {"seen": hf.counters()["seen"]}
    attach(trainer, counters, update=lambda metrics, outputs, inputs: metrics["seen"].update(total=len(outputs.labels)))
    return trainer.evaluate()["eval_seen"]


def changed(comm: Any) -> dict[str, Any]:
    """Return what each of the changed trainers gives."""
    hf.join(comm)
    tokens, causal, rows = hf.samples("tokens", 9)[1:], hf.samples("causal", 9)[1:], hf.samples("classifier", 7)
    named = {"model": Targets(), "label_names": ["targets"], "remove_unused_columns": False}
    trainers = {
        "popped": hf.trainer_of("tokens", tokens, batch_size=2, kind_of_trainer=Pops),
        "targets": hf.trainer_of("tokens", tokens, batch_size=2, **named),
        "summed tokens": hf.trainer_of("causal", causal, batch_size=2, compute_loss_func=summed),
        "summed rows": hf.trainer_of("classifier", rows, batch_size=2, compute_loss_func=summed),
        "vector": hf.trainer_of("classifier", rows, batch_size=2, kind_of_trainer=Losses),
    }
    trainers["targets"].data_collator = collate
    results: dict[str, Any] = {}
    for name, trainer in trainers.items():
        attach(trainer)
        results[name] = trainer.evaluate()["eval_loss"]
    trainer = hf.trainer_of("classifier", rows, batch_size=2)
    attach(trainer, hf.classes())
    unlabeled = [{"input_ids": row["input_ids"]} for row in rows]
    trainer.data_collator = lambda rows: {"input_ids": torch.stack([row["input_ids"][:2] for row in rows])}
    results["unlabeled"] = trainer.predict(unlabeled)
    boxes = {"class_labels": torch.tensor([1]), "boxes": torch.full((1, 4), 0.4)}
    images = [{"pixels": torch.full((3, 16, 16), index / 5), "labels": boxes} for index in range(5)]
    results["boxes"] = detector(hf.Stream(images))
    return results


def test_the_loss_is_that_of_one_process() -> None:
    expected = {
        "popped": hf.by_hand("tokens", hf.samples("tokens", 9)[1:]),
        "targets": hf.by_hand("tokens", hf.samples("tokens", 9)[1:]),
        "summed tokens": hf.by_hand("causal", hf.samples("causal", 9)[1:]),
        "summed rows": hf.by_hand("classifier", hf.samples("classifier", 7)),
        "vector": hf.by_hand("classifier", hf.samples("classifier", 7)),
    }
    for found in [*run(2, changed, backend="gloo", limit=120), changed(SingleCommunicator())]:
        for name, numbers in expected.items():
            assert found[name] == pytest.approx(numbers["loss"], rel=1e-6), name
        assert found["unlabeled"].predictions.shape == (7, hf.CLASSES)
        assert not any("accuracy" in name for name in found["unlabeled"].metrics)
        assert found["boxes"] == 5


@pytest.mark.parametrize(
    ("metrics", "given", "name"),
    [
        (MetricCollection({"loss": hf.classes()["accuracy"]}), {}, "eval_loss"),
        (hf.classes(), {"eval_accuracy": 1.0}, "eval_accuracy"),
        (None, {"eval_loss": 1.0}, "eval_loss"),
    ],
)
def test_a_number_that_is_given_twice(metrics: Any, given: Any, name: str) -> None:
    trainer = hf.trainer_of("classifier", hf.samples("classifier", 3), compute_metrics=lambda prediction: given)
    attach(trainer, metrics)
    with pytest.raises(InputError, match=name):
        trainer.evaluate()


class Texts(torch.nn.Module):
    """Gives texts beside its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hf.model_of("classifier")

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        return {"loss": output.loss, "logits": output.logits, "texts": ["a"] * len(input_ids), "none": None}


def test_what_can_not_be_joined() -> None:
    """The first batch's texts in the place of all is no answer."""
    rows = hf.samples("classifier", 4)
    for concatenates in (True, False):
        trainer = hf.trainer_of("classifier", rows, batch_size=2, model=Texts(), eval_do_concat_batches=concatenates)
        attach(trainer)
        if concatenates:
            with pytest.raises(InputError, match="eval_do_concat_batches=False"):
                trainer.predict(rows)
        else:
            assert [part[1] for part in trainer.predict(rows).predictions] == [["a", "a"]] * 2


def test_a_function_is_no_metric() -> None:
    trainer = hf.trainer_of("classifier", hf.samples("classifier", 3))
    with pytest.raises(InputError, match="compute_metrics"):
        attach(trainer, {"f1": lambda prediction: 1.0})


def test_no_cycle_keeps_the_trainer() -> None:
    """The collector would wait 5 s for each persistent worker."""
    trainer = hf.trainer_of("classifier", hf.samples("classifier", 3))
    attach(trainer, hf.classes())
    trainer.evaluate()
    gone = weakref.ref(trainer)
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()

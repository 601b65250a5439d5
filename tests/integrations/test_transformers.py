"""Hugging Face's trainers with metrics attached: the numbers and predictions of one process, on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from distmetrics import InputError, SingleCommunicator
from distmetrics.testing import run
from tests.integrations import hf

pytest.importorskip("transformers")
from transformers import Trainer

from distmetrics.integrations.transformers import attach

# all in one worker, so that the worlds run once
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(300), pytest.mark.xdist_group("transformers")]
LENGTHS = {1: (13,), 3: (12, 13, 1)}
NUMBERS = ("loss", "right", "seen")
Results = dict[Any, Any]


def numbers(metrics: dict[str, Any], prefix: str = "eval") -> dict[str, Any]:
    return {name: metrics[f"{prefix}_{name}"] for name in NUMBERS if f"{prefix}_{name}" in metrics}


def attached(kind: str, rows: Any, size: int = 2, equal_batches: bool | None = None, **options: Any) -> Any:
    trainer = hf.trainer_of(kind, rows, batch_size=size, **options)
    metrics = None if kind == "regression" else hf.counters()
    attach(trainer, metrics, update=hf.update(kind), equal_batches=equal_batches)
    return trainer


def masked() -> list[Any]:
    """Rows whose second half has no label that counts."""
    rows = hf.samples("causal", 8)
    for row in rows[4:]:
        row["labels"][:] = -100
    return rows


def evaluations(comm: Any) -> Results:
    """Each kind of model, over data of each length, with a length and without; then masked rows."""
    results: Results = {}
    for kind in hf.KINDS:
        for count in LENGTHS[comm.world_size]:
            rows = hf.samples(kind, count + 1)[1:]  # with one sample, not the one that is masked
            for data in (rows, hf.Stream(rows)):
                trainer = attached(kind, data)
                metrics = trainer.evaluate()
                assert trainer.args.average_tokens_across_devices
                results[kind, count, type(data).__name__] = numbers(metrics)
    results["masked"] = numbers(attached("causal", masked()).evaluate())
    results["smooth"] = numbers(attached("tokens", hf.samples("tokens", 9), label_smoothing_factor=0.1).evaluate())
    return results


def predictions(comm: Any) -> Results:
    """Ragged logits, in the order of the data, joined and by batch; whole ones for ``compute_metrics``."""
    rows, seen = hf.samples("causal", 13), {}
    results: Results = {type(data).__name__: attached("causal", rows).predict(data) for data in (rows, hf.Stream(rows))}
    results["parts"] = attached("causal", rows, eval_do_concat_batches=False).predict(rows).predictions

    def compute_metrics(prediction: Any) -> dict[str, float]:
        seen.update(vars(prediction))
        return {"rows": len(prediction.predictions)}

    include = {"include_for_metrics": ["inputs", "loss"], "compute_metrics": compute_metrics}
    trainer = attached("classifier", hf.samples("classifier", 7), **include)
    return results | {"whole": (trainer.evaluate(metric_key_prefix="mine"), seen)}


class MeetsForObjectDetection(torch.nn.Module):
    """A model whose forward pass needs all ranks, as the losses of its kind do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hf.model_of("classifier")

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:  # noqa: BLE001  (it is what is asked)
        return type(error).__name__, str(error)
    return "", ""


def broken(comm: Any, *, equal_batches: bool | None = None, **options: Any) -> Any:
    trainer = hf.trainer_of("classifier", hf.samples("classifier", 7), batch_size=1, **options)

    def update(metrics: Any, outputs: Any, inputs: Any) -> None:
        if comm.rank == comm.world_size - 1:
            raise ZeroDivisionError("of the user's")

    attach(trainer, hf.counters(), update=update, equal_batches=equal_batches)
    return trainer.evaluate()


def errors(comm: Any) -> Results:
    """Each is told to every rank, also where ranks need each other in the model; the next evaluation goes well."""

    def count_rows(prediction: Any) -> dict[str, float]:
        return {"rows": 1 // (comm.world_size - 1 - comm.rank)}

    def evaluated(rows: int, **options: Any) -> Any:
        return attached("classifier", hf.samples("classifier", rows), **options).evaluate()

    return {
        "update": error_of(lambda: broken(comm)),
        "meets": error_of(lambda: broken(comm, model=MeetsForObjectDetection(), equal_batches=True)),
        "compute": error_of(lambda: evaluated(5, compute_metrics=count_rows)),
        "lengths": error_of(lambda: evaluated(4 + comm.rank)),
        "after": numbers(evaluated(5)),
        "few that meet": numbers(evaluated(1, size=1, model=MeetsForObjectDetection())),
    }


class Pops(Trainer):
    """Takes the labels out of the batch that it is given, and gives a loss for each row that has one label."""

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        labels = inputs.pop("labels")
        with torch.no_grad():
            logits = model(**inputs).logits
        reduction = "none" if labels.ndim == 1 else "mean"
        return cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction=reduction), logits, labels


class Targets(torch.nn.Module):
    """Calls its labels otherwise, and gives texts beside its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hf.model_of("tokens")

    def forward(self, input_ids: Any = None, attention_mask: Any = None, targets: Any = None) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=targets)
        return {"loss": output.loss, "logits": output.logits, "texts": ["a"] * len(input_ids), "none": None}


def with_targets(rows: Any, **options: Any) -> Any:
    def collate(rows: list[Any]) -> Any:
        batch = hf.collate(rows)
        batch["targets"] = batch.pop("labels")
        return batch

    options |= {"model": Targets(), "label_names": ["targets"], "remove_unused_columns": False}
    trainer = hf.trainer_of("tokens", rows, batch_size=2, **options)
    trainer.data_collator = collate
    attach(trainer)
    return trainer


def overrides(comm: Any) -> Results:
    """Trainers as users change them."""
    results: Results = {"targets": with_targets(hf.samples("tokens", 9)[1:]).evaluate()["eval_loss"]}
    for kind in ("classifier", "tokens"):
        trainer = hf.trainer_of(kind, hf.samples(kind, 9)[1:], batch_size=2, kind_of_trainer=Pops)
        attach(trainer)
        results[kind] = trainer.evaluate()["eval_loss"]
    return results


def everything(comm: Any) -> dict[str, Results]:
    hf.join(comm)
    parts = (evaluations, predictions, overrides, *([errors] if comm.world_size > 1 else []))
    return {part.__name__: part(comm) for part in parts}


@pytest.fixture(scope="module")
def alone() -> dict[str, Results]:
    return everything(SingleCommunicator())


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Results]]:
    return run(3, everything, backend="gloo", limit=240)


@functools.cache
def by_hand(kind: str, count: int) -> dict[str, float]:
    return hf.by_hand(kind, hf.samples(kind, count + 1)[1:])


def test_the_numbers_are_those_of_one_process(ranks: list[dict[str, Results]], alone: dict[str, Results]) -> None:
    """Of one batch that holds everything: rows, or tokens that count, weigh the same."""
    for rank in [*ranks, alone]:
        found = dict(rank["evaluations"])
        assert found.pop("masked") == pytest.approx(hf.by_hand("causal", masked()), rel=1e-6)
        smooth = hf.by_hand("tokens", hf.samples("tokens", 9), smoothing=0.1)
        assert found.pop("smooth") == pytest.approx(smooth, rel=1e-6)
        assert len(found) == 2 * len(hf.KINDS) * len(LENGTHS[1 if rank is alone else len(ranks)])
        for (kind, count, _), values in found.items():
            assert values == pytest.approx(by_hand(kind, count), rel=1e-6), (kind, count)
        for name, loss in rank["overrides"].items():
            kind = "tokens" if name == "targets" else name
            assert loss == pytest.approx(by_hand(kind, 8)["loss"], rel=1e-6), name


def test_predictions_are_in_the_order_of_the_data(ranks: list[dict[str, Results]], alone: dict[str, Results]) -> None:
    """Ragged ones too, whatever batches they were computed in; not-a-label fills them up."""
    rows = hf.samples("causal", 13)
    theirs = hf.trainer_of("causal", rows, batch_size=2).predict(rows).predictions
    for rank in [*ranks, alone]:
        for output in (rank["predictions"]["list"], rank["predictions"]["Stream"]):
            assert output.predictions.shape == theirs.shape
            assert output.label_ids.shape == theirs.shape[:2]
            assert output.metrics["test_seen"] == hf.by_hand("causal", rows)["seen"]
            for place, row in enumerate(rows):
                length = len(row["labels"])
                assert output.predictions[place, :length] == pytest.approx(theirs[place, :length], abs=1e-5)
                assert output.label_ids[place, :length].tolist() == row["labels"].tolist()
        parts = rank["predictions"]["parts"]
        assert sum(len(part) for part in parts) == 13
        assert len({part.shape[1] for part in parts}) > 1


def test_compute_metrics_sees_all_rows_once(ranks: list[dict[str, Results]]) -> None:
    rows = hf.samples("classifier", 7)
    for rank in ranks:
        metrics, seen = rank["predictions"]["whole"]
        assert numbers(metrics, "mine") == pytest.approx(hf.by_hand("classifier", rows), rel=1e-6)
        assert (metrics["mine_rows"], len(seen["losses"])) == (7, 7)
        assert seen["label_ids"].tolist() == [row["labels"] for row in rows]
        inputs = [[word for word in line if word > 0] for line in seen["inputs"].tolist()]
        assert inputs == [row["input_ids"].tolist() for row in rows]


def test_every_rank_hears_of_an_error(ranks: list[dict[str, Results]]) -> None:
    *others, last = (rank["errors"] for rank in ranks)
    for name in ("update", "meets", "compute"):
        assert last[name][0] == "ZeroDivisionError"
        for found in others:
            assert found[name][0] == "PeerLostError"
            assert "rank 2  ZeroDivisionError" in found[name][1]
    for found in (*others, last):
        assert found["lengths"][0] == "InputError"
        for name, count in {"after": 5, "few that meet": 1}.items():
            expected = hf.by_hand("classifier", hf.samples("classifier", count))
            assert found[name] == pytest.approx(expected, rel=1e-6)


def test_what_can_not_be_joined_is_refused() -> None:
    """The first batch's texts in the place of all is no answer."""
    rows = hf.samples("tokens", 4)
    with pytest.raises(InputError, match="eval_do_concat_batches=False"):
        with_targets(rows).predict(rows)
    parts = with_targets(rows, eval_do_concat_batches=False).predict(rows).predictions
    assert [part[1] for part in parts] == [["a", "a"]] * 2


def test_a_function_is_no_metric() -> None:
    with pytest.raises(InputError, match="compute_metrics"):
        attach(hf.trainer_of("classifier", hf.samples("classifier", 3)), {"f1": lambda prediction: 1.0})

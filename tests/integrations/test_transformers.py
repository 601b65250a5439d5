"""Hugging Face's trainers with metrics attached: the numbers and predictions of one process, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from distmetrics import SingleCommunicator
from distmetrics.testing import run
from tests.integrations import hf

pytest.importorskip("transformers")
from distmetrics.integrations.transformers import attach

LENGTHS = {1: (13,), 2: (12, 13, 1), 3: (13, 2)}
NUMBERS = ("loss", "right", "seen")
Results = dict[Any, Any]


def numbers(metrics: dict[str, Any], prefix: str = "eval") -> dict[str, Any]:
    return {name: metrics[f"{prefix}_{name}"] for name in NUMBERS if f"{prefix}_{name}" in metrics}


def attached(kind: str, trainer: Any, **options: Any) -> Any:
    attach(trainer, None if kind == "regression" else hf.counters(), update=hf.update(kind), **options)
    return trainer


def evaluations(comm: Any) -> Results:
    """Each kind of model, over data of each length, with a length and without."""
    results = {}
    for kind in hf.KINDS:
        for count in LENGTHS[comm.world_size]:
            rows = hf.samples(kind, count + 1)[1:]  # with one sample, not the one that is masked
            for data in (rows, hf.Stream(rows)):
                trainer = attached(kind, hf.trainer_of(kind, data, batch_size=2))
                metrics = trainer.evaluate()
                assert trainer.args.average_tokens_across_devices
                results[kind, count, type(data).__name__] = numbers(metrics)
    return results


def predictions(comm: Any) -> Results:
    """Ragged logits, in the order of the data; whole ones for ``compute_metrics``; generated tokens."""
    results: Results = {}
    rows = hf.samples("causal", 13)
    for data in (rows, hf.Stream(rows)):
        trainer = attached("causal", hf.trainer_of("causal", rows, batch_size=2))
        results["ragged", type(data).__name__] = trainer.predict(data)
    parts = hf.trainer_of("causal", rows, batch_size=2, eval_do_concat_batches=False)
    attach(parts)
    results["parts"] = parts.predict(rows).predictions

    seen: Results = {}

    def compute_metrics(prediction: Any) -> dict[str, float]:
        seen.update(vars(prediction))
        return {"rows": len(prediction.predictions)}

    include = {"include_for_metrics": ["inputs", "loss"], "compute_metrics": compute_metrics}
    trainer = attached("classifier", hf.trainer_of("classifier", hf.samples("classifier", 7), batch_size=2, **include))
    results["whole"] = (trainer.evaluate(metric_key_prefix="mine"), seen)
    rows = hf.samples("seq2seq", 7)
    generating = hf.trainer_of("seq2seq", rows, batch_size=2, seq2seq=True, predict_with_generate=True)
    attach(generating)
    results["generated"] = generating.predict(rows, max_length=9, num_beams=2)
    return results


class Labels(torch.utils.data.Dataset[Any]):
    """Nothing but labels that count, then rows that are masked."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        for row in rows[len(rows) // 2 :]:
            row["labels"][:] = -100

    def __getitem__(self, place: int) -> Any:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)


def special(comm: Any) -> Results:
    """Masked ranks, smoothed labels, losses of the user's, classes of torchmetrics, several data sets."""
    results: Results = {}
    masked = Labels(hf.samples("causal", 8))
    results["masked"] = numbers(attached("causal", hf.trainer_of("causal", masked, batch_size=2)).evaluate())
    rows = hf.samples("classifier", 9)
    for kind in ("causal", "tokens"):
        smooth = hf.trainer_of(kind, hf.samples(kind, 9), batch_size=2, label_smoothing_factor=0.1)
        results["smooth", kind] = numbers(attached(kind, smooth).evaluate())
    trainer = hf.trainer_of("classifier", {"a": rows[:4], "b": rows}, batch_size=2)
    handle = attach(trainer, hf.classes())
    results["sets"] = trainer.evaluate()
    handle.detach()
    handle.detach()
    results["detached"] = "evaluation_loop" in vars(trainer)
    weighted = hf.trainer_of("causal", hf.samples("causal", 9), batch_size=2)
    attach(weighted, weight=lambda inputs: 0 * len(inputs["labels"]) + 1)
    results["weighted"] = weighted.evaluate()["eval_loss"]
    return results


class Meets(torch.nn.Module):
    """A model whose forward pass needs all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = hf.model_of("classifier")

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def meeting(comm: Any) -> Results:
    """As many batches on every rank, and rows that fill up are in no number."""
    results: Results = {}
    for count in (5, 1):
        rows = hf.samples("classifier", count)
        trainer = hf.trainer_of("classifier", rows, batch_size=1, model=Meets())
        results[count] = numbers(attached("classifier", trainer, equal_batches=True).evaluate())
    results["error"] = error_of(lambda: broken(comm, model=Meets(), equal_batches=True))
    sharded = hf.model_of("classifier")
    fully_shard(sharded, mesh=init_device_mesh("cpu", (comm.world_size,)))
    trainer = hf.trainer_of("classifier", hf.samples("classifier", 5), batch_size=1, model=sharded)
    results["sharded"] = numbers(attached("classifier", trainer).evaluate())
    return results


def training(comm: Any) -> Results:
    """Evaluation while it trains: the best model is the one that it would be in one process."""
    rows = hf.samples("classifier", 9)
    trainer = hf.trainer_of(
        "classifier",
        rows,
        batch_size=2,
        train_dataset=hf.samples("classifier", 12),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        learning_rate=0.1,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=2,
        save_steps=2,
        output_dir=shared_folder(comm),
        load_best_model_at_end=True,
        metric_for_best_model="right",
        greater_is_better=True,
        save_only_model=True,
    )
    attached("classifier", trainer).train()
    logged = [numbers(entry) for entry in trainer.state.log_history if "eval_right" in entry]
    again = numbers(trainer.evaluate())
    return {
        "logged": logged,
        "best": trainer.state.best_metric,
        "again": again,
        "by hand": hf.by_hand("classifier", rows, model=trainer.accelerator.unwrap_model(trainer.model)),
    }


def shared_folder(comm: Any) -> str:
    import tempfile

    from distmetrics import all_gather_object

    return str(all_gather_object(tempfile.mkdtemp(), comm=comm)[0])


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
    """Each is told to every rank, and the next evaluation goes well."""

    def count_rows(prediction: Any) -> dict[str, float]:
        return {"rows": 1 // (comm.world_size - 1 - comm.rank)}

    def evaluated(kind: str, metrics: Any, rows: Any = None, **options: Any) -> Any:
        trainer = hf.trainer_of(kind, rows or hf.samples(kind, 5), batch_size=2, **options)
        attach(trainer, metrics)
        return trainer.evaluate()

    several = {"batch_eval_metrics": True, "compute_metrics": lambda prediction, compute_result: {}}
    results = {
        "update": error_of(lambda: broken(comm)),
        "compute": error_of(lambda: evaluated("classifier", None, compute_metrics=count_rows)),
        "no classifier": error_of(lambda: evaluated("causal", hf.classes())),
        "batches": error_of(lambda: evaluated("classifier", None, **several)),
        "lengths": error_of(lambda: evaluated("classifier", None, hf.samples("classifier", 4 + comm.rank))),
        "best": error_of(lambda: best_of_unknown()),
    }
    results["after"] = numbers(
        attached("classifier", hf.trainer_of("classifier", hf.samples("classifier", 5))).evaluate()
    )
    return results


def best_of_unknown() -> Any:
    rows = hf.samples("classifier", 4)
    trainer = hf.trainer_of(
        "classifier",
        rows,
        train_dataset=rows,
        max_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="f1",
    )
    return attached("classifier", trainer).train()


def everything(comm: Any) -> dict[str, Results]:
    hf.join(comm)
    parts = (evaluations, predictions, special) if comm.world_size != 2 else PARTS
    return {part.__name__: part(comm) for part in parts}


PARTS = (evaluations, predictions, special, meeting, training, errors)


@pytest.fixture(scope="module")
def alone() -> dict[str, Results]:
    return everything(SingleCommunicator())


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Results]]:
    return run(request.param, everything, backend="gloo", limit=240)


# all in one worker, so that the worlds run once
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(300), pytest.mark.xdist_group("transformers")]


def test_the_numbers_are_those_of_one_process(ranks: list[dict[str, Results]], alone: dict[str, Results]) -> None:
    """Of one batch that holds everything: rows, or tokens that count, weigh the same."""
    for rank in [*ranks, alone]:
        for (kind, count, _), found in rank["evaluations"].items():
            assert found == pytest.approx(hf.by_hand(kind, hf.samples(kind, count + 1)[1:]), rel=1e-6), (kind, count)
    assert len(ranks[0]["evaluations"]) == 2 * len(hf.KINDS) * len(LENGTHS[len(ranks)])


def test_predictions_are_in_the_order_of_the_data(ranks: list[dict[str, Results]], alone: dict[str, Results]) -> None:
    """Ragged ones too, whatever batches they were computed in; not-a-label fills them up."""
    rows = hf.samples("causal", 13)
    theirs = hf.trainer_of("causal", rows, batch_size=2).predict(rows).predictions
    for rank in [*ranks, alone]:
        for key in (("ragged", "list"), ("ragged", "Stream")):
            output = rank["predictions"][key]
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
        assert metrics["mine_rows"] == 7
        assert seen["label_ids"].tolist() == [row["labels"] for row in rows]
        assert len(seen["losses"]) == 7
        inputs = [[word for word in line if word > 0] for line in seen["inputs"].tolist()]
        assert inputs == [row["input_ids"].tolist() for row in rows]


def test_generated_tokens_are_those_of_one_process(ranks: list[dict[str, Results]]) -> None:
    rows = hf.samples("seq2seq", 7)
    options = {"batch_size": 2, "seq2seq": True, "predict_with_generate": True}
    theirs = hf.trainer_of("seq2seq", rows, **options).predict(rows, max_length=9, num_beams=2)
    for rank in ranks:
        output = rank["predictions"]["generated"]
        assert np.array_equal(output.predictions, theirs.predictions)
        assert output.metrics["test_loss"] == pytest.approx(hf.by_hand("seq2seq", rows)["loss"], rel=1e-6)


def test_masked_ranks_and_smoothed_labels(ranks: list[dict[str, Results]], alone: dict[str, Results]) -> None:
    for rank in [*ranks, alone]:
        found = rank["special"]
        masked = Labels(hf.samples("causal", 8)).rows
        assert found["masked"] == pytest.approx(hf.by_hand("causal", masked), rel=1e-6)
        for kind in ("causal", "tokens"):
            expected = hf.by_hand(kind, hf.samples(kind, 9), smoothing=0.1)
            assert found["smooth", kind] == pytest.approx(expected, rel=1e-6)
    assert len({rank["special"]["weighted"] for rank in ranks}) == 1
    assert ranks[0]["special"]["weighted"] != pytest.approx(hf.by_hand("causal", hf.samples("causal", 9))["loss"])


def test_several_data_sets_and_classes_of_torchmetrics(ranks: list[dict[str, Results]]) -> None:
    rows = hf.samples("classifier", 9)
    for rank in ranks:
        found = rank["special"]["sets"]
        for name, part in {"a": rows[:4], "b": rows}.items():
            expected = hf.by_hand("classifier", part)
            assert found[f"eval_{name}_loss"] == pytest.approx(expected["loss"], rel=1e-6)
            assert found[f"eval_{name}_accuracy"] == pytest.approx(expected["right"] / expected["seen"], rel=1e-6)
            assert found[f"eval_{name}_scores"][0] == expected["right"]
        assert not rank["special"]["detached"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_model_with_a_collective_in_it(ranks: list[dict[str, Results]]) -> None:
    for rank in ranks:
        for name, count in {5: 5, 1: 1, "sharded": 5}.items():
            expected = hf.by_hand("classifier", hf.samples("classifier", count))
            assert rank["meeting"][name] == pytest.approx(expected, rel=1e-6)
    assert [rank["meeting"]["error"][0] for rank in ranks] == ["PeerLostError", "ZeroDivisionError"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_the_best_model_is_found_while_it_trains(ranks: list[dict[str, Results]]) -> None:
    for rank in ranks:
        found = rank["training"]
        assert len(found["logged"]) == 3
        assert found["best"] == max(entry["right"] for entry in found["logged"])
        assert found["again"] == pytest.approx(found["by hand"], rel=1e-6)
        assert found["again"]["right"] == found["best"]
        assert found["logged"] == ranks[0]["training"]["logged"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_every_rank_hears_of_an_error(ranks: list[dict[str, Results]]) -> None:
    first, last = (rank["errors"] for rank in ranks)
    for name in ("update", "compute"):
        assert last[name][0] == "ZeroDivisionError"
        assert first[name][0] == "PeerLostError"
        assert "ZeroDivisionError" in first[name][1]
        assert "rank 1" in first[name][1]
    for found in (first, last):
        assert found["no classifier"][0] == "InputError"
        assert "update=" in found["no classifier"][1]
        assert found["batches"][0] == "ConfigurationError"
        assert found["lengths"][0] == "InputError"
        assert found["best"][0] == "KeyError"
        assert "eval_right" in found["best"][1]
        assert found["after"] == pytest.approx(hf.by_hand("classifier", hf.samples("classifier", 5)), rel=1e-6)

"""The training log in Hugging Face's trainer, Accelerate and Lightning: rows of two ranks are those of one process."""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import distmetrics as dm
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.testing import run
from tests.integrations import hf
from tests.integrations.modules import elastic

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(240)]


def close(ours: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert [row.keys() for row in ours] == [row.keys() for row in expected]
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)


def by_transformers(comm: Any) -> dict[str, Any]:
    """Train without learning; return what the trainer's own log has, and what TensorBoard is told."""
    from transformers import Trainer, TrainerCallback

    from distmetrics.integrations.transformers import attach_log

    reported: list[dict[str, float]] = []
    by_step: list[float] = []

    class Reported(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            reported.append({"step": state.global_step, **logs})

    class Logging(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
            labels = inputs["labels"][:, 1:]
            counts = labels != -100
            tokens = counts.sum()
            right = ((outputs.logits[:, :-1].argmax(-1) == labels) & counts).sum()
            if model.training:
                log.mean("accuracy", right / tokens, weight=tokens)  # of no tokens it is NaN, and does not count
                log.sum("tokens", tokens)
                log.sum("pair", torch.stack([tokens, tokens]))
                by_step.append(float(right / tokens))
            return (loss, outputs) if return_outputs else loss

    hf.join(comm)
    rows = hf.samples("causal", 28)
    trainer = hf.trainer_of(
        "causal",
        rows,
        kind_of_trainer=Logging,
        train_dataset=rows,
        per_device_train_batch_size=4 // comm.world_size,
        learning_rate=0.0,
        max_steps=7,
        logging_steps=3,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=3,
    )
    trainer.add_callback(Reported)
    log = dm.Log()
    attach_log(trainer, log)
    with pytest.raises(ConfigurationError, match="a log attached already"):
        attach_log(trainer, log)
    trainer.train()
    log.sum("loss", 1.0)
    trainer.control.should_log = True
    with pytest.raises(InputError, match="the trainer logs 'loss' as well"):
        trainer.log({"loss": 0.5})
    history = trainer.state.log_history
    ours = ("step", "accuracy", "tokens", "pair/0", "pair/1")
    theirs = ("loss", "train_runtime")
    return {
        "rows": [{name: row[name] for name in ours} for row in history if "accuracy" in row],
        "beside": [[name for name in theirs if name in row] for row in history if "tokens" in row],
        "evaluations": sum("eval_loss" in row and "tokens" not in row for row in history),
        "reported": [{name: row[name] for name in ours} for row in reported if "accuracy" in row],
        "by step": by_step,
    }


def test_the_trainer_s_own_log_has_the_rows() -> None:
    pytest.importorskip("transformers")
    (alone,) = run(1, by_transformers, backend="gloo")
    both = run(2, by_transformers, backend="gloo", limit=220)
    for each in (alone, *both):
        assert [row["step"] for row in each["rows"]] == [3, 6, 7]
        assert each["beside"] == [["loss"], ["loss"], ["train_runtime"]]
        assert each["evaluations"] == 3
        assert each["reported"] == each["rows"]
        assert all(row["pair/0"] == row["pair/1"] == row["tokens"] for row in each["rows"])
        close(each["rows"], alone["rows"])
    parts = [value for each in both for value in each["by step"][3:6] if value == value]
    assert sum(parts) / len(parts) != pytest.approx(alone["rows"][1]["accuracy"], rel=1e-3)  # a mean of means


# Loss and tokens of each sample: two ranks take the samples of a step in turns.
SAMPLES = [(index % 7 / 8, (5 * index) % 11) for index in range(20)]


def batches(comm: Any) -> list[tuple[float, int]]:
    """Return loss and tokens of each step on this rank."""
    steps = []
    for first in range(0, len(SAMPLES), 2):
        mine = SAMPLES[first : first + 2][comm.rank :: comm.world_size]
        tokens = sum(count for _, count in mine)
        loss = sum(loss * count for loss, count in mine)
        steps.append((loss / tokens if tokens else float("nan"), tokens))
    return steps


def rows_by_hand(every: int) -> list[tuple[int, dict[str, float]]]:
    rows = []
    for first in range(0, len(SAMPLES) // 2, every):
        last = min(first + every, len(SAMPLES) // 2) - 1
        mine = SAMPLES[2 * first : 2 * last + 2]
        tokens = sum(count for _, count in mine)
        loss = sum(loss * count for loss, count in mine) / tokens
        most = float(max(n for _, n in mine))
        pair = {"pair/0": most, "pair/1": most}
        rows.append((last, {"loss": loss, "lr": 1.0 / (last + 1), "longest": most, "seen": last, **pair}))
    return rows


def by_accelerate(comm: Any) -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.tracking import GeneralTracker

    from distmetrics.integrations.accelerate import attach_log

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "memory", False, None
        main_process_only = False  # Accelerate still calls it on the main process alone

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[Any] = []
            self.options: list[Any] = []

        def log(self, values: Any, step: Any = None, **options: Any) -> None:
            self.rows.append((step, values))
            self.options.append(options)

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    tracker = Tracker()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("test")
    accelerator.log({"before": comm.rank}, step=0)
    accelerator.state.destroy_process_group = lambda *_: None  # the test's own
    attach_log(accelerator, dm.Log(), every=4)
    with pytest.raises(ConfigurationError, match="a log attached already"):
        attach_log(accelerator, dm.Log())
    for step, (loss, tokens) in enumerate(batches(comm)):
        most = max(count for _, count in SAMPLES[2 * step : 2 * step + 2][comm.rank :: comm.world_size])
        how = {"weight": torch.tensor(tokens), "same": ["lr"], "max": ["longest", "pair"]}
        values = {"loss": torch.tensor(loss), "lr": 1.0 / (step + 1), "longest": most, "pair": [most, most]}
        accelerator.log(values, step=step, log_kwargs={"distmetrics": how, "memory": {"tag": step}})
        accelerator.log({"seen": step}, step=step, log_kwargs={"distmetrics": {"same": ["seen"]}})
    refusals = {}
    for case, how in REFUSED.items():
        with pytest.raises(ConfigurationError) as caught:
            accelerator.log({"loss": 1.0}, step=10, log_kwargs=how)
        refusals[case] = caught.value.what
    accelerator.end_training()
    return {"rows": tracker.rows, "options": tracker.options, "refusals": refusals}


REFUSED: dict[str, Any] = {
    "does not say how 'loss' of all ranks is combined": None,
    "cannot read 'mean': ['loss']": {"distmetrics": {"mean": ["loss"]}},
    "cannot read 'max': 'loss'": {"distmetrics": {"max": "loss"}},
    "cannot read 'tags': 3": {"distmetrics": {"tags": 3}},
    "says how 'lr' is combined, and it is not logged": {"distmetrics": {"weight": 1, "same": ["lr"]}},
    "says how 'loss' is combined, in two ways": {"distmetrics": {"max": ["loss"], "min": ["loss"]}},
}


def test_accelerate_s_trackers_get_the_rows() -> None:
    pytest.importorskip("accelerate")
    for world_size in (1, 2):
        first, *others = run(world_size, by_accelerate, backend="gloo", limit=220)
        before, *rows = first["rows"]
        assert before == (0, {"before": 0})
        expected = rows_by_hand(4)
        assert [step for step, _ in rows] == [step for step, _ in expected] == [3, 7, 9]
        close([row for _, row in rows], [row for _, row in expected])
        assert first["options"] == [{}, {"tag": 3}, {"tag": 7}, {"tag": 9}]
        assert [other["rows"] for other in others] == [[]] * (world_size - 1)
        for case, what in first["refusals"].items():
            assert what == f"accelerator.log, with attach_log, {case}"


def plain_accelerator(comm: Any) -> list[Any]:
    """Log by a Log of one's own: what Accelerate logs with is a writer as it is."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    os.environ |= elastic(comm)
    AcceleratorState._reset_state()
    told: list[Any] = []
    accelerator = Accelerator(cpu=True)
    accelerator.trackers = [type("Tracker", (), {"name": "t", "log": lambda self, *a, **k: told.append((a, k))})()]
    log = dm.Log(writers=[accelerator.log])
    log.mean("loss", (3 / 12, 3 / 4)[comm.rank], weight=(12, 4)[comm.rank])
    log.flush(1)
    return told


def test_accelerate_s_log_is_a_writer() -> None:
    pytest.importorskip("accelerate")
    assert run(2, plain_accelerator, backend="gloo") == [[(({"loss": 0.375},), {"step": 1})], []]


def by_lightning(comm: Any, folder: str) -> dict[str, Any]:
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import CSVLogger

    from distmetrics.integrations.lightning_log import LogMetrics

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers
    log = dm.Log()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            (indices,) = batch
            losses, tokens = torch.tensor([SAMPLES[index] for index in indices.flatten().long().tolist()]).T
            loss = (losses * tokens).sum() / tokens.sum()
            log.mean("loss", loss, weight=tokens.sum())
            log.max("longest", tokens.max())
            log.max("pair", torch.stack([tokens.max(), tokens.max()]))
            self.log("plain", 1.0)
            return self.layer(indices).sum() * 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        strategy="ddp" if comm.world_size > 1 else "auto",
        devices=comm.world_size,
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        log_every_n_steps=2,
        logger=CSVLogger(folder, name="", version=str(comm.world_size)),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[LogMetrics(log)],
    )
    mine = torch.arange(20.0)[comm.rank :: comm.world_size, None]
    trainer.fit(Model(), DataLoader(TensorDataset(mine), batch_size=2 // comm.world_size))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_lightning_s_loggers_get_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    whole = [*range(10), *range(10)]  # the steps of two epochs, four batches a row
    expected = []
    for first in range(0, 20, 4):
        samples = [SAMPLES[2 * step + place] for step in whole[first : first + 4] for place in (0, 1)]
        tokens = sum(count for _, count in samples)
        loss = sum(each * count for each, count in samples) / tokens
        most = float(max(count for _, count in samples))
        expected.append({"loss": loss, "longest": most, "pair/0": most, "pair/1": most})
    for world_size in (1, 2):
        per_rank = run(world_size, by_lightning, str(tmp_path), backend="gloo", limit=220)
        with (tmp_path / str(world_size) / "metrics.csv").open(newline="") as file:
            rows = [*csv.DictReader(file)]
        ours = [row for row in rows if row["loss"]]
        close([{name: float(row[name]) for name in expected[0]} for row in ours], expected)
        assert [row["step"] for row in ours] == ["1", "3", "5", "7", "9"]
        assert {row["step"] for row in rows if row["plain"]} == {"1", "3", "5", "7", "9"}
        for metrics in per_rank:
            assert metrics["loss"] == pytest.approx(expected[-1]["loss"])

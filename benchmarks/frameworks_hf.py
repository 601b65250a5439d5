"""Hugging Face's part of the table of frameworks: ``trainer.evaluate()`` attached, and alone."""

from collections.abc import Iterator
from typing import Any

from torchmetrics import SumMetric

from benchmarks.frameworks_cases import (
    Case,
    Outcome,
    Seen,
    Values,
    cases_of,
    outcomes,
    warnings_of_repeats,
)
from distmetrics import sync_and_compute
from distmetrics.data import exact
from tests.integrations import hf

NAMES = ("loss", "right", "seen")
DATA = ("map", "iterable")


def all_cases(world_size: int) -> Iterator[Case]:
    """Yield the evaluations of one world.

    All models but classifiers and regression have ragged rows and masked labels.
    """
    return cases_of("Hugging Face", hf.KINDS, DATA, world_size)


def cases(part: list[Case]) -> Iterator[Outcome]:
    """Yield the outcomes of evaluations of one world."""
    return outcomes(evaluations, part, _single)


def evaluations(comm: Any, part: list[Case], with_metrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf.join(comm)
    return [_evaluate(case, with_metrics) for case in part]


def _rows(case: Case) -> list[dict[str, Any]]:
    """Return the samples; of one, not the one whose labels are all masked."""
    return hf.samples(case.program, case.samples + 1)[1:]


def _single(case: Case) -> Values:
    return hf.by_hand(case.program, _rows(case))


def _evaluate(case: Case, with_metrics: bool) -> Seen:
    from transformers import PrinterCallback

    from distmetrics.integrations.transformers import attach

    kind = case.program
    rows: Any = _rows(case) if case.data == "map" else hf.Stream(_rows(case))
    # without it Hugging Face alone fails where batches without a length are ragged
    options: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
    if not with_metrics and kind != "regression":
        options["compute_metrics"] = hf.compute_metrics(kind)
    trainer = hf.trainer_of(kind, rows, batch_size=case.batch_size, **options)
    trainer.remove_callback(PrinterCallback)
    if with_metrics and kind == "regression":
        attach(trainer)
    elif with_metrics:
        attach(trainer, hf.counters(), update=hf.update(kind))
    with warnings_of_repeats() as warned:
        logged = trainer.evaluate()
        synced = _count(trainer, with_metrics)
    values = {name: logged[f"eval_{name}"] for name in NAMES if f"eval_{name}" in logged}
    return Seen(values, synced, warned)


def _count(trainer: Any, is_exact: bool) -> int:
    """Return how many samples a loop of the user's own over the trainer's loader counts."""
    loader = trainer.get_eval_dataloader()
    if is_exact:
        loader = exact(loader)
    count = SumMetric()
    for batch in loader:
        count.update(len(batch["labels"]))
    return int(sync_and_compute(count))

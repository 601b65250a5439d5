"""Whether ranks have the same metrics is told from their records alone: no world is needed."""

from __future__ import annotations

from typing import Any

import pytest

from distmetrics import MismatchError
from distmetrics.collectives.header import Header
from distmetrics.metrics.plan import MetricRecord, SyncSchema, agree_on_metrics


def record(updated: bool, *, shape: tuple[int, ...] = (1,), attributes: str = "", **arguments: str) -> MetricRecord:
    return MetricRecord("", "Own", (("score", "sum", shape),), tuple(arguments.items()), attributes, updated)


def agreed(*records: MetricRecord) -> Any:
    """Who has updated the metric, and whether some rank borrows."""
    headers, schemas = [Header("sync")] * len(records), [SyncSchema((each,), ()) for each in records]
    (updated,), borrowing, _ = agree_on_metrics(headers, schemas, 0)
    return updated, bool(borrowing)


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([record(True), record(True)], ((0, 1), False)),
        ([record(False), record(False)], ((), False)),
        ([record(True), record(False)], ((0,), False)),
        ([record(True, attributes="a"), record(True, attributes="b")], ((0, 1), False)),
        ([record(False, attributes="a"), record(True, attributes="b")], ((1,), True)),
        ([record(False), record(True, shape=(3,))], ((1,), False)),
        ([record(False), record(True, shape=(3,), attributes="3", classes="3")], ((1,), True)),
        ([record(False), record(True, shape=(3,), attributes="b"), record(False)], ((1,), True)),
    ],
)
def test_metrics_that_go_together(records: list[MetricRecord], wanted: Any) -> None:
    """What an update may have changed is no difference, and is borrowed by ranks without one."""
    assert agreed(*records) == wanted


@pytest.mark.parametrize(
    "records",
    [
        [record(True, average="'macro'"), record(True, average="'micro'")],
        [record(False, average="'macro'"), record(False, average="'micro'")],
        [record(False, average="'macro'"), record(True, average="'micro'")],
        [record(True), record(True, ignore="0")],
        [record(False), record(False, ignore="0")],
        [record(False, ignore="0"), record(True)],
        [record(False, shape=(2,)), record(False, shape=(3,))],
        [record(True), record(True).but(kind="Other")],
    ],
)
def test_metrics_that_do_not(records: list[MetricRecord]) -> None:
    with pytest.raises(MismatchError):
        agreed(*records)

"""The table of averageable and other metrics."""

from __future__ import annotations

import pytest

from distlint.averageable import AVERAGEABLE, NOT_AVERAGEABLE, reason_against, stem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1_score", "f1"),
        ("BinaryF1Score", "f1"),
        ("multiclass_f1_score", "f1"),
        ("MultilabelAUROC", "auroc"),
        ("r2_score", "r2"),
        ("zero_one_loss", "zeroone"),
    ],
)
def test_stem(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_every_entry_is_a_stem_with_a_reason_and_in_one_table() -> None:
    assert not NOT_AVERAGEABLE.keys() & AVERAGEABLE.keys()
    for name, reason in {**NOT_AVERAGEABLE, **AVERAGEABLE}.items():
        assert stem(name) == name
        assert len(reason) > 10


@pytest.mark.parametrize("name", ["sklearn.metrics.f1_score", "torchmetrics.functional.auroc", "torchmetrics.F1Score"])
def test_known(name: str) -> None:
    assert reason_against(name)


@pytest.mark.parametrize(
    "name",
    [
        "sklearn.metrics.accuracy_score",
        "sklearn.metrics.unheard_of",
        "mine.f1_score",
        "f1_score",
        "torchmetrics.RetrievalMAP",
    ],
)
def test_averageable_or_unknown(name: str) -> None:
    assert reason_against(name) is None

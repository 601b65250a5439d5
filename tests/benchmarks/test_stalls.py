"""What is told of a class: the lines that wait, and whether its updates can be compiled once for all."""

from __future__ import annotations

import pytest

from benchmarks import stalls


@pytest.mark.parametrize(
    ("name", "waiting", "unchecked", "compiles", "compiles_unchecked"),
    [
        ("BinaryF1Score", 2, 0, "Data-dependent branching", ""),
        ("CatMetric", 2, 2, "Data-dependent branching", "Data-dependent branching"),
        ("RelativeSquaredError", 0, 0, "", ""),
    ],
)
def test_a_class_is_judged(
    name: str, waiting: int, unchecked: int, compiles: str, compiles_unchecked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo

    for option in ("allow_unspec_int_on_nn_module", "recompile_limit"):
        monkeypatch.setattr(torch._dynamo.config, option, getattr(torch._dynamo.config, option))
    found = stalls.judge(name)
    assert (found["stalls"], found["unchecked"]) == (waiting, unchecked)
    assert found["compiles"].partition(":")[0] == compiles
    assert found["compiles_unchecked"].partition(":")[0] == compiles_unchecked


def test_the_page_tells_totals_and_every_class() -> None:
    rows = [
        stalls.Row("A", "first", checks=True, stalls=2, unchecked=1, lines_unchecked="a line", compiles="why"),
        stalls.Row("B", "second"),
        stalls.Row("C", "second", error="no package"),
    ]
    page = stalls.page(rows, {"command": "x"})
    assert "| all | 2 | 1 | 1 | 1 | 2 |" in page
    assert "| second | 1 | 0 | 0 | 1 | 1 |" in page
    assert "| `A` | 2 | 1 | no | yes |  | a line |" in page
    assert "| `C` | not judged: no package |" in page

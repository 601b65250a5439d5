"""A few of the random scripts of ``benchmarks.log_scripts``, by threads and by processes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.log_scripts import drawn, on_gloo, verdict
from benchmarks.log_scripts_cases import Script, scripts
from distmetrics.log import window


@settings(max_examples=60)
@given(scripts())
def test_a_script_gives_exact_rows_and_named_errors(script: Script) -> None:
    how, what, _ = verdict(script)
    assert (how, what) == ("right", [])


def test_values_are_added_up_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_MOST", 2 * window._OF_A_CALL)
    for script in drawn(40, 11, range(1, 5)):
        how, what, _ = verdict(script)
        assert (how, what) == ("right", [])


@pytest.mark.gloo
def test_on_processes() -> None:
    for how, what, seen in on_gloo(drawn(5, 7, [2]), 2):
        assert (how, what) == ("right", [])
        assert seen["rows"] + seen["faults"] > 0

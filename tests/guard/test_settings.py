"""What the guard is told: by the environment and by callers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics import ConfigurationError
from distmetrics.comm.verdict import Departure
from distmetrics.errors import rank_ranges, ranks_in
from distmetrics.guard.process_info import ProcessId
from distmetrics.guard.settings import Settings, current_settings, use_settings
from distmetrics.guard.store import Answer, RankStatus, Wait, read
from distmetrics.message import Message, encode


def test_the_defaults() -> None:
    """On, five minutes, no report."""
    assert Settings.of_environment({}) == Settings("on", 300.0, None)


def test_the_environment_is_read() -> None:
    """Capitals and spaces do no harm."""
    variables = {"DISTMETRICS_GUARD": " Strict ", "DISTMETRICS_TIMEOUT": "2.5", "DISTMETRICS_REPORT": "out"}
    assert Settings.of_environment(variables) == Settings("strict", 2.5, Path("out"))


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"DISTMETRICS_GUARD": "yes"}, "DISTMETRICS_GUARD: no such mode: 'yes'\nDo:     say off, warn, on, strict."),
        ({"DISTMETRICS_TIMEOUT": "soon"}, "DISTMETRICS_TIMEOUT: not a time in seconds: 'soon'"),
        ({"DISTMETRICS_TIMEOUT": "-1"}, "DISTMETRICS_TIMEOUT: not a time in seconds: -1.0"),
        ({"DISTMETRICS_TIMEOUT": "nan"}, "DISTMETRICS_TIMEOUT: not a time in seconds: nan"),
    ],
)
def test_nonsense_is_refused(variables: dict[str, str], text: str) -> None:
    """A misspelt mode must not switch the guard off in silence."""
    with pytest.raises(ConfigurationError) as caught:
        Settings.of_environment(variables)
    assert str(caught.value).startswith(text)


def test_settings_of_a_block_end_with_it() -> None:
    """Also after an error; what is not said stays."""
    before = current_settings()
    with use_settings(timeout=7), use_settings(mode="warn"):
        assert current_settings() == Settings("warn", 7, before.report)
    with pytest.raises(ConfigurationError), use_settings(timeout=7), use_settings(timeout=0):
        pass
    assert current_settings() == before


@given(st.sets(st.integers(0, 3000)))
def test_ranks_are_read_back(ranks: set[int]) -> None:
    """The short form that a wait has."""
    assert set(ranks_in(rank_ranges(ranks))) == ranks


texts = st.text(max_size=20)
ranks = st.sets(st.integers(0, 3000), max_size=5).map(rank_ranges)
waits = st.builds(Wait, st.integers(1, 1 << 40), texts, ranks, st.integers(1, 1 << 40), texts, texts)
processes = st.builds(ProcessId, texts, st.integers(1, 1 << 22), texts)
statuses = st.builds(RankStatus, processes, st.none() | waits)
answers = st.builds(Answer, st.integers(1, 99), st.integers(-9, 9), texts)


@given(statuses | answers)
def test_messages_come_back_as_they_were(message: RankStatus | Answer) -> None:
    """Any text may stand in a name or a path."""
    assert read(type(message), encode(message)) == message


@given(st.binary(max_size=40) | statuses.map(encode), st.sampled_from([RankStatus, Answer, Departure]))
def test_malformed_bytes_in_the_store_are_no_message(data: bytes, kind: type[Message]) -> None:
    """They are told in the log, and end nothing."""
    assert isinstance(read(kind, data), kind | None)

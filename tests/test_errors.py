"""Error texts are part of the interface: one shape for all, and the attributes survive the trip between processes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics import errors
from distmetrics.errors import DistmetricsError, Site, compose, rank_ranges, ranks_in, who

# Logs are searched by code, so one may be added but none renamed or shared.
CODES = {
    "MismatchError": "mismatch",
    "LayoutError": "layout",
    "DivergedError": "diverged",
    "PeerLostError": "peer-lost",
    "StateError": "state",
    "LawViolation": "law",
    "InputError": "input",
    "InputTypeError": "input-type",
    "ConfigurationError": "configuration",
    "MissingDependencyError": "missing-dependency",
}
BUILTINS = [
    ("InputError", ValueError),
    ("InputTypeError", TypeError),
    ("InputTypeError", ValueError),
    ("ConfigurationError", ValueError),
    ("MissingDependencyError", ImportError),
]


def test_every_error_is_told_in_the_modules_docstring() -> None:
    public = [getattr(errors, name) for name in errors.__all__]
    kinds = [each for each in public if isinstance(each, type) and issubclass(each, DistmetricsError)]
    assert {kind.__name__: kind.code for kind in kinds} == CODES | {"DistmetricsError": "error"}
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in kinds)


@pytest.mark.parametrize("name", CODES)
def test_errors_travel_between_processes_with_all_that_they_say(name: str) -> None:
    """A rank's error is pickled home; ``except ValueError`` around a call must go on working."""
    kind: type[DistmetricsError] = getattr(errors, name)
    assert all(issubclass(kind, builtin) for each, builtin in BUILTINS if each == name)
    site = Site("train.py", 7, "main")
    error = kind("wrong", per_rank={0: "a", 2: "b"}, notes=["No data."], likely="a typo.", do="mend it.", site=site)
    error.rank, error.peers = 2, (0, 1)
    error.add_note("raised on rank 2")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), vars(back)) == (str(error), vars(error))
    assert (back.what, back.per_rank, back.notes) == ("wrong", {0: "a", 2: "b"}, ("No data.",))
    assert (back.likely, back.do) == ("a typo.", "mend it.")
    assert (back.rank, back.peers, back.site, back.__notes__) == (2, (0, 1), site, ["raised on rank 2"])


def test_the_text_groups_equal_ranks_and_keeps_its_order() -> None:
    """A call's name is the user's, and may hold anything."""
    lines = {0: "sends float32[10]", 1: "sends float32[10]", 2: "naïve \u2029"}
    text = compose('ranks disagree on "a\nb"', lines)
    assert compose("only this", {}) == "only this"
    assert text.splitlines()[0] == 'ranks disagree on "a\\nb"'
    assert text.splitlines()[2:] == ["  ranks 0-1  send float32[10]", "  rank 2     naïve \\u2029"]


@given(st.sets(st.integers(0, 3000), min_size=1))
def test_rank_ranges_name_exactly_the_ranks(ranks: set[int]) -> None:
    """Read back, the ranges are the ranks: no rank is blamed or forgotten by an off-by-one."""
    assert ranks_in(rank_ranges(ranks)) == tuple(sorted(ranks))
    assert who(ranks) == f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}"

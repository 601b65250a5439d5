"""Error texts are part of the interface: one shape for all, and the attributes survive the trip between processes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics import errors
from distmetrics.errors import DistmetricsError, MissingDependencyError, Site, compose, rank_ranges, who

KINDS = [
    errors.MismatchError,
    errors.DivergedError,
    errors.PeerLostError,
    errors.StateError,
    errors.LawViolation,
    errors.InputError,
    errors.InputTypeError,
    errors.ConfigurationError,
    errors.MissingDependencyError,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_travel_between_processes_with_all_that_they_say(kind: type[DistmetricsError]) -> None:
    """A rank's error is pickled home: what it names must not be lost on the way."""
    error = kind(
        "wrong",
        per_rank={0: "a", 2: "b"},
        notes=["No data was moved."],
        likely="a typo.",
        do="mend it.",
        rank=2,
        peers=[0, 1],
        site=Site("train.py", 7, "main"),
    )
    error.add_note("raised on rank 2")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), vars(back)) == (str(error), vars(error))
    assert (back.what, back.per_rank, back.notes) == ("wrong", {0: "a", 2: "b"}, ("No data was moved.",))
    assert (back.likely, back.do) == ("a typo.", "mend it.")
    assert (back.rank, back.peers, back.site) == (2, (0, 1), Site("train.py", 7, "main"))
    assert back.__notes__ == ["raised on rank 2"]


def test_the_text_of_an_error_is_made_of_what_it_says() -> None:
    """One place makes all texts, so that an error of two ranks reads like one of a thousand."""
    error = DistmetricsError("ranks disagree", per_rank={0: "a", 1: "b"}, likely="a typo.", do="mend it.")
    assert str(error) == compose("ranks disagree", {0: "a", 1: "b"}, likely="a typo.", do="mend it.")
    assert str(DistmetricsError("two\nlines", do="mend it.")) == "two\nlines\nDo:     mend it."


def test_codes_are_stable_and_unique() -> None:
    """Logs are searched by code, so one may be added but none renamed or shared."""
    assert {kind.__name__: kind.code for kind in KINDS} == {
        "MismatchError": "mismatch",
        "DivergedError": "diverged",
        "PeerLostError": "peer-lost",
        "StateError": "state",
        "LawViolation": "law",
        "InputError": "input",
        "InputTypeError": "input-type",
        "ConfigurationError": "configuration",
        "MissingDependencyError": "missing-dependency",
    }


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.InputTypeError, TypeError),
        (errors.InputTypeError, ValueError),
        (errors.ConfigurationError, ValueError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_errors_are_what_python_users_catch(kind: type[Exception], builtin: type[Exception]) -> None:
    """``except ValueError`` around a call must go on working."""
    assert issubclass(kind, builtin)


def test_every_error_of_the_module_is_in_the_tree_of_its_docstring() -> None:
    """The docstring draws the tree; a new class that is not drawn is not documented."""
    public = [getattr(errors, name) for name in errors.__all__]
    for kind in (item for item in public if isinstance(item, type) and issubclass(item, DistmetricsError)):
        assert kind.__name__ in (errors.__doc__ or "")


def test_the_text_groups_equal_ranks_and_keeps_its_order() -> None:
    """With a thousand ranks the report has a line for each kind of rank, never a thousand."""
    lines = dict.fromkeys(range(1024), "sends float32[10]") | {2: "sends float64[10]"}
    text = compose("ranks disagree", lines, notes=["No data was moved."], likely="a typo.", do="mend it.")
    assert text == (
        "ranks disagree\n"
        "\n"
        "  ranks 0-1, 3-1023  send float32[10]\n"
        "  rank 2             sends float64[10]\n"
        "\n"
        "No data was moved.\n"
        "Likely: a typo.\n"
        "Do:     mend it."
    )


def test_a_text_without_ranks_and_advice_is_its_headline() -> None:
    """No empty lines at the end of a short message."""
    assert compose("only this", {}) == "only this"


def test_the_missing_dependency_text_has_the_command() -> None:
    """The one thing that a user needs then is what to type."""
    assert str(MissingDependencyError.of("torch", "import distmetrics")) == (
        "import distmetrics needs torch, which is not installed.\nDo:     pip install torch"
    )


@given(st.sets(st.integers(0, 200), min_size=1))
def test_rank_ranges_name_exactly_the_ranks(ranks: set[int]) -> None:
    """Read back, the ranges are the ranks: no rank is blamed or forgotten by an off-by-one."""
    read: list[int] = []
    for part in rank_ranges(ranks).split(", "):
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(ranks)


def test_who_counts() -> None:
    """One rank is "rank", several are "ranks"."""
    assert (who([3]), who([1, 0, 3])) == ("rank 3", "ranks 0-1, 3")


def test_a_site_reads_like_a_traceback_line() -> None:
    """Editors and terminals make file:line clickable."""
    assert str(Site("train.py", 88, "step")) == "train.py:88 in step"


def test_a_name_with_line_breaks_does_not_spoil_the_layout() -> None:
    """A call's name is the user's, and may hold anything."""
    text = compose('ranks disagree on "a\nb"', {0: 'all_reduce "a\n  rank 7  lies"', 1: "naïve \u2029"})
    assert text.splitlines() == [
        'ranks disagree on "a\\nb"',
        "",
        '  rank 0  all_reduce "a\\n  rank 7  lies"',
        "  rank 1  naïve \\u2029",
    ]

"""What is not the guard's to blame, or must not break it: in a process group that the user's script has made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guard.scripts import ended

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_end_of_a_forked_child_is_not_that_of_the_rank() -> None:
    """The child has a copy of the guard: it must not say goodbye for the rank."""
    for code, out, err in ended("odd.py", "forks"):
        assert (code, out) == (0, "done\n"), err


def test_what_the_backend_refuses_is_no_broken_connection() -> None:
    """Torch's own error, at once; the next call works."""
    for code, out, err in ended("odd.py", "is refused"):
        assert code == 0, err
        assert out.startswith("RuntimeError: "), out
        assert "only works with ReduceOp.SUM" in out
        assert out.endswith("done\n")


def test_a_call_that_is_refused_on_one_rank_was_not_made() -> None:
    """Who ends by it has not come to the call in which the other waits, which is told so."""
    (code, out, err), (failed, _, _) = ended("odd.py", "is refused alone", DISTMETRICS_TIMEOUT="60")
    assert code == 0, err
    assert "rank 1 failed and will never answer" in out
    assert "raised RuntimeError" in out
    assert failed == 1


def test_a_folder_that_cannot_be_written_hides_no_error() -> None:
    """The verdict is raised all the same, and the log says what is wrong with the folder."""
    code, out, err = ended("odd.py", "raises alone", DISTMETRICS_REPORT=str(Path(__file__) / "reports"))[0]
    assert code == 0, err
    assert "PeerLostError: rank 1 failed and will never answer" in out
    assert "rank 0 can't write its report" in err
    assert "Traceback" not in err

"""Every rank that ends by or beside an error leaves its report, however it is ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distmetrics.guard import use_settings
from distmetrics.guard.postmortem import describe, examine
from distmetrics.testing import outcomes
from tests import warm
from tests.guard import ranks
from tests.guard.scripts import ROOT, ended

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
]


def under_torchrun(what: str, folder: Path) -> str:
    """Run two ranks under torchrun, whose agent ends those that are left; return what they print."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    variables = {"DISTMETRICS_REPORT": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = str(ROOT / "tests/guard/reporting.py")
    done = warm.run(*command, script, what, env=os.environ | variables)
    return done.stdout + done.stderr


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    files = sorted(folder.glob("*"))
    return {int(file.stem.removeprefix("rank-")): json.loads(file.read_text()) for file in files}


def test_a_mismatch_is_reported_by_every_rank(tmp_path: Path) -> None:
    """Also where the script catches it and ends by itself."""
    under_torchrun("caught", tmp_path / "left")
    written = reports(tmp_path / "left")
    assert [written[rank]["error"]["kind"] for rank in (0, 1)] == ["MismatchError"] * 2
    assert "reporting.py" in written[0]["where"][0]
    said = describe(examine(tmp_path / "left"))
    assert "ranks 0-1 raised MismatchError at tests/guard/reporting.py" in said


def test_an_exit_code_of_failure_is_told(tmp_path: Path) -> None:
    """A rank that calls sys.exit(3) has failed, and leaves a report; one that was let down says by whom."""
    printed = under_torchrun("exits", tmp_path / "left")
    assert "rank 1 failed and will never answer" in printed
    assert "rank 1  raised SystemExit: 3" in printed
    written = reports(tmp_path / "left")
    assert written[1]["error"]["kind"] == "SystemExit"
    assert "in exits" in written[1]["where"][0]
    assert "rank 1 raised SystemExit" in describe(examine(tmp_path / "left"))


def test_who_is_left_under_torchrun_reports_before_it_is_ended(tmp_path: Path) -> None:
    """The agent sends SIGTERM: also to a rank in C code that never returns."""
    under_torchrun("killed", tmp_path / "left")
    written = reports(tmp_path / "left")
    assert [*written] == [0]
    assert "in killed" in written[0]["where"][0]


@pytest.mark.parametrize("what", ["terminated", "terminated_in_torch"])
def test_sigterm_ends_a_rank_as_it_would_have(what: str, tmp_path: Path) -> None:
    """After its report, by the signal, and at once."""
    code, out, err = ended("reporting.py", what, DISTMETRICS_REPORT=str(tmp_path / "left"))[0]
    assert (code, out) == (-15, ""), err
    assert f"in {what}" in reports(tmp_path / "left")[0]["where"][0]


def test_without_a_folder_for_reports_nothing_is_handled() -> None:
    code, out, _ = ended("reporting.py", "terminated")[0]
    assert (code, out) == (-15, "")


def test_a_handler_of_the_users_decides_what_becomes_of_the_process(tmp_path: Path) -> None:
    for code, out, err in ended("reporting.py", "own_handler", DISTMETRICS_REPORT=str(tmp_path / "left")):
        assert (code, out) == (0, "the user's handler\ndone\n"), err
    assert [*reports(tmp_path / "left")] == [0, 1]


def test_the_end_of_a_forked_child_is_no_end_of_the_rank(tmp_path: Path) -> None:
    """It inherits the handler, and not the way by which a signal is told."""
    for code, out, err in ended("reporting.py", "forked", DISTMETRICS_REPORT=str(tmp_path / "left")):
        assert (code, out) == (0, "the child ended with -15\ndone\n"), err
    assert not (tmp_path / "left").exists()


def test_a_rank_that_is_ended_by_who_started_it_reports_before(tmp_path: Path) -> None:
    """It is busy, and is no rank of which the error speaks."""
    with use_settings(report=tmp_path / "left"):
        outcomes(3, ranks.one_raises_beside_a_busy_one, backend="gloo", limit=60)
    written = reports(tmp_path / "left")
    assert written[1]["error"]["kind"] == "ValueError"
    assert written[2]["error"] is None
    assert "tests/guard/ranks.py" in written[2]["where"][0]

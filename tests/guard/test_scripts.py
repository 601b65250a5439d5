"""The guard in a process group that the user's script has made: the store lives in rank 0."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distmetrics.cli.postmortem import describe, merge, read
from tests import warm
from tests.guard.scripts import SCRIPT, ended

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX, and forks"),
]


@pytest.mark.parametrize("what", ["nothing", "no goodbye"])
def test_a_job_that_ends_well_says_nothing(what: str) -> None:
    """No page of C++ about a store that ended with rank 0, whether or not the script destroys its group."""
    for rank, (code, out, err) in enumerate(ended(what, "1")):
        assert (code, out) == (0, f"rank {rank} is done\n"), err
        assert "TCPStore" not in err
        assert "terminate called" not in err


@pytest.mark.parametrize(
    ("what", "kind", "said", "bad"),
    [
        ("returns", "DivergedError", "rank {bad} has returned, and others still wait for it", 0),
        ("raises", "PeerLostError", "rank {bad}  raised ValueError: a bad batch  guard/script.py:", 1),
        ("is killed", "PeerLostError", "rank {bad}  its process is gone", 0),
        ("is gone before the first call", "PeerLostError", "rank {bad}  its process is gone", 1),
        # Nobody has read who it is, and it hosted the store.
        ("is gone before the first call", "PeerLostError", "the connection to another rank broke", 0),
    ],
)
def test_who_is_lost_is_named(what: str, kind: str, said: str, bad: int) -> None:
    """Also rank 0, and the store with it."""
    code, out, err = ended(what, str(bad), last=bad)[1 - bad]
    assert code == 1, err
    assert f"rank {1 - bad} raised {kind}" in out, (out, err)
    assert said.format(bad=bad) in out.replace("tests/guard", "guard"), (out, err)


def test_the_verdict_outlives_the_store() -> None:
    """Rank 0, which hosts the store, ends by the error as soon as it is raised; rank 2 has read it by then."""
    ranks = ended("is busy", "1", last=1, world_size=3, DISTMETRICS_TIMEOUT="2")
    for code, out, err in (ranks[0], ranks[2]):
        assert code == 1, err
        assert "raised DivergedError" in out, (out, err)
        assert "rank 1 did not come to a collective within 2 s" in out


def test_the_end_of_a_forked_child_is_not_that_of_the_rank() -> None:
    """The child has a copy of the guard: it must not say goodbye for the rank."""
    for rank, (code, out, err) in enumerate(ended("forks")):
        assert (code, out) == (0, f"rank {rank} is done\n"), err


def test_what_the_backend_refuses_is_no_broken_connection() -> None:
    """Torch's own error, at once; the next call works."""
    for code, out, err in ended("is_refused"):
        assert code == 0, err
        assert out.startswith("RuntimeError: "), out
        assert "only works with ReduceOp.SUM" in out
        assert out.endswith("done\n")


def test_a_call_that_is_refused_on_one_rank_was_not_made() -> None:
    """Who ends by it has not come to the call in which the other waits, which is told so."""
    (_, out, err), (failed, _, _) = ended("is_refused_alone", DISTMETRICS_TIMEOUT="60")
    assert "raised PeerLostError: rank 1 failed and will never answer" in out, err
    assert "raised RuntimeError" in out
    assert failed == 1


def test_a_folder_that_cannot_be_written_hides_no_error() -> None:
    """The verdict is raised all the same, and the log says what is wrong with the folder."""
    _, out, err = ended("raises_alone", DISTMETRICS_REPORT=str(Path(__file__) / "reports"))[0]
    assert "raised PeerLostError: rank 1 failed and will never answer" in out, err
    assert "rank 0 can't write its report" in err
    assert "Traceback" not in err


# --- reports --------------------------------------------------------------------------------------------------------


def under_torchrun(what: str, folder: Path) -> str:
    """Run two ranks under torchrun, whose agent ends those that are left; return what they print."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    variables = {"DISTMETRICS_REPORT": str(folder), "PYTHONPATH": str(warm.ROOT), "OMP_NUM_THREADS": "1"}
    done = warm.run(*command, SCRIPT, what, env=os.environ | variables)
    return done.stdout + done.stderr


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    files = sorted(folder.glob("*"))
    return {int(file.stem.removeprefix("rank-")): json.loads(file.read_text()) for file in files}


def test_a_mismatch_is_reported_by_every_rank(tmp_path: Path) -> None:
    """Also where the script catches it and ends by itself."""
    under_torchrun("caught", tmp_path / "left")
    written = reports(tmp_path / "left")
    assert [written[rank]["error"]["kind"] for rank in (0, 1)] == ["MismatchError"] * 2
    assert "script.py" in written[0]["where"][0]
    assert "ranks 0-1 raised MismatchError at tests/guard/script.py" in describe(merge(read(tmp_path / "left")))


def test_who_is_left_under_torchrun_reports_before_it_is_ended(tmp_path: Path) -> None:
    """The agent sends SIGTERM: also to a rank in C code that never returns."""
    under_torchrun("killed", tmp_path / "left")
    written = reports(tmp_path / "left")
    assert [*written] == [0]
    assert "in killed" in written[0]["where"][0]


@pytest.mark.parametrize("what", ["terminated", "terminated_in_torch"])
def test_sigterm_ends_a_rank_as_it_would_have(what: str, tmp_path: Path) -> None:
    """After its report, and at once, by the exit code that shells have for it."""
    code, out, err = ended(what, DISTMETRICS_REPORT=str(tmp_path / "left"))[0]
    assert (code, out) == (143, ""), err
    assert f"in {what}" in reports(tmp_path / "left")[0]["where"][0]


def test_without_a_folder_for_reports_nothing_is_handled() -> None:
    assert ended("terminated")[0][:2] == (-15, "")


def test_a_handler_of_the_users_decides_what_becomes_of_the_process(tmp_path: Path) -> None:
    for rank, (code, out, err) in enumerate(ended("own_handler", DISTMETRICS_REPORT=str(tmp_path / "left"))):
        assert (code, out) == (0, f"the user's handler\nrank {rank} is done\n"), err
    assert [*reports(tmp_path / "left")] == [0, 1]


def test_a_signal_to_a_forked_child_is_none_to_the_rank(tmp_path: Path) -> None:
    """It inherits the handler, and not the way by which a signal is told."""
    for rank, (code, out, err) in enumerate(ended("forked", DISTMETRICS_REPORT=str(tmp_path / "left"))):
        assert (code, out) == (0, f"the child ended with -15\nrank {rank} is done\n"), err
    assert not (tmp_path / "left").exists()

"""Real processes: started, listened to, and every one brought home, whatever happens to them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from distmetrics import DistmetricsError, InputTypeError, PeerLostError
from distmetrics.launch import spawn
from distmetrics.launch.spawn import launch
from distmetrics.testing import outcomes, run
from tests.launch import ranks

pytestmark = pytest.mark.gloo
_HELPERS = ("forkserver", "resource_tracker")  # multiprocessing's own, which stay for the next launch


def children() -> set[int]:
    """Processes below this one, multiprocessing's helpers and what is dead already left out."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            helper = any(word in " ".join(child.cmdline()) for word in _HELPERS) and child.ppid() == os.getpid()
            if child.status() != psutil.STATUS_ZOMBIE and not helper:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, and no folder with the store."""
    in_ours = functools.partial(tempfile.TemporaryDirectory, dir=tmp_path)
    monkeypatch.setattr(spawn.tempfile, "TemporaryDirectory", in_ours)
    before = children()
    yield
    assert children() <= before
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import signal
import time
import distmetrics as dm
from distmetrics.launch.spawn import launch

def work(comm):
    if comm.rank:
        print("ready", flush=True)
        time.sleep(100)
    dm.barrier()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    launch(work, 2)
"""


def test_ctrl_c_ends_the_whole_job(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also while a rank waits in a collective; nobody stays."""
    script = tmp_path_factory.mktemp("interrupted") / "script.py"
    script.write_text(INTERRUPTED)
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(script)], env=environ, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            _, alive = psutil.wait_procs(below, timeout=10)
        finally:
            process.kill()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert not alive


def test_the_check_for_left_processes_can_fail() -> None:
    """A check that finds nothing when there is something would make every test here pass."""
    process = multiprocessing.get_context("forkserver").Process(target=ranks.time.sleep, args=(60,))
    process.start()
    try:
        assert process.pid in children()
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_are_processes_with_a_communicator_in_force(world_size: int) -> None:
    """Each its own, none of them this one, arguments passed on."""
    got = run(world_size, ranks.hello, "word", backend="gloo")
    assert [(word, rank, size, joined) for word, rank, size, _, joined in got] == [
        ("word", rank, world_size, True) for rank in range(world_size)
    ]
    assert len({pid for *_, pid, _ in got} - {os.getpid()}) == world_size


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_start_methods(start_method: str) -> None:
    """The clean fork and the fresh interpreter do the same."""
    ended = launch(ranks.hello, 2, "word", start_method=start_method)
    assert [outcome.error for outcome in ended] == [None, None]


def test_a_group_of_some_ranks() -> None:
    """A communicator of a process group of the user's own; its ranks count from 0, sources too."""
    assert run(3, ranks.subgroup, backend="gloo") == [(0, 2, 2, 2), None, (1, 2, 2, 2)]


def test_an_error_comes_home_with_its_traceback() -> None:
    """The cause shows the line in the other process."""
    error = outcomes(2, ranks.raises, KeyError("lost"), backend="gloo")[0].error
    assert isinstance(error, KeyError)
    assert "in raises" in str(error.__cause__)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0), MemoryError("full"), AssertionError()])
def test_whatever_ends_a_rank_comes_home(error: BaseException) -> None:
    """Exit code 0 included: a rank that left the job in the middle has not succeeded."""
    ended = outcomes(2, ranks.raises, error, backend="gloo")
    assert type(ended[0].error) is type(error)
    assert isinstance(ended[1].error, PeerLostError)
    assert ended[1].error.peers == (0,)


def test_an_error_that_cannot_travel_comes_home_as_text() -> None:
    """Its class may want arguments that pickle does not know of."""
    error = outcomes(1, ranks.raises_needs_two, backend="gloo")[0].error
    assert type(error) is DistmetricsError
    assert "NeedsTwoError: ab" in str(error)


def test_a_value_that_cannot_travel_is_an_error_that_says_so() -> None:
    """Not a rank that hangs, nor a rank that died."""
    ended = outcomes(2, ranks.returns, "lock", backend="gloo")
    for outcome in ended:
        assert "cannot pickle" in str(outcome.error)


@pytest.mark.parametrize("kind", ["tensor", "large", "none"])
def test_values_come_home(kind: str) -> None:
    """With a graph behind them, larger than a pipe, or none."""
    got = run(2, ranks.returns, kind, backend="gloo")
    wanted = ranks.returns(None, kind)
    for value in got:
        assert torch.equal(value, wanted) if kind != "none" else value is None


def test_lambdas_and_local_functions_travel() -> None:
    """With cloudpickle installed; what tests are written in."""
    here = 41
    assert run(2, lambda comm: here + comm.rank, backend="gloo") == [41, 42]


def test_without_cloudpickle_the_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any process is started."""
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(InputTypeError, match=r"move it to the top level of a module, or pip install cloudpickle"):
        launch(lambda comm: None, 2)


def test_a_world_needs_a_rank() -> None:
    """Zero ranks would test nothing."""
    with pytest.raises(ValueError, match="world_size=0"):
        launch(ranks.hello, 0)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_dies_before_its_first_call(bad: int) -> None:
    """The others may still be connecting to it."""
    for outcome in outcomes(3, ranks.dies_before_the_first_call, bad, backend="gloo"):
        assert isinstance(outcome.error, PeerLostError)
        assert outcome.error.peers == (bad,)
        assert "was killed by SIGKILL" in str(outcome.error)


@pytest.mark.parametrize(("bad", "how"), [(0, "kill"), (2, "kill"), (1, "exit 0")])
def test_survivors_that_catch_the_error_were_told_who_died(bad: int, how: str) -> None:
    """They may save a checkpoint and leave in order; an exit with code 0 in the middle is a failure too."""
    ended = outcomes(3, ranks.dies_between_calls, bad, how, backend="gloo")
    assert isinstance(ended[bad].error, PeerLostError)
    for outcome in ended:
        if outcome.rank != bad:
            assert outcome.value == f"PeerLostError ({bad},) at step 3"


def test_a_rank_with_a_thread_that_never_ends_is_ended() -> None:
    """An ordinary exit would wait for it."""
    ended = outcomes(1, ranks.leaves_a_thread, backend="gloo")
    assert isinstance(ended[0].error, KeyError)


def test_a_rank_that_is_deaf_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps outside any collective: once another has failed it gets a moment, and is then ended."""
    monkeypatch.setattr(spawn, "RAISING_GRACE", 0.3)
    ended = outcomes(2, ranks.starts_a_child, backend="gloo")
    assert isinstance(ended[1].error, KeyError)
    assert "was still busy" in str(ended[0].error)


def test_remote_tracebacks_pickle_on() -> None:
    """An outcome may be sent on, to a parent of the parent."""
    error = outcomes(1, ranks.raises, KeyError("lost"), backend="gloo")[0].error
    assert type(pickle.loads(pickle.dumps(error))) is KeyError
    assert isinstance(error, BaseException)


@pytest.mark.parametrize("how", ["stdin", pytest.param("-c", marks=pytest.mark.long)])
def test_functions_that_are_in_no_file(how: str) -> None:
    """A script on stdin, a prompt, a notebook: no other process could import what they define."""
    code = (
        "from distmetrics.testing import run\n"
        "def twice(comm):\n"
        "    return 2 * comm.rank\n"
        "print(run(2, twice, backend='gloo'), globals().get('__file__'))\n"
    )
    command = [sys.executable, "-W", "error", *(["-c", code] if how == "-c" else ["-"])]
    ended = subprocess.run(command, input=None if how == "-c" else code, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, f"[0, 2] {'<stdin>' if how == 'stdin' else None}\n"), ended.stderr

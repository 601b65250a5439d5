"""Real processes: started, listened to, and every one brought home, whatever happens to them."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch

from distmetrics import DistmetricsError, InputTypeError, PeerLostError
from distmetrics.launch import spawn
from distmetrics.launch.spawn import launch, pickled, pickled_by_value
from distmetrics.testing import outcomes, run
from tests.launch import ranks

_HELPERS = ("forkserver", "resource_tracker")  # multiprocessing's, which stay for the next launch


def children() -> set[int]:
    """Processes below this one, without multiprocessing's helpers and what is dead already."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            is_named = any(word in " ".join(child.cmdline()) for word in _HELPERS)
            is_helper = is_named and child.ppid() == os.getpid()
            if child.status() != psutil.STATUS_ZOMBIE and not is_helper:
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background suite ignores it
    launch(work, 2)
"""


@pytest.mark.gloo
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


@pytest.mark.gloo
@pytest.mark.parametrize(("start_method", "size"), [("forkserver", 3), ("spawn", 2)])
def test_ranks_are_processes_with_a_communicator_in_force(start_method: str, size: int) -> None:
    """Each its own, none of them this one, arguments passed on; ranks of a group of some count from 0."""
    got = [each.value for each in launch(ranks.hello, size, "word", start_method=start_method)]
    assert [each[:3] for each in got] == [("word", rank, size) for rank in range(size)]
    assert len({each[3] for each in got} - {os.getpid()}) == size
    last = size - 1
    assert [each[4] for each in got] == [(0, 2, last, last), *[None] * (size - 2), (1, 2, last, last)]


@pytest.mark.gloo
def test_whatever_ends_a_rank_comes_home() -> None:
    """Values; what can't travel as an error that says so; errors with the line, or as text."""
    found = outcomes(len(ranks.ENDS), ranks.ends, backend="gloo")
    graph, large, none, lock, lost, two, interrupt = found
    torch.testing.assert_close(graph.value, torch.full((2,), 2.0), check_stride=False)
    assert torch.equal(large.value, ranks.ENDS[1]())
    assert (none.value, none.error) == (None, None)
    assert "cannot pickle" in str(lock.error)
    assert "result['lock'] is a lock" in str(lock.error)
    assert type(lost.error) is KeyError
    assert "in ends" in str(lost.error.__cause__)
    assert type(pickle.loads(pickle.dumps(lost.error))) is KeyError  # to a parent of the parent
    assert type(two.error) is DistmetricsError
    assert "NeedsTwoError: ab" in str(two.error)
    assert type(interrupt.error) is KeyboardInterrupt


@pytest.mark.gloo
def test_a_rank_that_leaves_in_the_middle_has_not_succeeded() -> None:
    """With exit code 0, too."""
    first, second = outcomes(2, ranks.exits, backend="gloo")
    assert type(first.error) is SystemExit
    assert isinstance(second.error, PeerLostError)
    assert second.error.peers == (0,)


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("bad", "how", "step", "why"),
    [
        (0, "kill", 0, "was killed by SIGKILL"),  # others may still be connecting to it
        (1, "exit 0", 3, "ended with exit code 0"),
    ],
)
def test_survivors_are_told_who_died(bad: int, how: str, step: int, why: str) -> None:
    """They may save a checkpoint and leave in order."""
    ended = outcomes(3, ranks.dies, bad, how, step, backend="gloo")
    assert isinstance(ended[bad].error, PeerLostError)
    assert why in str(ended[bad].error)
    for outcome in ended[:bad] + ended[bad + 1 :]:
        assert outcome.value[0] == f"PeerLostError ({bad},) at step {step}"
        assert step or why in outcome.value[1]


@pytest.mark.gloo
def test_ranks_that_do_not_end_by_themselves_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is deaf gets a moment; an ordinary exit would wait for a thread that stays."""
    monkeypatch.setattr(spawn, "RAISING_GRACE", 0.3)
    first, second = outcomes(2, ranks.is_deaf, backend="gloo")
    assert type(second.error) is KeyError
    assert "was still busy" in str(first.error)
    assert "in is_deaf" in str(first.error.__notes__)


@pytest.mark.gloo
def test_functions_that_are_in_no_file() -> None:
    """A script on stdin, a prompt, a notebook: no other process could import what they define."""
    code = (
        "from distmetrics.testing import run\n"
        "def twice(comm):\n"
        "    return 2 * comm.rank\n"
        "print(run(2, twice, backend='gloo'), globals().get('__file__'))\n"
    )
    command = [sys.executable, "-W", "error", "-"]
    ended = subprocess.run(command, input=code, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "[0, 2] <stdin>\n"), ended.stderr


def test_what_is_refused_before_any_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="world_size=0"):
        launch(ranks.hello, 0)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InputTypeError, match="top level of a module, or pip install cloudpickle"):
        run(2, lambda comm: None, backend="gloo")


def test_code_that_travels_keeps_its_file_and_line() -> None:
    fails = lambda: 1 / 0  # noqa: E731

    def outer():
        class Local:
            def method(self):
                """Has a file too."""

        return [fails], Local

    with pytest.raises(ZeroDivisionError) as caught:
        pickle.loads(pickled(fails))()
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.filename, frame.line) == (__file__, "fails = lambda: 1 / 0  # noqa: E731")
    copied, local = pickle.loads(pickled_by_value(outer))()
    codes = (copied[0].__code__, local.method.__code__)
    assert {code.co_filename for code in codes} == {__file__}
    cloudpickle.register_pickle_by_value(ranks)
    try:
        hello = pickle.loads(pickled_by_value(ranks.hello))
    finally:
        cloudpickle.unregister_pickle_by_value(ranks)
    assert hello is not ranks.hello
    assert hello.__code__.co_filename == ranks.__file__

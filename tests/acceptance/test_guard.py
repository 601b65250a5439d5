"""The guard: a mix-up or a hang is an error that names ranks and lines; what is right goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce as taken_by_name
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

import distmetrics as dm
from distmetrics import DivergedError, MismatchError, PeerLostError, guard
from distmetrics.testing import faults, outcomes, run
from tests.acceptance import free_port, python, same_error

pytestmark = pytest.mark.gloo
ONE = torch.ones(2)
HERE = "test_guard.py:"
OTHERS = "ranks? (?:0, 2|0|2)"


def at(mark):
    """Return how an error names the line of this file that ends with this comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return f"{HERE}{number} in "


def told(error, who):
    """Return what an error says of some ranks."""
    found = re.findall(rf"^ +{who}  +(.*)$", str(error), re.MULTILINE)
    assert found, f"nothing is said of {who}: {error}"
    return "\n".join(found)


def ended(fn, *args, ranks=3, **options):
    return outcomes(ranks, fn, *args, backend="gloo", limit=40, **options)


# Ranks that do not come


def raises():
    raise ValueError("a bad batch")  # raises


ENDS = {
    "raises": raises,
    "exits": lambda: sys.exit(3),
    "leaves": lambda: os._exit(3),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is stopped": lambda: None,  # by faults.stop
}


def one_ends(comm, what, bad):
    """Meet; the bad rank ends; the others wait for it, and make one more call."""
    dm.barrier()
    if comm.rank == bad and what == "returns":
        return
    if comm.rank == bad:
        ENDS[what]()
    try:
        dm.all_reduce(ONE, name="loss")  # waits
    except dm.DistmetricsError as error:
        with pytest.raises(type(error), match=re.escape(str(error).partition("\n")[0])):
            dm.barrier()
        raise


@pytest.mark.parametrize(
    ("what", "bad", "kind", "why"),
    [
        ("returns", 1, DivergedError, "has returned"),
        ("raises", 1, PeerLostError, "raised ValueError: a bad batch"),
        ("exits", 2, PeerLostError, "SystemExit: 3"),
        ("leaves", 1, PeerLostError, "exit code 3"),
        ("is killed", 0, PeerLostError, "SIGKILL"),
        ("is stopped", 1, PeerLostError, "is stopped"),
    ],
)
def test_a_rank_that_ends_is_named_by_all_others_in_every_later_call(what, bad, kind, why):
    stops = [faults.stop(bad, at=2, seconds=4)] if what == "is stopped" else []
    others = [one for one in ended(one_ends, what, bad, faults=stops) if one.rank != bad]
    error = same_error(others, kind, at("waits"), 'all_reduce sum "loss" float32[2]')
    assert f"rank {bad} " in str(error).partition("\n")[0]
    assert why in told(error, f"rank {bad}")
    assert what != "raises" or at("raises") in told(error, f"rank {bad}")
    for outcome in others:
        assert isinstance(outcome.error, kind)
        assert (outcome.error.rank, outcome.error.peers) == (outcome.rank, (bad,))
        assert at("waits") in str(outcome.error.site)


def late(comm, seconds):
    """Return a sum to which rank 1 comes late, and what this rank's log says meanwhile."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    if comm.rank == 1:
        time.sleep(seconds)  # busy
    return dm.all_reduce(ONE).tolist(), said  # waits for who is busy


@pytest.mark.parametrize(
    ("mode", "deadline", "seconds"),
    [("on", 1, 1.8), ("on", 60, 6.3), ("warn", 1, 1.8), ("off", 0.3, 0.9)],
)
def test_a_late_rank_is_told_with_its_line_and_an_error_at_the_deadline(mode, deadline, seconds):
    with guard.use_settings(mode=mode, timeout=deadline):
        there = ended(late, seconds)
    if (mode, deadline) == ("on", 1):
        error = same_error(there, DivergedError, "DISTMETRICS_TIMEOUT")
        assert at("waits for who is busy") in told(error, "ranks 0, 2")
        said = [told(error, "rank 1")]
    else:
        assert [outcome.value[0] for outcome in there] == [[3.0, 3.0]] * 3
        said = [line for outcome in there for line in outcome.value[1]]
    assert any(at("busy") in line for line in said) == (mode != "off")


SCRIPT = """\
import os, signal, sys, time, torch, torch.distributed as dist, distmetrics as dm

what, bad = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
pids = dm.all_gather(torch.tensor(os.getpid()))
dm.barrier()
time.sleep(float(sys.argv[3]))
if dist.get_rank() != bad:
    try:
        dm.all_reduce(torch.ones(2))
    finally:
        os.kill(int(pids[bad]), signal.SIGKILL) if what == "SIGSTOP" else None
elif what != "returns":
    os.kill(os.getpid(), getattr(signal, what))
"""


def errors_of_a_script(folder, ranks, *arguments, off=-1):
    """Return what each rank of a job writes on stderr; its script makes the process group."""
    (folder / "job.py").write_text(SCRIPT)
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def one(rank):
        own = {"RANK": str(rank), "DISTMETRICS_GUARD": "off" if rank == off else "on"}
        own |= job | {"WORLD_SIZE": str(ranks)}
        return python(folder / "job.py", *arguments, cwd=folder, **own).stderr

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


@pytest.mark.parametrize(
    ("ranks", "what", "bad", "text"),
    [
        (2, "SIGSTOP", 0, "PeerLostError: the job's key-value store does not answer"),  # its host
        (3, "SIGKILL", 1, "PeerLostError: the process of rank 1 is gone"),
        (3, "returns", 2, "DivergedError: rank 2 has returned"),
    ],
)
def test_a_script_that_makes_its_own_process_group_is_guarded(ranks, what, bad, text, tmp_path):
    said = errors_of_a_script(tmp_path, ranks, what, bad, 1)
    for rank in {*range(ranks)} - {bad}:
        assert text in said[rank]
        assert "job.py:10 in <module>" in said[rank].partition(text)[2]


@pytest.mark.long
def test_the_log_names_a_rank_that_nobody_watches(tmp_path):
    assert "guard watches rank 1" in errors_of_a_script(tmp_path, 2, "returns", 2, 33, off=1)[0]


# Calls that differ


def direct(odd, x):
    """Call the communicator itself, where nothing is compared, and then distmetrics."""
    dm.current().all_reduce(x.int() if odd else x, "sum")
    dm.barrier()


def unlike(odd, x):
    dm.current().barrier() if odd else dm.current().all_gather(x)


def epoch(odd, x):
    with guard.guarded_epoch(name="train", comm=dm.current()):
        for _ in range(4 if odd else 3):
            dm.all_reduce(x)


def metrics(odd, x):
    pair = [BinaryAccuracy(), BinaryF1Score()]
    for metric in pair:
        metric.update(x, x.long())
    pair[odd].compute()


MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM
MIXED = {
    "operation": (lambda odd, x: dm.barrier() if odd else dm.all_gather(x), "barrier", "gather"),
    "reduction": (lambda odd, x: dm.all_reduce(x, "max" if odd else "sum"), "max", "sum"),
    "source": (lambda odd, x: dm.broadcast(x, src=int(odd)), "rank 1", "rank 0"),
    "name": (lambda odd, x: dm.all_reduce(x, name="f1" if odd else "loss"), "f1", "loss"),
    "tree": (lambda odd, x: dm.all_reduce({"f1" if odd else "loss": x}), "f1", "loss"),
    "dtype": (lambda odd, x: dm.all_reduce(x.int() if odd else x), "int32[2]", "float32[2]"),
    "shape": (lambda odd, x: dm.all_reduce(x[:1] if odd else x), "float32[1]", "float32[2]"),
    "direct": (direct, "int32", "float32"),
    "unlike": (unlike, "barrier", "all_gather"),
    "epoch": (epoch, "all_reduce", 'guarded_epoch "train"'),
    "watched": (lambda odd, x: dist.all_reduce(x, op=MAX if odd else SUM), "max", "sum"),
    "watched name": (lambda odd, x: taken_by_name(x, op=MAX if odd else SUM), "max", "sum"),
    "watched dtype": (lambda odd, x: dist.all_reduce(x.int() if odd else x), "int32", "float32"),
    "watched alone": (lambda odd, x: (dist if odd else dm).all_reduce(x), "torch", "all_reduce"),
    "watched metric": (metrics, "BinaryF1Score", "BinaryAccuracy"),
}


def mixed(comm, what):
    x = ONE.clone()
    try:
        with guard.watch() if "watched" in what else contextlib.nullcontext():
            MIXED[what][0](comm.rank == 1, x)
    finally:
        assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("what", MIXED)
def test_calls_that_differ_are_one_error_on_every_rank_and_no_data_moves(what):
    error = same_error(ended(mixed, what), MismatchError)
    for who, text in zip(("rank 1", OTHERS), MIXED[what][1:], strict=True):
        assert text in told(error, who)
        assert HERE in told(error, who)


def everything(comm):
    """Return what watched collectives make of 1, 2 and 3; whether all functions are put back."""
    x, before = torch.tensor([comm.rank + 1]), {name: getattr(dist, name) for name in guard.WATCHED}
    summed, later, ours = x.clone(), x.clone(), x.clone()
    rows = torch.zeros(3, 1, dtype=x.dtype)

    def work():
        dist.all_reduce(summed)
        dist.all_gather([*rows], x)
        dist.all_reduce(later, async_op=True).wait()
        ours.copy_(dm.all_reduce(x))
        raises()

    with pytest.raises(ValueError, match="a bad batch"), guard.watch():
        work()
    back = [getattr(dist, name) is before[name] for name in before]
    found = [each.tolist() for each in (summed, later, ours, rows.flatten())]
    return [*found, all(back), len(before) > 9]


def test_watched_collectives_return_what_they_should_and_are_put_back():
    right = [[6], [6], [6], [1, 2, 3], True, True]
    assert run(3, everything, backend="gloo") == [right] * 3


def lines(comm, crossed):
    """Make two calls that each agree, from two lines: one line a rank, or in another order."""
    for first in (comm.rank == 1, (comm.rank == 1) != crossed):
        if first:
            dm.all_reduce(ONE)
        else:
            dm.all_reduce(2 * ONE)


@pytest.mark.parametrize(
    ("mode", "crossed", "refused"),
    [
        ("on", True, True),
        ("off", True, False),
        ("warn", True, False),
        ("on", False, False),
        ("strict", False, True),
    ],
)
def test_the_mode_decides_about_equal_calls_of_other_lines(mode, crossed, refused, monkeypatch):
    monkeypatch.setenv("DISTMETRICS_GUARD", mode)
    there = ended(lines, crossed)
    if refused:
        error = same_error(there, MismatchError)
        assert HERE in told(error, "rank 1")
        assert HERE in told(error, "ranks 0, 2")
    else:
        assert [outcome.error for outcome in there] == [None] * 3


def left(comm, by_a_timer):
    """Leave a call by a timer's exception, or an epoch by an error, on rank 1; catch it; go on."""
    signal.signal(signal.SIGALRM, lambda *_: raises())
    epoch = contextlib.nullcontext() if by_a_timer else guard.guarded_epoch("train")
    with contextlib.suppress(ValueError), epoch:
        if by_a_timer and comm.rank == 1:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        elif by_a_timer:
            time.sleep(0.5)
        elif comm.rank == 1:
            raises()
        dm.all_reduce(ONE)
    dm.barrier()


@pytest.mark.parametrize("by_a_timer", [False, True])
def test_a_rank_that_caught_an_error_and_went_on_is_told_to_all(by_a_timer):
    for outcome in ended(left, by_a_timer):
        assert isinstance(outcome.error, DivergedError | PeerLostError)
        if outcome.rank != 1:
            assert "rank 1 " in str(outcome.error).partition("\n")[0]
            assert "ValueError" in told(outcome.error, "rank 1")
            assert HERE in told(outcome.error, "rank 1")


# Ranks in different places


def circle(comm):
    """Each rank waits for the next one in a group of its own."""
    size = comm.world_size
    pairs = [dist.new_group(sorted({rank, (rank + 1) % size})) for rank in range(size)]
    for pair in (comm.rank, comm.rank - 1):
        dm.barrier(comm=dm.GroupCommunicator(pairs[pair]), name=f"of {pair % size}")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_deadlock_over_groups_is_told_with_each_ranks_line(ranks):
    error = same_error(ended(circle, ranks=ranks), DivergedError)
    for rank in range(ranks):
        assert f'barrier "of {rank}"' in told(error, f"rank {rank}")
        assert HERE in told(error, f"rank {rank}")


def elsewhere(comm, what):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    group = dist.new_group([0, 1]) if what == "other group" else None
    dm.barrier()
    if comm.rank == 1:
        loss = model(ONE).sum()
        loss.backward() if what == "backward" else dist.all_reduce(ONE, group=group)  # elsewhere
    else:
        dm.all_reduce(ONE)


@pytest.mark.parametrize("what", ["world", "backward", "other group"])
def test_a_rank_in_a_collective_of_torchs_own_is_told(what):
    with guard.use_settings(timeout=2 if what == "other group" else 60):
        here, other, there = ended(elsewhere, what)
    error = same_error([here, there], DivergedError, HERE)
    assert at("elsewhere") in told(error, "rank 1")
    assert other.error is not None


def stages(comm):
    """The middle stage sends and receives, and then waits for a slow one."""
    last, x = dist.new_group([1, 2]), torch.ones(2)
    for _ in range(3):
        if comm.rank:
            dist.recv(x, comm.rank - 1)
        if comm.rank < 2:
            dist.send(x, comm.rank + 1)
    time.sleep(2.5 if comm.rank == 2 else 0)
    if comm.rank:
        dist.all_reduce(x, group=last)
    return float(dm.all_reduce(x.sum()))


def test_a_stage_of_a_pipeline_that_waits_for_a_slow_one_is_not_blamed():
    assert run(3, stages, backend="gloo") == [10.0] * 3


def groups_of_threads(comm):
    """Call two groups from two threads, of which another one is late on each rank."""
    groups = [dm.GroupCommunicator(dist.new_group([0, 1])) for _ in range(2)]

    def work(number):
        time.sleep(1.2 if number == comm.rank else 0)
        return float(dm.all_reduce(ONE, comm=groups[number])[0])

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(work, range(2))]


def test_threads_that_wait_in_groups_of_their_own_are_no_deadlock():
    assert run(2, groups_of_threads, backend="gloo") == [[2.0, 2.0]] * 2


def forks(comm):
    dm.barrier()
    if (child := os.fork()) == 0:
        with contextlib.suppress(dm.ConfigurationError):
            dm.all_reduce(ONE)
            os._exit(1)
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, dm.all_reduce(ONE).tolist()


def test_a_forked_child_is_no_rank_and_its_end_is_not_the_ranks():
    assert run(2, forks, backend="gloo") == [(7, [2.0, 2.0])] * 2


def test_settings_are_those_of_the_block_or_the_environment(monkeypatch):
    names = ("DISTMETRICS_GUARD", "DISTMETRICS_TIMEOUT", "DISTMETRICS_REPORT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with guard.use_settings() as now:
        assert now == guard.Settings(mode="on", timeout=300, report=None)
    with guard.use_settings(timeout=7), guard.use_settings(mode="warn", report="left") as now:
        assert now == guard.Settings("warn", 7, Path("left"))
    for name, value in zip(names, ("strict", "2.5", "out"), strict=True):
        monkeypatch.setenv(name, value)
    with guard.use_settings() as now:
        assert now == guard.Settings("strict", 2.5, Path("out"))
    assert {*get_args(guard.Mode)} == {"off", "warn", "on", "strict"}
    for name, value in ((names[1], "soon"), (names[1], "-1"), (names[0], "yes")):
        monkeypatch.setenv(name, value)
        with pytest.raises(dm.ConfigurationError, match=value):
            run(2, forks, backend="gloo")

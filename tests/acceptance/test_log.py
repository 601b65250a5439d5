from __future__ import annotations

import csv
import io
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._python_dispatch import TorchDispatchMode

import distmetrics as dm
from distmetrics import InputError, MismatchError
from distmetrics.log import LiveTable, Logger
from tests.acceptance import python
from tests.acceptance.test_collectives import Counting, caught, on_ranks, told

X, VALUES = torch.ones(()), np.random.default_rng(0).lognormal(size=(3, 40))


def log_all(log: Any, x: Any, weight: Any) -> Any:
    log.mean("loss", x, weight=weight)
    log.mean({"a": x, "b": 2 * x}, weight=3)
    log.mean("a", torch.nan, weight=0)  # is not looked at
    log.sum({"steps": 1, "total": x})
    log.max("min/norm", x)
    log.min("max/norm", x)
    log.same("lr", 0.5)
    log.std("std", x, weight=2)
    log.sum("pair", [1, 2])
    return 2 * x


def log_more(log: Any, x: Any, weight: Any) -> Any:
    log.quantile("seconds", x)
    return log_all(log, x, weight)


@on_ranks(3)
def test_a_row_is_what_one_process_would_log(comm: Any) -> None:
    """Also after a checkpoint; ranks may log other names, and get the same bits."""
    log, before = dm.Log(comm), dm.Log(comm)
    weights = np.broadcast_to(np.arange(40), VALUES.shape)
    for step, x in enumerate(VALUES[comm.rank]):
        if step == 20:
            states, before = dm.all_gather_object(before.state_dict()), dm.Log(comm)
            for state in (states[1:], states[:1], [])[comm.rank]:  # other ranks go on with them
                before.load_state_dict(state)
        log_all(log, torch.tensor(x, requires_grad=True), step)
        log_all(before, float(x), torch.tensor(step))
        log.quantile({"seconds": x})
    if comm.rank == 1:
        log.sum("own", 1)
    row, resumed = log.flush(), before.flush()
    assert dm.all_gather_object(repr(row)) == [repr(row)] * 3
    expected = {"loss": np.average(VALUES, weights=weights), "a": VALUES.mean(), "steps": 120}
    expected |= {"b": 2 * VALUES.mean(), "total": VALUES.sum(), "lr": 0.5}
    expected |= {"min/norm": VALUES.max(), "max/norm": VALUES.min()}
    expected["std"] = np.repeat(VALUES, 2).std(ddof=1)
    assert row.pop("pair") == resumed.pop("pair") == [120.0, 240.0]
    assert (resumed, log.flush()) == (pytest.approx(expected), {})
    for share in (50, 90, 99):
        exact = np.percentile(VALUES, share, method="inverted_cdf")
        assert row.pop(f"seconds_p{share}") == pytest.approx(exact, rel=0.01)
    assert row == pytest.approx({**expected, "own": 1, "seconds_max": VALUES.max()})


# Rank 1 of two is the odd one: the error of both, a phrase of it, and what a rank logs.
FAULTS: list[Any] = [
    (MismatchError, "max", lambda log, rank: (log.max if rank else log.sum)("x", 1)),
    (MismatchError, "1.0", lambda log, rank: log.same("x", rank)),
    (InputError, "min", lambda log, rank: rank and (log.max("x", 1), log.min("x", 1))),
    (InputError, "-1", lambda log, rank: log.mean("x", 1.0, weight=-rank)),
    (InputError, "weight", lambda log, rank: log.mean("x", 1.0, weight=torch.tensor(-rank))),
    (InputError, "many", lambda log, rank: log.sum("x", "many" if rank else 1)),
    (InputError, "[1, 2]", lambda log, rank: log.sum({"x": torch.ones(1, 1 + rank)})),
    (MismatchError, "shape [3]", lambda log, rank: log.sum("x", torch.ones(2 + rank))),
    (InputError, "[3]", lambda log, rank: [log.sum("x", torch.ones(2 + rank * n)) for n in (0, 1)]),
    (InputError, "clone", lambda log, rank: rank and (log.sum("x", t := X * 1), t.add_(1))),
]


@on_ranks(2)
def test_what_is_wrong_on_one_rank_is_an_error_on_every_rank(comm: Any) -> None:
    """It names the rank, the name and the line; what else was logged is kept."""
    for kind, phrase, fault in FAULTS:
        log = dm.Log(comm)
        log.sum("kept", 1)
        fault(log, comm.rank)
        (error,) = told(comm, [(kind, phrase, lambda _, log=log: log.flush())])
        assert all(text in str(error) for text in ("rank 1", "'x'", "test_log.py:"))
        assert kind is MismatchError or log.flush()["kept"] == 2


@on_ranks(2)
def test_the_exchange_may_run_in_the_background(comm: Any) -> None:
    """Its error is raised by the result, or else by the next flush."""
    log = dm.Log(comm)
    log.sum("x", 1)
    handle = log.flush(wait=False)
    log.sum("x", 10)
    assert dm.all_reduce(1) == 2
    assert (log.flush(), handle.result()) == ({"x": 20.0}, {"x": 2.0})
    for ask in (lambda handle: handle.result(), lambda _: log.flush()):
        log.same("lr", comm.rank)
        assert "'lr'" in str(caught(ask, log.flush(wait=False)))
        log.same("lr", 0)
    assert log.flush()["lr"] == 0


UNASKED = """
import distmetrics
for value in (1, "text"):
    log = distmetrics.Log(writers=[print])
    log.sum("x", value), log.flush(wait=False)
del log
"""


def test_a_result_that_nobody_asks_for_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNASKED)
    done = python("script.py", cwd=tmp_path)
    if done.returncode:
        raise RuntimeError(done.stderr)
    assert done.stderr.count("Warning: ") == 2


class Waits(TorchDispatchMode):
    found = 0  # values that are read, and sizes that depend on some

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        self.found += bool(tags & {*func.tags})
        return func(*args, **kwargs or {})


@on_ranks(2, backends=("threads",))
def test_a_step_waits_for_nothing_and_a_flush_is_one_exchange(comm: Any) -> None:
    own = Counting(comm)
    log, more, x = dm.Log(own), dm.Log(own), torch.tensor(1.5, requires_grad=True)
    with Waits() as waits:
        for _ in range(200):
            log_all(log, x * 1, X)
            log_more(more, x * 1, X)
    assert (waits.found, own.sent) == (0, [])
    log.flush()
    assert len(own.sent) == 1
    with Waits() as waits:
        x.item()
    assert waits.found


def test_all_but_the_flush_runs_in_compiled_code() -> None:
    log, plain, x = dm.Log(), dm.Log(), torch.tensor(1.5, requires_grad=True)
    for weight in (1, 3):
        torch.compile(log_more, fullgraph=True, backend="aot_eager")(log, x, weight).backward()
        log_more(plain, x, weight)
    assert log.flush() == plain.flush()
    torch.compile(lambda: log.sum("loss", 1), fullgraph=True, backend="eager")()
    assert "test_log.py:" in str(caught(log.flush))


class Failing(Logger):
    def log_metrics(self, metrics: Any, step: int) -> None:
        metrics.clear()
        assert step != 5


@on_ranks(2, backends=("gloo",))
def test_rows_go_to_every_writer_on_one_rank(comm: Any) -> None:
    """Also where it has no values, and where a writer fails, which that rank raises alone."""
    text, rows, failed = io.StringIO(), [], []
    writers = [Failing(), LiveTable(text), lambda row, step: rows.append((step, row))]
    log = dm.Log(dm.layout({"pp": 2}, comm=comm, pp="last"), writers=writers)
    for step in (None, 5, None):
        log.sum("x", 1000)
        try:
            log.flush(step)
        except AssertionError as error:
            failed += error.__notes__
    log.flush(wait=False).result()
    again = dm.Log(comm, writers=writers[2:])
    again.load_state_dict(log.state_dict())
    again.flush()
    expected = [(1, {"x": 1000}), (5, {"x": 1000}), (3, {"x": 1000}), (4, {}), (5, {})]
    assert rows == (expected if comm.rank == 0 else [])
    assert len(text.getvalue().split("x 1,000")) == (4 if comm.rank == 0 else 1)
    assert ["Failing" in note for note in failed] == ([True] if comm.rank == 0 else [])
    assert isinstance(caught(dm.Log, writers=[3]), dm.ConfigurationError)


KILLED = """
import os, signal, sys
from distmetrics import Log
from distmetrics.log import CSVLogger, TensorBoardLogger
writers = [CSVLogger("runs", "", "run"), TensorBoardLogger("runs", "", "board")]
unnamed = CSVLogger("runs")
unnamed.log_metrics({"x": 1}, 1), unnamed.log_hyperparams({"lr": 0.1})
os.chdir("/")
log, first = Log(writers=writers), int(sys.argv[1])
for step in range(first, first + 2):
    log.mean("loss", 1 / step, weight=1)
    log.flush(step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_loses_no_row_and_goes_on_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    for first in (1, 3):
        assert python("killed.py", first, cwd=tmp_path).returncode == -signal.SIGKILL
    rows = [*csv.DictReader((tmp_path / "runs/run/metrics.csv").read_text().splitlines())]
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == [
        (i, 1 / i) for i in range(1, 5)
    ]
    events = EventAccumulator(str(tmp_path / "runs/board")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    unnamed = tmp_path.glob("runs/distmetrics_logs/version_[01]/*")
    assert len([*unnamed]) == 4  # metrics.csv and hparams.json

"""The texts of errors, the commands of ``python -m distmetrics``, and what a job leaves behind."""

from __future__ import annotations

import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import distmetrics as dm
from distmetrics import errors, find_unpicklable, guard
from distmetrics.testing import outcomes
from tests.acceptance import free_port, python, torchrun


def test_errors_have_one_shape_and_say_who_where_and_what_to_do():
    site = errors.Site("train.py", 8, "main")
    assert str(site) == "train.py:8 in main"
    assert errors.rank_ranges([9, 1, 0, 3, 4, 5]) == "0-1, 3-5, 9"
    lines = {0: "waits\nhere", 1: "waits\nhere", 2: "is gone"}
    text = errors.compose("it broke", lines, notes=["no data moved"], likely="a kill", do="mend it")
    said = [" ".join(line.split()) for line in text.splitlines() if line]
    ranks = ["ranks 0-1 waits\\nhere", "rank 2 is gone"]
    assert said == ["it broke", *ranks, "no data moved", "Likely: a kill", "Do: mend it"]
    error = dm.DivergedError("it broke", per_rank=lines, do="mend it", rank=1, peers=[2], site=site)
    assert (error.rank, error.peers, error.site, error.code) == (1, (2,), site, "diverged")
    assert str(error) == errors.compose("it broke", lines, do="mend it")
    kinds = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert all(issubclass(kind, errors.DistmetricsError) for kind in kinds)
    assert len({kind.code for kind in kinds}) == len(kinds) >= 8
    assert issubclass(dm.ConfigurationError, ValueError)
    assert issubclass(dm.MissingDependencyError, ImportError)


WITHOUT = """\
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("distmetrics", sys.argv[1]):
        del sys.modules[name]
sys.modules[sys.argv[1]] = None  # its import fails
__import__(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("package", "module"), [("torch", "distmetrics"), ("hypothesis", "distmetrics.testing.inputs")]
)
def test_a_package_that_is_missing_is_named(package, module, tmp_path):
    (tmp_path / "program.py").write_text(WITHOUT)
    said = python(tmp_path / "program.py", package, module, cwd=tmp_path).stderr
    needs, _, do = said.partition("MissingDependencyError: ")[2].partition("\n")
    assert package in needs
    assert "pip install" in do


class Holder:
    def __init__(self, part):
        self.part = part  # assigned


def test_what_cannot_be_pickled_is_named_by_its_path_with_its_line_and_what_to_do():
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    assert find_unpicklable([net, torch.ones(2), {"a": functools.partial(max, 1)}]) == []
    net[1].scale = lambda x: x  # made here
    lock = threading.Lock()
    parts = [net, {"locks": [Holder(lock), Holder(lock)]}, (n for n in ())]
    found = find_unpicklable(parts, name="job", by_value=False)
    paths = ["job[0][1].scale", "job[1]['locks'][0].part", "job[2]"]
    assert [each.path for each in found] == paths
    lines = Path(__file__).read_text().splitlines()
    kinds = ("lambda", "lock", "generator")
    for part, kind, mark in zip(found, kinds, ("# made here", "# assigned", ""), strict=True):
        line = next(n for n, line in enumerate(lines, 1) if line.endswith(mark))
        assert not mark or f"test_commands.py:{line}" in part.where
        assert kind in part.what
        assert part.do
        assert all(text in str(part) for text in (part.path, part.what, part.where, part.do))
    assert find_unpicklable(net, by_value=True) == find_unpicklable(net) == []


# What a job leaves behind


def fails(comm):
    for step in range(60):
        dm.all_reduce(torch.ones(2), name=f"step {step}")
    if comm.rank == 1:
        raise ValueError("a bad batch")
    dm.all_reduce(torch.ones(3), name="last")


@pytest.mark.gloo
def test_each_rank_leaves_a_file_of_its_owner_with_its_last_50_calls(tmp_path):
    with guard.use_settings(report=tmp_path / "left"):
        outcomes(3, fails, backend="gloo")
    files = sorted((tmp_path / "left").iterdir())
    assert [file.name for file in files] == [f"rank-{rank}.json" for rank in range(3)]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "left", *files)]
    assert modes == [0o700, 0o600, 0o600, 0o600]
    first, second, _ = [json.loads(file.read_text()) for file in files]
    assert (first["schema"], first["rank"], first["world_size"]) == (1, 0, 3)
    assert (first["error"]["kind"], first["error"]["peers"]) == ("PeerLostError", [1])
    assert (second["error"]["kind"], second["error"]["text"]) == ("ValueError", "a bad batch")
    last = first["calls"][-1]
    assert (len(first["calls"]), last["number"], last["group"]) == (50, 61, "world")
    assert (last["detail"], last["ended"]) == ("float32[3]", None)
    assert last["site"] == first["error"]["site"] == first["where"][0]
    assert "test_commands.py:" in last["site"]


def left(folder, calls, size=0, **more):
    """Write the files of ranks whose calls are ``(group, operation, has ended)``."""
    for rank, made in calls.items():
        listed = []
        for group, op, is_over in made:
            number = 1 + sum(call["group"] == group for call in listed)
            began, detail = 5.0 + len(listed), f"[{rank if size < 9 else 0}]"
            call = {"number": number, "group": group, "op": op, "detail": detail}
            call |= {"site": "train.py:8 in main", "started": began}
            listed.append(call | {"ended": began + 1 if is_over else None})
        report = {"schema": 1, "rank": rank, "world_size": size or len(calls), "host": "node0"}
        report |= {"pid": 7, "written": 99.0, "error": None, "where": ["train.py:81 in load"]}
        (folder / f"rank-{rank}.json").write_text(
            json.dumps(report | {"calls": listed[-50:]} | more)
        )
    (folder / "rank-0.json.tmp").write_text("{")
    return folder


A, B, WAITS = ("world", "mean", True), ("world", "barrier", True), ("world", "all_gather", False)
X, Y = ("rows", "mean", True), ("rows", "sum", True)


@pytest.mark.parametrize(
    ("calls", "size", "parts"),
    [
        ({0: [A, WAITS], 1: [A]}, 2, [("world", 2, [1])]),
        ({0: [A, A, B], 1: [A, B, B]}, 2, [("world", 2, [])]),
        ({0: [A, B], 1: [A, B]}, 3, []),  # of rank 2 nothing is known
        ({0: [A, WAITS], 1: [A, WAITS]}, 3, [("world", 2, [2])]),
        ({0: [B, *[A] * 50], 1: [A] * 20}, 2, [("world", 21, [1])]),  # the first is not known
        ({0: [X, WAITS], 1: [Y, WAITS], 2: []}, 3, [("rows", 1, []), ("world", 1, [2])]),
        ({rank: [A] if rank == 2 else [A, WAITS] for rank in range(64)}, 64, [("world", 2, [2])]),
    ],
)
def test_a_postmortem_finds_where_the_ranks_part(calls, size, parts, tmp_path):
    left(tmp_path, calls, size)
    done = python("-m", "distmetrics", "postmortem", "--json", ".", cwd=tmp_path)
    found = json.loads(done.stdout)
    at = [(each["group"], each["number"], each["absent"]) for each in found["divergences"]]
    assert at == parts
    assert found["missing"] == [2] * (len(calls) < size)
    assert size < 64 or "ranks 0-1, 3-63" in found["text"]
    if {rank for _, _, absent in parts[:1] for rank in absent} & calls.keys():
        assert "train.py:81 in load" in found["text"]


def half(folder):
    (left(folder, {0: [A], 1: [A]}) / "rank-1.json").write_text('{"schema": 1')


@pytest.mark.parametrize(
    ("arguments", "prepare", "text"),
    [
        ("nonsense", None, "nonsense"),
        ("doctor --timeout 0", None, "--timeout"),
        ("doctor --backend mpi", None, "--backend"),
        ("postmortem .", None, "holds no file"),
        ("postmortem .", half, "rank 1 "),
        ("postmortem .", lambda at: left(at, {0: [A]}, schema=2), "rank 0 "),
        ("postmortem .", lambda at: left(left(at, {0: [A]}, 5), {1: [A]}, 2), "different size"),
    ],
)
def test_what_cannot_run_exits_with_2_and_says_why(arguments, prepare, text, tmp_path):
    if prepare:
        prepare(tmp_path)
    done = python("-m", "distmetrics", *arguments.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


JOB = """\
import atexit, time, torch, torch.distributed as dist
import distmetrics as dm

def load():
    time.sleep(60)

dist.init_process_group("gloo")
dm.barrier()
if dist.get_rank() == 1:
    atexit.register(time.sleep, 3)  # until rank 0 has heard of it
    raise ValueError("a bad batch")
load() if dist.get_rank() == 2 else dm.all_reduce(torch.ones(2), name="loss")
"""


@pytest.mark.gloo
def test_a_job_of_torchrun_ends_and_its_postmortem_blames_the_rank_that_raised(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    done = torchrun(tmp_path / "job.py", ranks=3, DISTMETRICS_REPORT=str(tmp_path / "left"))
    assert done.returncode != 0
    assert "rank 1 failed and will never answer" in done.stderr
    assert "raised ValueError: a bad batch  job.py:11 in <module>" in done.stderr
    text = python("-m", "distmetrics", "postmortem", "left", cwd=tmp_path)
    ended = python("-m", "distmetrics", "postmortem", "left", "--json", cwd=tmp_path)
    assert (text.returncode, ended.returncode) == (0, 0)
    found = json.loads(ended.stdout)
    assert (found["world_size"], found["missing"]) == (3, [])
    raised = [(each["kind"], each["ranks"]) for each in found["errors"]]
    assert raised == [("ValueError", [1]), ("PeerLostError", [0])]
    assert "Likely: ValueError on rank 1" in found["text"]
    assert found["text"] in text.stdout
    busy = found["ranks"][2]  # SIGTERM has ended it
    assert (busy["raised"], busy["where"][0]) == (None, "job.py:5 in load")


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("ranks", "come", "options", "check", "text"),
    [
        (1, [0], "--timeout 60 --json", "", ""),
        (2, [0, 1], "--timeout 60 --json --backend gloo", "", ""),
        (3, [0], "--timeout 1 --json", "rendezvous", "ranks 1-2"),
        (2, [1], "--timeout 1", "rendezvous", "rank 0"),
        (2, [0, 1], "--backend nccl --json", "devices", "GPU"),
        (2, [0, 1], "--json", "interfaces", "nope0"),
    ],
)
def test_doctor_checks_a_machine_or_a_job(ranks, come, options, check, text, tmp_path):
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def one(rank):
        own = {**job, "RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        own |= {"NCCL_SOCKET_IFNAME": "nope0"} if check == "interfaces" and rank == 1 else {}
        return python("-m", "distmetrics", "doctor", *options.split(), cwd=tmp_path, **own)

    with ThreadPoolExecutor() as pool:
        first, *others = pool.map(one, come)
    assert {each.returncode for each in (first, *others)} == {int(bool(check))}
    assert all(each.stdout == "" for each in others)
    if "--json" not in options:
        assert all(part in first.stdout + first.stderr for part in (check, text, "Do: "))
        return
    report = json.loads(first.stdout)
    assert (report["ok"], report["world_size"]) == (not check, ranks)
    assert bool(report["launcher"]) == (ranks > 1)
    found = {each["name"]: each for each in report["findings"]}
    failed = [each for each in report["findings"] if each["status"] == "fail"]
    assert [each["name"] for each in failed] == [check] * bool(check)
    assert all(text in each["found"] and each["do"] for each in failed)
    assert all(each["ranks"] == ([1] if check == "interfaces" else []) for each in failed)
    if not check:
        names = ("rendezvous", "names", "interfaces", "versions", "devices")
        assert {*names} - found.keys() == set()
        assert torch.__version__ in found["versions"]["found"]
        latency, bandwidth = (found[name]["numbers"] for name in ("latency", "bandwidth"))
        assert 0 < latency["median_s"] <= latency["p99_s"]
        assert bandwidth["all_reduce_bytes_per_s"] > 0


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(300)
def test_the_demo_shows_wrong_numbers_and_the_right_ones(tmp_path):
    done = python("-m", "distmetrics", "demo", "--json", cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [section["world_size"] for section in report["sections"]] == [2, 4]
    assert {finding["code"] for finding in report["findings"]} > {"DL101"}
    for section in report["sections"]:
        for ways in section["metrics"].values():
            right = torch.tensor(ways["one process"]["value"])
            ours = torch.tensor(ways["distmetrics"]["value"])
            torch.testing.assert_close(ours, right, rtol=1e-6, atol=0)
        f1 = {way: each["value"] for way, each in section["metrics"]["macro F1"].items()}
        wrong = {way for way, value in f1.items() if abs(value - f1["one process"]) > 1e-6}
        assert wrong == {"rank 0 alone", "mean of ranks", "padded sampler"}

"""``python -m distmetrics doctor`` as a user meets it: alone, under torchrun, and in jobs that are broken."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from distmetrics.cli import main
from distmetrics.cli.doctor_checks import TORCHRUN
from distmetrics.cli.doctor_meeting import open_store, sign_in
from distmetrics.errors import ConfigurationError, PeerLostError
from distmetrics.launch.environment import Environment
from tests.machines import torchrun, two_machines
from tests.programs import Program

ROOT = Path(__file__).parents[2]
DOCTOR = ("-m", "distmetrics", "doctor")
STRANGE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "DISTMETRICS_STORE", "DISTMETRICS_GUARD", "DISTMETRICS_TIMEOUT")


@pytest.fixture(autouse=True)
def on_its_own(monkeypatch):
    for name in (*TORCHRUN, *STRANGE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*arguments, **variables):
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return Program(arguments, cwd=ROOT, env=environ | variables)


def ended(*started):
    """Wait for programs; returns exit code, output and errors of each."""
    try:
        ends = [program.end(timeout=100) for program in started]
    finally:
        for program in started:
            program.kill()
    return [(end.stdout, end.stderr, end.returncode) for end in ends]


def rank(number, of, port, *arguments, **variables):
    """Start one rank of a job as a shell script would."""
    place = {"RANK": str(number), "WORLD_SIZE": str(of), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(of)}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return start(*DOCTOR, *arguments, **(place | where | variables))


def by_name(text):
    found = json.loads(text)
    return found, {finding["name"]: finding for finding in found["findings"]}


def statuses(found):
    return {name: finding["status"] for name, finding in found.items() if finding["status"] == "fail"}


MEASURED = {
    "rendezvous": {"seconds"},
    "latency": {"median_s", "p99_s"},
    "bandwidth": {"all_reduce_bytes_per_s"},
}


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_alone_it_starts_two_processes(capsys):
    assert main(["doctor", "--json"]) == 0
    whole, found = by_name(capsys.readouterr().out)
    assert (whole["ok"], whole["launcher"], whole["world_size"], statuses(found)) == (True, "", 1, {})
    assert {name: set(found[name]["numbers"]) for name in MEASURED} == MEASURED
    assert found["latency"]["numbers"]["median_s"] > 0
    assert found["launcher"]["found"] == "no launcher: this process is on its own"


@pytest.mark.gloo
@pytest.mark.timeout(120)
@pytest.mark.long
def test_an_interface_that_is_not_there_fails_twice():
    ((out, err, code),) = ended(start(*DOCTOR, "--json", "--timeout", "10", GLOO_SOCKET_IFNAME="nope0"))
    _, found = by_name(out)
    assert code == 1, err
    assert statuses(found) == {"interfaces": "fail", "rendezvous": "fail"}
    assert "GLOO_SOCKET_IFNAME=nope0 is not there; there are: " in found["interfaces"]["found"]


@pytest.mark.gloo
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "variables", [{"DISTMETRICS_GUARD": "maybe"}, pytest.param({"NCCL_SOCKET_IFNAME": "nope0"}, marks=pytest.mark.long)]
)
def test_under_torchrun_all_ranks_end_alike(variables):
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *DOCTOR, "--json")
    ((out, err, code),) = ended(start(*command, **variables))
    whole, found = by_name(out)  # one object: rank 1 prints nothing
    fine = "NCCL_SOCKET_IFNAME" not in variables
    assert (whole["launcher"], whole["world_size"], whole["ok"]) == ("torchrun", 2, fine)
    assert found["rendezvous"]["found"].startswith("2 ranks connected in ")
    assert found["versions"]["status"] == "ok"
    assert (code, statuses(found)) == ((0, {}) if fine else (1, {"interfaces": "fail"})), err
    assert found["interfaces"]["ranks"] == []  # all of them


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_what_is_wrong_on_one_rank_is_the_exit_code_of_all():
    port = free_port()
    first, second = ended(rank(0, 2, port), rank(1, 2, port, NCCL_SOCKET_IFNAME="nope0"))
    assert (first[2], second[2]) == (1, 1)
    assert "rank 1: NCCL_SOCKET_IFNAME=nope0 is not there" in first[0]
    assert "Do: unset NCCL_SOCKET_IFNAME" in first[0]
    assert "1 check failed" in first[0]
    assert (second[0], second[1]) == ("", "")


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_ranks_that_never_come_are_named():
    alone = rank(0, 4, free_port(), "--timeout", "3")
    without_the_first = rank(1, 2, free_port(), "--timeout", "3")
    (out, _, code), (nothing, err, other) = ended(alone, without_the_first)
    assert (code, other, nothing) == (1, 1, "")
    assert "ranks 1-3 of 4 never came to 127.0.0.1:" in out
    assert "within 3 s" in out
    assert "rank 1 can't open rank 0's store at 127.0.0.1:" in err
    assert "Connection refused" in err


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        ((out, _, code),) = ended(rank(0, 2, taken.getsockname()[1], "--timeout", "3", "--json"))
    _, found = by_name(out)
    assert code == 1
    assert statuses(found) == {"rendezvous": "fail"}
    assert found["rendezvous"]["found"].startswith("rank 0 can't open rank 0's store at 127.0.0.1:")


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_a_store_that_is_silent_is_no_hang():
    """Something listens at the port and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        ((out, err, code),) = ended(rank(1, 2, silent.getsockname()[1], "--timeout", "2"))
    assert (code, out) == (1, "")
    assert "Timeout (0:00:16)!" in err
    assert "open_store" in err  # where it hangs


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(200)
def test_two_machines():
    with two_machines() as names:
        first, second = torchrun(names, "distmetrics", "doctor", "--json")
    _, found = by_name(first[first.index("{\n") : first.rindex("\n}") + 2])
    assert '"findings"' not in second
    assert statuses(found) == {}
    assert "4 on this machine" not in found["launcher"]["found"]
    assert "torchrun says 4 ranks, 2 on this machine, rank 0 at 10.77.0.1:29400" in found["launcher"]["found"]


def meetings(*ranks, size=2, patience=10.0):
    """Let ranks meet at one store, as threads; returns the error of each, or None."""
    store, results = dist.HashStore(), {}

    def come(number, mine, after):
        time.sleep(after)
        place = Environment(
            launcher="torchrun", rank=mine, world_size=size, local_rank=0, local_world_size=1, main_port=1
        )
        try:
            sign_in(store, place, patience)
            results[number] = None
        except (ConfigurationError, PeerLostError) as error:
            results[number] = error

    threads = [threading.Thread(target=come, args=(number, *each)) for number, each in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(ranks))]


def test_ranks_meet():
    assert meetings((0, 0.0), (1, 0.3)) == [None, None]


def test_who_is_missing_is_the_same_for_all():
    found = meetings((0, 0.0), (2, 0.2), (3, 0.0), size=5, patience=0.5)
    assert {str(error).partition("\n")[0] for error in found} == {
        "ranks 1, 4 of 5 never came to 127.0.0.1:1 within 0.5 s",
    }
    assert all(error.peers == (1, 4) for error in found)


def test_who_comes_too_late_is_told_what_the_others_were():
    early, late = meetings((0, 0.0), (1, 0.8), patience=0.2)
    assert str(early) == str(late)
    assert "rank 1 of 2 never came" in str(late)


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_two_processes_of_one_rank(after):
    """Also where the second comes when all are in: it must not take part."""
    found = meetings((0, 0.0), (1, 0.0 if after else 0.2), (1, after or 0.2))
    refused = [error for error in found if isinstance(error, ConfigurationError)]
    assert refused
    assert "two processes say that they are rank 1; one is on " in str(refused[0])
    assert "Do:     give each process a RANK of its own" in str(refused[0])


def test_ranks_that_disagree_on_their_number_do_not_meet():
    one = Environment(launcher="", rank=0, world_size=1, local_rank=0, local_world_size=1, main_port=free_port())
    other = replace(one, rank=1, world_size=3)
    stores = [open_store(place, {}, 10) for place in (one, other)]
    sign_in(stores[0], one, 1)
    with pytest.raises(PeerLostError, match="ranks 0, 2 of 3 never came") as caught:
        sign_in(stores[1], other, 0.1)
    assert "another MASTER_ADDR, MASTER_PORT or WORLD_SIZE" in caught.value.likely


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_is_a_positive_number(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"--timeout={text}"])
    assert "--timeout" in capsys.readouterr().err


def test_help_says_what_json_replaces(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["doctor", "--help"])
    assert "print JSON instead of text" in capsys.readouterr().out


def test_variables_that_say_too_little(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert main(["doctor", "--json"]) == 1
    _, found = by_name(capsys.readouterr().out)
    assert found["launcher"]["found"].startswith("RANK set, but not all of RANK, WORLD_SIZE, ")
    assert "rendezvous" not in found
    monkeypatch.setenv("WORLD_SIZE", "two")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert main(["doctor"]) == 1
    assert "torchrun set WORLD_SIZE='two', which is no number" in capsys.readouterr().out

"""The checks of ``doctor`` by examples, how its ranks meet, and jobs that are broken.

``tests/acceptance/test_commands.py`` runs the command.
"""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics.cli import doctor, main
from distmetrics.cli.doctor import (
    Finding,
    devices,
    host_name,
    interfaces,
    merged,
    of_error,
    open_store,
    sign_in,
    speeds,
)
from distmetrics.errors import ConfigurationError, PeerLostError
from distmetrics.launch.environment import Environment
from tests.machines import torchrun, two_machines
from tests.programs import run_program

ROOT = Path(__file__).parents[2]


# --- checks ---

UNKNOWN = socket.gaierror("Name or service not known")


@pytest.mark.parametrize(
    ("answer", "seconds", "used", "status", "text"),
    [
        (["127.0.1.1"], 0, False, "ok", "node0 resolves to 127.0.1.1"),
        (["127.0.1.1"], 0, True, "fail", "where other machines can't reach it"),
        (["127.0.1.1", "10.0.0.1"], 0, True, "ok", "resolves to 127.0.1.1, 10.0.0.1"),
        (["10.0.0.1"], 5.01, False, "warn", "after 5.0 s: each connection waits for that"),
        (UNKNOWN, 0, True, "fail", "does not resolve: Name or service not known"),
        (UNKNOWN, 0, False, "warn", "does not resolve"),
    ],
)
def test_names(monkeypatch, answer, seconds, used, status, text):
    def look_up(name, *_, **__):
        clock.append(seconds)
        if isinstance(answer, Exception):
            raise answer
        return [(None, None, None, "", (address, 0)) for address in answer]

    clock = [0.0]
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: clock[-1])
    finding = host_name("node0", used)
    assert (finding.status, text in finding.found, bool(finding.do)) == (status, True, status != "ok"), finding


GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@pytest.mark.parametrize(
    ("environ", "several", "status", "text"),
    [
        ({}, True, "ok", "lo, eth0, ib0"),
        ({GLOO: "eth0,ib0"}, True, "ok", "lo, eth0, ib0"),
        ({GLOO: "eth"}, False, "fail", "=eth is not there; there are: lo, eth0"),
        ({GLOO: "eth0,eth7"}, False, "fail", "=eth0,eth7 is not there"),
        ({GLOO: "lo"}, False, "ok", "lo, eth0"),
        ({GLOO: "lo"}, True, "fail", "is not reached from other machines"),
        ({NCCL: "eth"}, True, "ok", "lo, eth0"),
        ({NCCL: "=eth0"}, True, "ok", "lo, eth0"),
        ({NCCL: "^lo,docker"}, True, "ok", "lo, eth0"),
        ({NCCL: "lo"}, True, "fail", "NCCL_SOCKET_IFNAME=lo is not reached"),
        ({NCCL: "en"}, True, "fail", "NCCL_SOCKET_IFNAME=en is not there"),
        (["", ""], "auto", "ok", "gloo, on the processors"),  # of devices, the GPUs of the ranks
        (["", ""], "nccl", "fail", "no GPU, or a torch without nccl, for ranks 0-1"),
        (["H200 a", "H200 b"], "auto", "ok", "nccl, a GPU of its own for each rank: H200"),
        (["H200 a", "H200 b"], "gloo", "ok", "gloo, on the processors"),
        (["H200 a", "H200 a"], "auto", "fail", "ranks share a GPU\n\n  ranks 0-1  H200 a"),
        (["H200 a", ""], "auto", "fail", "no GPU, or a torch without nccl, for rank 1"),
    ],
)
def test_interfaces_and_devices(environ, several, status, text):
    is_network = isinstance(environ, dict)
    finding = interfaces(["lo", "eth0", "ib0"], environ, several) if is_network else devices(environ, several)
    assert (finding.status, text in finding.found, bool(finding.do)) == (status, True, status != "ok"), finding


@pytest.mark.parametrize(
    ("small", "large", "world_size", "device", "statuses", "text"),
    [
        ([1e-4] * 200, 0.02, 2, "cpu", ["ok", "ok"], "median 0.10 ms, 99th percentile 0.10 ms"),
        ([1e-4] * 200, 0.0, 1, "cpu", ["ok", "ok"], "median"),  # with one rank nothing moves
        ([0.02] * 200, 0.02, 2, "cpu", ["warn", "ok"], "median 20.00 ms"),
        ([1e-4] * 190 + [5.0] * 10, 1.0, 2, "cpu", ["warn", "warn"], "99th percentile 5000.00 ms"),
        ([1e-4] * 200, 0.02, 2, "cuda", ["ok", "warn"], "median"),
    ],
)
def test_speeds(small, large, world_size, device, statuses, text):
    comm: Any = SimpleNamespace(world_size=world_size, device=torch.device(device))
    latency, bandwidth = speeds(small, [large or 1e-3] * 5, comm)
    assert [latency.status, bandwidth.status] == statuses
    assert text in latency.found
    speed = 0.0 if world_size == 1 else (16 << 20) / large
    assert bandwidth.numbers == {"all_reduce_bytes_per_s": pytest.approx(speed)}
    assert f"all_reduce of 16 MiB: {speed / 1e9:.2f} GB/s" in bandwidth.found


# --- findings ---

OK, BAD = Finding("names", "ok", "node0 resolves"), Finding("names", "fail", "no address", "mend it")


def test_what_differs_has_its_ranks_and_the_rest_has_none():
    assert merged([[OK, BAD], [OK, BAD]]) == [OK, BAD]
    slow = replace(OK, status="warn", found="after 5 s")
    findings = merged([[OK], [replace(OK, found="node1 resolves")], [slow], [BAD], [BAD]])
    assert [(each.status, each.ranks) for each in findings] == [("ok", (0, 1)), ("warn", (2,)), ("fail", (3, 4))]
    assert findings[0].found == "node0 resolves"
    finding = doctor.versions(["torch 2.6.0", "torch 2.6.0", "torch 2.7.0"])
    assert (finding.status, finding.found.splitlines()[-1]) == ("fail", "  rank 2     torch 2.7.0")
    assert doctor.versions(["torch 2.6.0"] * 2).status == "ok"


def test_one_line_for_each_finding_and_an_error_s_advice_apart(capsys):
    error = PeerLostError("rank 1 never came", likely="a firewall", do="read its log.")
    plain = of_error(OSError("no"))
    assert (plain.found, "see the other checks" in plain.do) == ("OSError: no", True)
    findings = [OK, replace(BAD, ranks=(1, 2), found="first\n[second]"), of_error(error)]
    assert doctor.show(findings, as_json=False) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok    names          node0 resolves",
        "fail  names          ranks 1-2: first",
        "                     [second]",
        "                     Do: mend it",
        "fail  rendezvous     rank 1 never came",
        "                     Likely: a firewall",
        "                     Do: read its log.",
        "2 checks failed.",
    ]
    assert doctor.show([OK, replace(OK, status="warn")], as_json=False) == 0


# --- how ranks meet ---


def place_of(rank: int, size: int, port: int = 1) -> Environment:
    return Environment(launcher="torchrun", rank=rank, world_size=size, local_rank=0, main_port=port)


def meetings(*ranks: int, size: int, patience: float) -> list[Any]:
    """Let ranks sign in at one store, as threads; returns the error of each, or None."""
    store = dist.HashStore()
    with ThreadPoolExecutor(len(ranks)) as pool:
        coming = [pool.submit(sign_in, store, place_of(rank, size), patience) for rank in ranks]
    return [each.exception() for each in coming]


def test_ranks_meet_and_who_is_missing_is_the_same_for_all():
    assert meetings(0, 1, 2, size=3, patience=60) == [None] * 3
    found = meetings(0, 2, 3, size=5, patience=0.5)
    texts = {str(error).partition("\n")[0] for error in found}
    assert texts == {"ranks 1, 4 of 5 never came to 127.0.0.1:1 within 0.5 s"}
    store = dist.HashStore()
    for rank in (0, 1):  # the first verdict counts for who comes too late
        with pytest.raises(PeerLostError, match="rank 1 of 2 never came"):
            sign_in(store, place_of(rank, 2), 0.01)


def test_ranks_that_disagree_on_who_they_are_do_not_meet_and_a_taken_port_is_told():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one, other = place_of(0, 1, port), place_of(1, 3, port)
    stores = [open_store(place, 10) for place in (one, other)]
    sign_in(stores[0], one, 1)
    with pytest.raises(ConfigurationError, match="two processes say that they are rank 0; one is on "):
        sign_in(stores[0], one, 1)
    with pytest.raises(PeerLostError, match=r"ranks 0, 2 of 3 never came(.|\n)*or WORLD_SIZE"):
        sign_in(stores[1], other, 0.1)
    with pytest.raises(PeerLostError, match="open rank 0's store at"):
        open_store(one, 1)


# --- the command ---


def test_variables_that_contradict_and_odd_timeouts_are_told_with_exit_code_2(monkeypatch, capsys):
    for text in ("-1", "nan", "inf", "soon"):
        with pytest.raises(SystemExit, match="2"):
            main(["doctor", f"--timeout={text}"])
        assert "--timeout" in capsys.readouterr().err
    for name, value in {"RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 2
    assert "torchrun set WORLD_SIZE='two', which is no number" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.gloo
def test_a_store_that_is_silent_is_no_hang():
    """Something listens at the port and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        job = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        job |= {"MASTER_PORT": str(silent.getsockname()[1]), "PYTHONPATH": str(ROOT)}
        command = ("-m", "distmetrics", "doctor", "--timeout", "2")
        done = run_program(command, cwd=ROOT, env=os.environ | job, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Timeout (0:00:16)!" in done.stderr
    assert "open_store" in done.stderr  # where it hangs


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(200)
def test_two_machines():
    with two_machines() as names:
        first, second = torchrun(names, "distmetrics", "doctor", "--json")
    report = json.loads(first[first.index("{\n") : first.rindex("\n}") + 2])
    assert '"findings"' not in second
    assert [each["name"] for each in report["findings"] if each["status"] == "fail"] == []
    assert (report["launcher"], report["world_size"]) == ("torchrun", 4)

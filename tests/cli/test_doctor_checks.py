"""The checks of ``doctor`` by examples: machines, variables and ranks that are as they should be, and not."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest
import torch

from distmetrics.cli import doctor, doctor_checks, doctor_ranks
from distmetrics.cli.doctor_checks import Finding, interfaces, launcher, merged, of_error
from distmetrics.cli.doctor_ranks import measured, on_gpus
from distmetrics.errors import PeerLostError
from distmetrics.launch.spawn import launch

NODE0 = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("environ", "status", "text"),
    [
        ({}, "ok", "no launcher: this process is on its own"),
        (NODE0, "ok", "torchrun says 4 ranks, 2 on this machine, rank 0 at node0:29500"),
        ({"RANK": "0"}, "fail", "RANK set, but not all of RANK, WORLD_SIZE, LOCAL_RANK"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "fail", "WORLD_SIZE, LOCAL_RANK set, but not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "fail", "MASTER_ADDR is not: ranks cannot find"),
        (NODE0 | {"RANK": "4"}, "fail", "torchrun says rank 4 in a world of 4"),
        (NODE0 | {"WORLD_SIZE": "four"}, "fail", "set WORLD_SIZE='four', which is no number"),
        (NODE0 | {"LOCAL_RANK": "3"}, "fail", "local rank 3 in a world of 2"),
        (NODE0 | {"MASTER_PORT": "http"}, "fail", "MASTER_PORT='http', which is no number"),
        ({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, "ok", "no launcher"),
    ],
)
def test_who_launched_it(environ, status, text):
    place, finding = launcher(environ)
    assert (finding.status, text in finding.found) == (status, True), finding
    assert (place is not None) == ("torchrun says 4 ranks" in text)


def answering(monkeypatch, answer, after=0.0):
    def lookup(name):
        clock[0] += after
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = [0.0]
    monkeypatch.setattr(doctor_checks, "lookup", lookup)
    monkeypatch.setattr(doctor_checks.time, "perf_counter", lambda: clock[0])


UNKNOWN = socket.gaierror("Name or service not known")


@pytest.mark.parametrize(
    ("answer", "after", "remote", "status", "text"),
    [
        (["127.0.1.1"], 0, False, "ok", "node0 resolves to 127.0.1.1"),
        (["127.0.1.1"], 0, True, "fail", "where other machines can't reach it"),
        (["127.0.1.1", "10.0.0.1"], 0, True, "ok", "resolves to"),
        (["10.0.0.1"], 5.01, False, "warn", "after 5.0 s: each connection waits for that"),
        (UNKNOWN, 0, True, "fail", "does not resolve: Name or service not known"),
    ],
)
def test_names(monkeypatch, answer, after, remote, status, text):
    answering(monkeypatch, answer, after)
    for check in (doctor_checks.host_name, doctor_checks.main_address):
        finding = check("node0", remote=remote)
        assert (finding.status, text in finding.found) == (status, True), finding
        assert bool(finding.do) == (status != "ok")


def test_a_host_name_that_nobody_else_uses_is_a_warning_and_rank_0_s_address_is_needed(monkeypatch):
    answering(monkeypatch, UNKNOWN)
    assert doctor_checks.host_name("node0", remote=False).status == "warn"
    assert doctor_checks.main_address("node0", remote=False).status == "fail"


@pytest.mark.parametrize(
    ("environ", "several", "status", "text"),
    [
        ({}, True, "ok", "lo, eth0, ib0"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, True, "ok", "lo, eth0, ib0"),
        ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, True, "ok", "lo, eth0, ib0"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, False, "fail", "=eth is not there; there are: lo, eth0"),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth7"}, False, "fail", "=eth0,eth7 is not there"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, False, "ok", "lo, eth0"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, True, "fail", "is not reached from other machines"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, True, "ok", "lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, True, "ok", "lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, True, "ok", "lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, True, "fail", "NCCL_SOCKET_IFNAME=lo is not reached"),
        ({"NCCL_SOCKET_IFNAME": "en"}, True, "fail", "NCCL_SOCKET_IFNAME=en is not there"),
    ],
)
def test_interfaces(environ, several, status, text):
    finding = interfaces(["lo", "eth0", "ib0"], environ, several=several)
    assert (finding.status, text in finding.found) == (status, True), finding


OK, BAD = (
    Finding("names", "ok", "node0 resolves"),
    Finding("names", "fail", "no address", "mend it"),
)


def test_what_all_ranks_found_is_one_finding_of_no_rank():
    assert merged([[OK], [OK]]) == [OK]
    assert merged([[OK, BAD], [OK, BAD]]) == [OK, BAD]


def test_what_differs_has_its_ranks():
    slow = replace(OK, status="warn", found="after 5 s")
    findings = merged([[OK], [replace(OK, found="node1 resolves")], [slow], [BAD], [BAD]])
    assert [(each.status, each.ranks) for each in findings] == [
        ("ok", (0, 1)),
        ("warn", (2,)),
        ("fail", (3, 4)),
    ]
    assert findings[0].found == "node0 resolves"
    assert doctor.failed(findings) == 1
    assert doctor.failed([OK, slow]) == 0


def test_an_error_s_advice_stands_apart():
    error = PeerLostError("rank 1 never came", likely="a firewall", do="read its log.")
    assert of_error("rendezvous", error) == Finding(
        "rendezvous", "fail", "rank 1 never came\nLikely: a firewall", "read its log."
    )
    plain = of_error("rendezvous", OSError("no"))
    assert plain.found == "OSError: no"
    assert "see the other checks" in plain.do


def test_one_line_for_each_finding(capsys):
    doctor.show([OK, replace(BAD, ranks=(1, 2), found="first\n[second]")], as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "ok    names          node0 resolves",
        "fail  names          ranks 1-2: first",
        "                     [second]",
        "                     Do: mend it",
        "1 check failed.",
    ]


CPU = ["", ""]
GPUS = ["H200 GPU-a", "H200 GPU-b"]
ON_ONE = ["H200 GPU-a", "H200 GPU-a"]
MIXED = ["H200 GPU-a", ""]


@pytest.mark.parametrize(
    ("ranks", "backend", "status", "text", "fast"),
    [
        (CPU, "auto", "ok", "gloo, on the processors", False),
        (CPU, "nccl", "fail", "no GPU, or a torch without nccl, for ranks 0-1", False),
        (GPUS, "auto", "ok", "nccl, a GPU of its own for each rank: H200", True),
        (GPUS, "gloo", "ok", "gloo, on the processors", False),
        (ON_ONE, "auto", "fail", "ranks share a GPU\n\n  ranks 0-1  H200 GPU-a", False),
        (MIXED, "auto", "fail", "no GPU, or a torch without nccl, for rank 1", False),
    ],
)
def test_devices(ranks, backend, status, text, fast):
    finding = doctor_ranks.devices(ranks, backend)
    assert (finding.status, text in finding.found) == (status, True), finding
    assert bool(finding.do) == (status != "ok")
    assert on_gpus(ranks, backend) == fast


def test_versions_of_ranks():
    finding = doctor_ranks.versions(["torch 2.6.0", "torch 2.6.0", "torch 2.7.0"])
    assert finding.status == "fail"
    assert finding.found.splitlines() == [
        "ranks have different versions",
        "",
        "  ranks 0-1  torch 2.6.0",
        "  rank 2     torch 2.7.0",
    ]
    assert doctor_ranks.versions(["torch 2.6.0"] * 2).status == "ok"


def test_rendezvous():
    finding = doctor_ranks.rendezvous([3.0, 0.5])
    assert (finding.status, finding.found) == ("ok", "2 ranks connected in 3.0 s")


def test_latency():
    finding = doctor_ranks.latency([0.0001] * 200)
    text = "all_reduce of 8 bytes: median 0.10 ms, 99th percentile 0.10 ms"
    assert (finding.status, finding.found) == ("ok", text)
    assert finding.numbers == {"median_s": 0.0001, "p99_s": 0.0001}
    assert doctor_ranks.latency([0.02] * 200).status == "warn"
    stalls = doctor_ranks.latency([0.0001] * 190 + [5.0] * 10)
    assert stalls.status == "warn"
    assert "99th percentile 5000.00 ms: each small collective" in stalls.found


@pytest.mark.parametrize(
    ("speed", "device", "status"),
    [
        (1e9, "cpu", "ok"),
        (0.0, "cpu", "ok"),  # one rank
        (0.05e9, "cpu", "warn"),
        (0.9e9, "cuda", "warn"),
    ],
)
def test_bandwidth(speed, device, status):
    finding = doctor_ranks.bandwidth(speed, device)
    assert finding.status == status
    assert f"all_reduce of 16 MiB: {speed / 1e9:.2f} GB/s over the bus of each rank" in finding.found


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_measured_between_processes():
    outcomes = launch(measured, 3, limit=100)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    latency, bandwidth = outcomes[0].value
    assert latency.numbers["p99_s"] >= latency.numbers["median_s"] > 0
    assert bandwidth.numbers["all_reduce_bytes_per_s"] > 0


def test_own_versions():
    assert doctor_ranks.own_versions().startswith(f"torch {torch.__version__}, distmetrics ")
    assert doctor_checks.lookup("127.0.0.1") == ["127.0.0.1"]
    started = time.monotonic()
    assert doctor_checks.main_address("no.such.host.invalid", remote=False).status == "fail"
    assert time.monotonic() - started < 60

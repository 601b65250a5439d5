"""The checks of ``doctor`` by examples: machines, variables and ranks that are as they should be, and not."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from distmetrics.cli import doctor, doctor_checks, doctor_ranks
from distmetrics.cli.doctor_checks import Finding, interfaces, launcher, merged, of_error
from distmetrics.cli.doctor_ranks import RankFacts, Speed, compared, measured, on_gpus
from distmetrics.errors import PeerLostError
from distmetrics.launch.processes import launch

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
        ({"RANK": "0"}, "fail", "set: RANK; not set: WORLD_SIZE"),
        (
            {"WORLD_SIZE": "2", "LOCAL_RANK": "0"},
            "fail",
            "set: WORLD_SIZE, LOCAL_RANK; not set: RANK",
        ),
        ({"LOCAL_RANK": "0"}, "fail", "set: LOCAL_RANK; not set: RANK, WORLD_SIZE"),
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
    ("answer", "after", "several", "told", "status", "text"),
    [
        (["127.0.1.1"], 0, False, False, "ok", "the host name node0 resolves to 127.0.1.1"),
        (["127.0.1.1"], 0, True, False, "fail", "where other machines can't reach it"),
        (["127.0.1.1", "10.0.0.1"], 0, True, False, "ok", "resolves to"),
        (["127.0.1.1"], 0, True, True, "warn", "where other machines can't reach it"),
        (["10.0.0.1"], 5.01, False, False, "warn", "after 5.0 s: each connection waits for that"),
        (UNKNOWN, 0, False, False, "warn", "does not resolve: Name or service not known"),
        (UNKNOWN, 0, True, False, "fail", "does not resolve: Name or service not known"),
    ],
)
def test_names(monkeypatch, answer, after, several, told, status, text):
    answering(monkeypatch, answer, after)
    finding = doctor_checks.host_name("node0", several=several, told=told)
    assert (finding.status, text in finding.found) == (status, True), finding
    assert bool(finding.do) == (status != "ok")


@pytest.mark.parametrize(
    ("answer", "after", "several", "status", "text"),
    [
        (["10.0.0.1"], 0, True, "ok", "rank 0's address node0 resolves to 10.0.0.1"),
        (UNKNOWN, 0, True, "fail", "does not resolve: Name or service not known"),
        (["127.0.0.1"], 0, True, "fail", "where other machines can't reach it"),
        (["127.0.0.1"], 0, False, "ok", "resolves to 127.0.0.1"),
        (["10.0.0.1"], 5.0, True, "warn", "after 5.0 s: each connection waits for that"),
    ],
)
def test_main_address(monkeypatch, answer, after, several, status, text):
    answering(monkeypatch, answer, after)
    finding = doctor_checks.main_address("node0", several=several)
    assert (finding.status, text in finding.found) == (status, True), finding


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
        ({"NCCL_SOCKET_IFNAME": "=eth"}, True, "fail", "NCCL_SOCKET_IFNAME==eth is not there"),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, True, "ok", "lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, True, "ok", "lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "^lo,eth,ib"}, True, "fail", "=^lo,eth,ib is not there"),
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
    assert of_error("rendezvous", OSError("no")).found == "OSError: no"


def test_tables(capsys, monkeypatch):
    findings = [OK, replace(BAD, ranks=(1, 2), found="first\n[second]")]
    doctor.show(findings, as_json=False)
    with_rich = capsys.readouterr().out
    assert "ranks 1-2: first" in with_rich
    assert "[second]" in with_rich  # no markup of rich's
    assert "Do: mend it" in with_rich
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    doctor.show(findings, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "ok    names          node0 resolves",
        "fail  names          ranks 1-2: first",
        "                     [second]",
        "                     Do: mend it",
        "1 check failed, no warnings, 1 ok.",
    ]


CPU = [RankFacts(host="n0"), RankFacts(host="n0")]
GPUS = [RankFacts(gpu=f"H200 GPU-{name}", nccl=True) for name in "ab"]
NO_NCCL = [replace(facts, nccl=False) for facts in GPUS]
ON_ONE = [GPUS[0], GPUS[0]]
MIXED = [GPUS[0], CPU[1]]


@pytest.mark.parametrize(
    ("ranks", "backend", "status", "text", "fast"),
    [
        (CPU, "auto", "ok", "gloo, on the processors", False),
        (CPU, "nccl", "fail", "no GPU for ranks 0-1", False),
        (GPUS, "auto", "ok", "nccl, a GPU of its own for each rank: H200", True),
        (GPUS, "gloo", "ok", "gloo, on the processors", False),
        (NO_NCCL, "auto", "warn", "each rank has a GPU, and torch has no nccl", False),
        (NO_NCCL, "nccl", "fail", "each rank has a GPU, and torch has no nccl", False),
        (ON_ONE, "auto", "fail", "ranks share a GPU\nranks 0-1: H200 GPU-a", False),
        (MIXED, "auto", "fail", "no GPU for rank 1", False),
    ],
)
def test_devices(ranks, backend, status, text, fast):
    finding = doctor_ranks.devices(ranks, backend)
    assert (finding.status, text in finding.found) == (status, True), finding
    assert bool(finding.do) == (status != "ok")
    assert on_gpus(ranks, backend) == fast


def test_versions_of_ranks():
    same = {"torch": "2.6.0", "distmetrics": "0.1.0", "python": "3.11.7"}
    ranks = [RankFacts(versions=same)] * 2 + [RankFacts(versions=same | {"torch": "2.7.0"})]
    finding = doctor_ranks.versions(ranks)
    assert finding.status == "fail"
    assert finding.found.splitlines() == [
        "ranks have different versions of torch",
        "",
        "  ranks 0-1  torch 2.6.0",
        "  rank 2     torch 2.7.0",
    ]
    assert doctor_ranks.versions(ranks[:2]).status == "ok"
    other = [ranks[0], RankFacts(versions=same | {"python": "3.12.1"})]
    assert doctor_ranks.versions(other).status == "warn"


def test_rendezvous():
    ranks = [RankFacts(seconds=3.0), RankFacts(seconds=0.5, host="n1"), RankFacts(seconds=1.0)]
    finding = doctor_ranks.rendezvous(ranks)
    text = "3 ranks on 2 machines connected in 3.0 s; rank 1 came last"
    assert (finding.status, finding.found) == ("ok", text)
    names = [each.name for each in compared(CPU, "auto")]
    assert names == ["rendezvous", "versions", "devices"]


FAST = Speed(0.0001, 0.0002, 1e9)


def test_latency():
    finding = doctor_ranks.latency([FAST, FAST])
    text = "all_reduce of 8 bytes: median 0.10 ms, 99th percentile 0.20 ms"
    assert (finding.status, finding.found) == ("ok", text)
    assert finding.numbers == {"median_s": 0.0001, "p99_s": 0.0002}
    assert doctor_ranks.latency([FAST._replace(median=0.02)]).status == "warn"
    stalls = doctor_ranks.latency([FAST, FAST._replace(late=5.0)])
    assert stalls.status == "warn"
    assert "99th percentile 5000.00 ms: each small collective" in stalls.found


def test_bandwidth():
    finding = doctor_ranks.bandwidth([FAST, FAST])
    text = "all_reduce of 16 MiB: 1.00 GB/s over the bus of each rank"
    assert (finding.status, finding.found) == ("ok", text)
    assert doctor_ranks.bandwidth([FAST._replace(bandwidth=0.0)]).status == "ok"  # one rank
    assert doctor_ranks.bandwidth([FAST._replace(bandwidth=0.05e9)] * 2).status == "warn"
    slow_gpus = [FAST._replace(device="cuda", bandwidth=0.9e9)] * 2
    assert doctor_ranks.bandwidth(slow_gpus).status == "warn"


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_measured_between_processes():
    outcomes = launch(measured, 3, limit=100)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    latency, bandwidth = outcomes[0].value
    assert [outcome.value for outcome in outcomes] == [[latency, bandwidth]] * 3
    assert latency.numbers["p99_s"] >= latency.numbers["median_s"] > 0
    assert bandwidth.numbers["all_reduce_bytes_per_s"] > 0


def test_own_facts():
    facts = doctor_ranks.own_facts(0, 0.0)
    assert facts.host == socket.gethostname()
    assert {"python", "torch", "distmetrics"} == facts.versions.keys()
    assert doctor_checks.lookup("127.0.0.1") == ["127.0.0.1"]
    started = time.monotonic()
    assert doctor_checks.main_address("no.such.host.invalid", several=False).status == "fail"
    assert time.monotonic() - started < 60

"""The checks of ``doctor`` by examples: machines and variables that are as they should be, and that are not."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace

import pytest

from distmetrics.cli import doctor_checks, doctor_environ, doctor_table
from distmetrics.cli.doctor import _gpus
from distmetrics.cli.doctor_environ import launcher, main_address, main_port, settings
from distmetrics.cli.doctor_finding import Finding, failed, merged, of_error
from distmetrics.cli.doctor_machine import Gpu, Lookup, Machine, this_machine
from distmetrics.errors import PeerLostError
from distmetrics.launch.environment import Environment

MACHINE = Machine(
    host="node0",
    cores=8,
    interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": ""},
    versions={"python": "3.11.7", "torch": "2.6.0+cpu", "distmetrics": "0.1.0"},
    shared=(8 << 30, 8 << 30),
    open_files=65536,
    lookup=lambda name: Lookup(("10.0.0.1",), 0.001),
    listen=lambda address, port: "",
)
JOB = Environment(
    launcher="torchrun",
    rank=0,
    world_size=4,
    local_rank=0,
    local_world_size=2,
    main_address="node0",
    main_port=29500,
)
ONE_MACHINE = replace(JOB, local_world_size=4)
NODE0 = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def answers(*addresses, after=0.001, problem=""):
    return replace(MACHINE, lookup=lambda name: Lookup(addresses, after, problem))


def said(finding):
    return finding.status, finding.found


def test_a_machine_that_is_fine():
    found = doctor_checks.machine_checks(MACHINE, {}, several=True)
    assert {finding.name: finding.status for finding in found} == dict.fromkeys(
        ["versions", "names", "interfaces", "shared memory", "open files"], "ok"
    )
    assert not any(finding.do for finding in found)


@pytest.mark.parametrize(
    ("torch", "backends", "status", "text"),
    [
        ("2.13.0+cpu", ("gloo",), "ok", "torch 2.13.0+cpu"),
        ("2.6.0a0+git12", ("gloo", "nccl"), "ok", "backends: gloo, nccl"),
        ("2.5.1", ("gloo",), "fail", "torch is too old"),
        ("2.7.0", (), "fail", "backends: none: gloo is not there"),
    ],
)
def test_versions(torch, backends, status, text):
    found = doctor_checks.versions(replace(MACHINE, versions={"torch": torch}, backends=backends))
    assert found.status == status
    assert text in found.found


@pytest.mark.parametrize(
    ("machine", "several", "environ", "status", "text"),
    [
        (answers("127.0.1.1"), False, {}, "ok", "resolves to 127.0.1.1"),
        (answers("127.0.1.1"), True, {}, "fail", "where other machines can't reach it"),
        (answers("127.0.1.1", "10.0.0.1"), True, {}, "ok", "resolves to"),
        (answers("127.0.1.1"), True, {"GLOO_SOCKET_IFNAME": "eth0"}, "warn", "where other machines can't reach it"),
        (answers("10.0.0.1", after=5.01), False, {}, "warn", "after 5.0 s: each group of gloo waits for that"),
        (
            answers(problem="Name or service not known"),
            False,
            {},
            "warn",
            "does not resolve: Name or service not known",
        ),
        (answers(problem="no answer within 7.5 s"), True, {}, "fail", "does not resolve: no answer within 7.5 s"),
    ],
)
def test_names(machine, several, environ, status, text):
    found = doctor_checks.names(machine, environ, several=several)
    assert found.status == status
    assert text in found.found
    assert bool(found.do) == (status != "ok")


@pytest.mark.parametrize(
    ("environ", "several", "status", "text"),
    [
        ({}, True, "ok", "gloo takes 10.0.0.1 (eth0), to which the host name resolves"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, True, "ok", "gloo takes eth0, as GLOO_SOCKET_IFNAME says"),
        ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, True, "ok", "gloo takes eth0,ib0"),
        (
            {"GLOO_SOCKET_IFNAME": "eth"},
            False,
            "fail",
            "GLOO_SOCKET_IFNAME=eth, but there is no interface eth; there are",
        ),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth7"}, False, "fail", "there is no interface eth7;"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, False, "ok", "gloo takes lo"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, True, "fail", "is not reached from the job's other machines"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, True, "ok", "eth0 10.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, True, "fail", "there is no interface eth;"),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, True, "ok", "ib0 (no IPv4)"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, True, "ok", "eth0 10.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": "^lo,eth,ib"}, True, "fail", "there is no interface but lo, eth, ib;"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, True, "fail", "NCCL_SOCKET_IFNAME=lo is not reached"),
        ({"NCCL_SOCKET_IFNAME": "en"}, True, "fail", "there is no interface en;"),
    ],
)
def test_interfaces(environ, several, status, text):
    found = doctor_checks.interfaces(MACHINE, environ, several=several)
    assert (found.status, text in found.found) == (status, True), found


def test_gloo_takes_the_loopback_where_the_host_name_is_elsewhere():
    elsewhere = replace(answers("10.9.9.9"), listen=lambda address, port: "Cannot assign requested address")
    assert doctor_checks.taken_by_gloo(elsewhere, {}).startswith("the loopback, as the host name is no address")


@pytest.mark.parametrize(
    ("shared", "status", "text"),
    [
        (None, "ok", "no /dev/shm"),
        ((8 << 30, 8 << 30), "ok", "/dev/shm has 8.0 GiB"),
        ((64 << 20, 60 << 20), "warn", "/dev/shm has 64 MiB, 60 MiB free: DataLoader workers"),
        ((8 << 30, 1 << 20), "warn", "8.0 GiB, 1 MiB free"),
    ],
)
def test_shared_memory(shared, status, text):
    found = doctor_checks.shared_memory(replace(MACHINE, shared=shared))
    assert (found.status, text in found.found) == (status, True), found


@pytest.mark.parametrize(("limit", "status"), [(None, "ok"), (4096, "ok"), (4095, "warn"), (256, "warn")])
def test_open_files(limit, status):
    assert doctor_checks.open_files(replace(MACHINE, open_files=limit)).status == status


@pytest.mark.parametrize(
    ("environ", "status", "text"),
    [
        ({}, "ok", "no launcher: this process is on its own"),
        (NODE0, "ok", "torchrun says 4 ranks, 2 on this machine, rank 0 at node0:29500"),
        ({"RANK": "0"}, "fail", "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "fail", "WORLD_SIZE and LOCAL_RANK are set, but RANK is not"),
        ({"LOCAL_RANK": "0"}, "fail", "LOCAL_RANK is set, but RANK and WORLD_SIZE are not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "fail", "MASTER_ADDR is not: ranks cannot find each other"),
        (NODE0 | {"RANK": "4"}, "fail", "torchrun says rank 4 in a world of 4"),
        (NODE0 | {"WORLD_SIZE": "four"}, "fail", "torchrun set WORLD_SIZE='four', which is no number"),
        (NODE0 | {"LOCAL_RANK": "3"}, "fail", "local rank 3 in a world of 2"),
        (NODE0 | {"MASTER_PORT": "http"}, "fail", "MASTER_PORT='http', which is no number"),
        ({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, "ok", "no launcher"),
        (NODE0 | {"DISTMETRICS_STORE": "store"}, "fail", "DISTMETRICS_STORE is set, as for the ranks that distmetrics"),
    ],
)
def test_who_launched_it(environ, status, text):
    environment, found = launcher(environ)
    assert (found.status, text in found.found) == (status, True), found
    assert (environment is not None) == ("torchrun says 4 ranks" in text)


@pytest.mark.parametrize(
    ("machine", "place", "environ", "status", "text"),
    [
        (MACHINE, None, {}, "ok", "not set"),
        (MACHINE, JOB, NODE0, "ok", "MASTER_ADDR=node0 resolves to 10.0.0.1"),
        (MACHINE, replace(JOB, launcher="slurm"), {}, "ok", "rank 0's machine node0 resolves"),
        (
            answers(problem="Name or service not known"),
            JOB,
            NODE0,
            "fail",
            "MASTER_ADDR=node0 does not resolve: Name or",
        ),
        (answers(problem="gone"), None, {"MASTER_ADDR": "node0"}, "fail", "does not resolve: gone"),
        (answers("127.0.0.1"), JOB, NODE0, "fail", "is the loopback address, and the job is on several machines"),
        (answers("127.0.0.1"), ONE_MACHINE, NODE0, "ok", "resolves to 127.0.0.1"),
        (answers("10.0.0.1", after=5.0), JOB, NODE0, "warn", "after 5.0 s: each connection to it waits"),
    ],
)
def test_main_address(machine, place, environ, status, text):
    found = main_address(environ, place, machine)
    assert (found.status, text in found.found) == (status, True), found


def test_rank_0_is_not_on_the_machine_that_the_address_names():
    away = replace(MACHINE, listen=lambda address, port: "Cannot assign requested address")
    text = "MASTER_ADDR=node0 is no address of rank 0's machine node0: Cannot assign requested address"
    assert said(main_address(NODE0, JOB, away)) == ("warn", text)
    assert main_address(NODE0, replace(JOB, rank=1), away).status == "ok"
    assert main_address(NODE0 | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, JOB, away).status == "ok"


TAKEN = replace(MACHINE, listen=lambda address, port: "Address already in use")


@pytest.mark.parametrize(
    ("machine", "place", "environ", "status", "text"),
    [
        (MACHINE, None, {}, "ok", "not set, and not needed"),
        (MACHINE, replace(JOB, launcher="slurm", main_port=15123), {}, "ok", "15123"),
        (MACHINE, JOB, NODE0, "ok", "29500, free on rank 0's machine"),
        (MACHINE, replace(JOB, main_port=0), {}, "fail", "MASTER_PORT is not set"),
        (MACHINE, JOB, NODE0 | {"MASTER_PORT": "0"}, "fail", "MASTER_PORT='0' is no port"),
        (MACHINE, JOB, NODE0 | {"MASTER_PORT": "70000"}, "fail", "MASTER_PORT='70000' is no port"),
        (MACHINE, None, {"MASTER_PORT": "http"}, "fail", "MASTER_PORT='http' is no port"),
        (TAKEN, JOB, NODE0, "fail", "rank 0 can't listen on MASTER_PORT=29500: Address already in use; another job"),
        (TAKEN, replace(JOB, rank=1), NODE0, "ok", "29500"),
        (TAKEN, JOB, NODE0 | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "ok", "29500"),
        (TAKEN, None, {"MASTER_PORT": "29500"}, "ok", "29500"),
    ],
)
def test_main_port(machine, place, environ, status, text):
    found = main_port(environ, place, machine)
    assert (found.status, text in found.found) == (status, True), found
    assert bool(found.do) == (status != "ok")


@pytest.mark.parametrize(
    ("value", "place", "status", "do"),
    [
        (None, None, "ok", ""),
        (None, JOB, "warn", "export OMP_NUM_THREADS=4."),
        ("4", JOB, "ok", ""),
        ("5", JOB, "warn", "export OMP_NUM_THREADS=4."),
        ("4,2", JOB, "ok", ""),
        ("8", None, "ok", ""),
        ("9", None, "warn", "export OMP_NUM_THREADS=8."),
        ("1", replace(JOB, world_size=16, local_world_size=16), "warn", "start fewer processes here."),
        ("0", JOB, "fail", "set it to 4."),
        ("many", JOB, "fail", "set it to 4."),
        ("", JOB, "fail", "set it to 4."),
    ],
)
def test_threads(value, place, status, do):
    found = doctor_environ.threads({} if value is None else {"OMP_NUM_THREADS": value}, place, MACHINE)
    assert (found.status, found.do) == (status, do)


@pytest.mark.parametrize(
    ("environ", "status", "text"),
    [
        ({}, "ok", "no variable"),
        ({"DISTMETRICS_GUARD": "ON", "DISTMETRICS_TIMEOUT": "8.5"}, "ok", "no variable"),
        ({"DISTMETRICS_GUARD": "maybe"}, "fail", "DISTMETRICS_GUARD: no such mode: 'maybe'"),
        ({"DISTMETRICS_TIMEOUT": "30s"}, "fail", "DISTMETRICS_TIMEOUT: not a time in seconds: '30s'"),
        ({"DISTMETRICS_TIMEOUT": "0"}, "fail", "DISTMETRICS_TIMEOUT: not a time in seconds: 0.0"),
        ({"DISTMETRICS_TIMEOUT": "nan"}, "fail", "DISTMETRICS_TIMEOUT: not a time in seconds: nan"),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "0"}, "ok", "no variable"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "warn", "TORCH_DISTRIBUTED_DEBUG=DETAIL checks each collective"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "CUDA_LAUNCH_BLOCKING is set"),
        (
            {"CUDA_LAUNCH_BLOCKING": "1", "DISTMETRICS_TIMEOUT": "-1"},
            "fail",
            "not a time in seconds: -1.0\nCUDA",
        ),
    ],
)
def test_settings(environ, status, text):
    found = settings(environ)
    assert (found.status, text in found.found) == (status, True), found


OK, BAD = Finding("names", "ok", "node0 resolves"), Finding("names", "fail", "no address", "mend it")


def test_what_all_ranks_found_is_one_finding_of_no_rank():
    assert merged([[OK], [OK]]) == [OK]
    assert merged([[BAD, OK], [BAD, OK]]) == [BAD, OK]


def test_what_differs_has_its_ranks_and_the_worst_comes_first():
    slow, other = replace(OK, status="warn", found="after 5 s"), replace(OK, found="node1 resolves")
    found = merged([[OK], [other], [slow], [BAD], [BAD]])
    assert [(each.status, each.ranks) for each in found] == [("fail", (3, 4)), ("warn", (2,)), ("ok", (0, 1))]
    assert found[-1].found == "rank 0: node0 resolves\nrank 1: node1 resolves"
    many = merged([[replace(OK, found=str(rank))] for rank in range(9)])
    assert many[0].found.splitlines()[-2:] == ["rank 3: 3", "and 5 more"]
    assert failed(found)
    assert not failed([OK, slow])


def test_an_error_s_advice_stands_apart():
    error = PeerLostError("rank 1 never came\n\nLikely: a firewall\nDo:     read its log.")
    assert of_error("rendezvous", error) == Finding(
        "rendezvous", "fail", "rank 1 never came\n\nLikely: a firewall", "read its log."
    )
    assert of_error("group", OSError("no")).found == "OSError: no"


A, B = Gpu("GPU-a", "H200"), Gpu("GPU-b", "H200")


@pytest.mark.parametrize(
    ("gpus", "backends", "backend", "status"),
    [
        ((), ("gloo",), "auto", "ok"),
        ((), ("gloo",), "nccl", "fail"),
        ((A,), ("gloo", "nccl"), "auto", "ok"),
        ((A,), ("gloo", "nccl"), "nccl", "fail"),
        ((A, B), ("gloo", "nccl"), "nccl", "ok"),
        ((A, B), ("gloo",), "auto", "warn"),
    ],
)
def test_devices_of_a_machine_alone(gpus, backends, backend, status):
    assert _gpus(replace(MACHINE, gpus=gpus, backends=backends), backend).status == status


def test_this_machine():
    found = this_machine(5.0)
    assert found.host == socket.gethostname()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert "gloo" in found.backends
    assert {"python", "torch", "distmetrics", "torchmetrics"} <= found.versions.keys()
    assert found.lookup("127.0.0.1").addresses == ("127.0.0.1",)
    assert found.lookup("no.such.host.invalid").problem
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        assert found.listen("127.0.0.1", taken.getsockname()[1]) == "Address already in use"
    assert found.listen("127.0.0.1", 0) == ""
    assert found.listen("", 99999)  # no port


def test_a_name_server_that_is_silent_is_given_up_on(monkeypatch):
    asked, answer = [], threading.Event()

    def silent(name, *_, **__):
        asked.append(threading.current_thread())
        answer.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    machine = this_machine(0.1)
    assert machine.lookup("node0") == Lookup((), 0.1, "no answer within 0.1 s")
    assert machine.lookup("node0").problem
    answer.set()
    (thread,) = asked  # once: each name is asked for once
    thread.join()


def test_tables(capsys, monkeypatch):
    findings = [OK, replace(BAD, ranks=(1, 2), found="first\n[second]")]
    doctor_table.show(findings)
    with_rich = capsys.readouterr().out
    assert "ranks 1-2: first" in with_rich
    assert "[second]" in with_rich  # no markup of rich's
    assert "Do: mend it" in with_rich
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    doctor_table.show(findings)
    assert capsys.readouterr().out.splitlines() == [
        "ok    names          node0 resolves",
        "fail  names          ranks 1-2: first",
        "                      [second]",
        "                      Do: mend it",
        "1 check failed, no warnings, 1 ok.",
    ]
    doctor_table.complain(2, findings)
    assert capsys.readouterr().err.startswith("distmetrics doctor, rank 2:\nfail  names ")
    found = json.loads(doctor_table.as_json(findings, launcher="slurm", world_size=3))
    assert (found["ok"], found["launcher"], found["world_size"]) == (False, "slurm", 3)
    assert found["findings"][1]["ranks"] == [1, 2]

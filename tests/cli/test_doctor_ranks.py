"""What ``doctor`` compares and measures between ranks: by examples, and once between processes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from distmetrics.cli import doctor_measure, doctor_ranks
from distmetrics.cli.doctor_machine import Gpu
from distmetrics.cli.doctor_measure import Clock, Speed, ask_clocks, measure
from distmetrics.cli.doctor_ranks import Facts, chosen_backend, compared
from distmetrics.launch.processes import launch


def said(finding):
    return finding.status, finding.found


A, B = Gpu("GPU-a", "H200"), Gpu("GPU-b", "H200")
CPU = [Facts(host="n0", local_rank=rank, local_world_size=2) for rank in range(2)]
GPUS = [replace(fact, gpus=(A, B), backends=("gloo", "nccl")) for fact in CPU]
NO_NCCL = [replace(fact, backends=("gloo",)) for fact in GPUS]
ON_ONE = [replace(fact, gpus=(A,)) for fact in GPUS]
MIXED = [GPUS[0], replace(GPUS[1], gpus=())]
OWN_VIEW = [replace(GPUS[0], gpus=(A,)), replace(GPUS[1], gpus=(B,))]  # CUDA_VISIBLE_DEVICES of each rank
UNLIKE = [replace(GPUS[0], gpus=(A,)), replace(GPUS[1], gpus=(Gpu("GPU-c", "V100"),))]


@pytest.mark.parametrize(
    ("facts", "backend", "status", "text", "chosen"),
    [
        (CPU, "auto", "ok", "no GPU: gloo", "gloo"),
        (CPU, "nccl", "fail", "nccl is asked for, and torch of ranks 0-1 has none", "gloo"),
        ([replace(fact, gpus=()) for fact in GPUS], "nccl", "fail", "no rank sees a GPU", "gloo"),
        (GPUS, "auto", "ok", "nccl, a GPU of its own for each rank: H200", "nccl"),
        (OWN_VIEW, "auto", "ok", "nccl, a GPU of its own for each rank: H200", "nccl"),
        (GPUS, "gloo", "warn", "each rank has a GPU, and gloo is asked for", "gloo"),
        (NO_NCCL, "auto", "warn", "each rank has a GPU, and this torch has no nccl", "gloo"),
        (ON_ONE, "auto", "fail", "ranks 0-1 are all on one GPU, H200 GPU-a of n0", "gloo"),
        (ON_ONE, "gloo", "warn", "ranks 0-1 are all on one GPU", "gloo"),
        (MIXED, "auto", "fail", "rank 1 sees no GPU", "gloo"),
        (UNLIKE, "auto", "warn", "GPUs differ\nrank 0: H200\nrank 1: V100", "nccl"),
    ],
)
def test_devices(facts, backend, status, text, chosen):
    found = doctor_ranks.devices(facts, backend)
    assert (found.status, text in found.found) == (status, True), found
    assert bool(found.do) == (status != "ok")
    assert chosen_backend(facts, backend) == chosen


def test_versions_of_ranks():
    same = {"torch": "2.6.0", "distmetrics": "0.1.0", "python": "3.11.7"}
    facts = [Facts(versions=same), Facts(versions=same), Facts(versions=same | {"torch": "2.7.0"})]
    found = doctor_ranks.same_versions(facts)
    assert found.status == "fail"
    assert found.found.splitlines() == [
        "ranks have different versions of torch",
        "",
        "  ranks 0-1  torch 2.6.0",
        "  rank 2     torch 2.7.0",
    ]
    assert doctor_ranks.same_versions(facts[:2]).status == "ok"
    missing = doctor_ranks.same_versions([Facts(versions=same | {"torchmetrics": "1.9"}), Facts(versions=same)])
    assert missing.status == "warn"
    assert "rank 1  torchmetrics is not there" in missing.found


@pytest.mark.parametrize(
    ("facts", "status", "text"),
    [
        (CPU, "ok", "2 ranks on 1 machine"),
        ([replace(CPU[0], local_world_size=1), Facts(host="n1")], "ok", "2 ranks on 2 machines"),
        ([Facts(boot="a"), Facts(boot="b")], "ok", "2 ranks on 2 machines"),  # both call themselves localhost
        ([CPU[0], replace(CPU[1], local_rank=0)], "warn", "ranks 0-1 are all local rank 0 of n0"),
        ([CPU[0], replace(CPU[1], host="n1")], "warn", "rank 0 is told of 2 on n0, and there are 1"),
    ],
)
def test_machines(facts, status, text):
    found = doctor_ranks.machines(facts)
    assert (found.status, text in found.found) == (status, True), found


def test_rendezvous():
    facts = [Facts(waited=3.0, connected=0.1), Facts(waited=0.0, connected=0.2), Facts(waited=1.0)]
    text = "3 ranks came within 3.0 s, rank 1 last; connected in 0.2 s"
    assert said(doctor_ranks.rendezvous(facts)) == ("ok", text)
    assert doctor_ranks.rendezvous([replace(facts[0], connected=5.1)]).status == "warn"
    assert [finding.name for finding in compared(CPU, "auto")] == [
        "rendezvous",
        "same versions",
        "machines",
        "devices",
    ]


def test_clocks():
    near, ahead, behind = Clock(0.05, 0.01, 0.02), Clock(3.0, 0.01, 0.02), Clock(-0.3, 0.01, 0.02)
    assert doctor_measure.clocks({}).status == "ok"
    assert said(doctor_measure.clocks({1: near})) == (
        "ok",
        "rank 1 is furthest from rank 0, by 50.0 ms ± 10.0 ms",
    )
    found = doctor_measure.clocks({1: near, 2: ahead, 3: behind})
    assert said(found) == (
        "warn",
        "the clock of ranks 2-3 differs from rank 0's: rank 2 is 3.0 s ± 10.0 ms ahead of it",
    )
    assert "rank 3 is 300.0 ms ± 10.0 ms behind it" in doctor_measure.clocks({3: behind}).found
    assert doctor_measure.clocks({1: Clock(5.0, 4.95, 9.9)}).status == "ok"  # that may be the network's


def test_clocks_are_estimated_from_the_fastest_answer():
    pings = [(100.0, 102.5, 0.4), (101.0, 103.01, 0.02), (102.0, 105.0, 1.0)]
    found = doctor_measure._clock(pings)
    assert found.offset == pytest.approx(2.0)
    assert (found.uncertainty, found.trip) == (0.01, 0.4)


FAST = Speed((0.0001,) * 99 + (0.0002,), 1e9, 2e9, 0.001)


def test_latency():
    found = doctor_measure.latency([FAST, FAST])
    assert said(found) == ("ok", "all_reduce of 8 bytes: median 100 µs, 99th percentile 100 µs")
    assert found.numbers == {"median_s": 0.0001, "p99_s": 0.0001, "rounds": 100}
    assert doctor_measure.latency([replace(FAST, latencies=(0.02,) * 20)]).status == "warn"
    stalls = doctor_measure.latency([FAST, replace(FAST, latencies=(0.0001,) * 98 + (5.0,) * 2)])
    assert said(stalls)[0] == "warn"
    assert "99th percentile 5.0 s: each small collective" in stalls.found


def test_bandwidth():
    found = doctor_measure.bandwidth([FAST, FAST])
    assert found.status == "ok"
    assert found.found.endswith("all_reduce 1.00 GB/s, all_gather 2.00 GB/s")
    assert doctor_measure.bandwidth([FAST]).numbers == {}
    assert doctor_measure.bandwidth([replace(FAST, gather=0.05e9)] * 2).status == "warn"
    assert doctor_measure.bandwidth([replace(FAST, device="cuda", reduce=0.9e9)] * 2).status == "warn"


def test_stragglers():
    clocks = {1: Clock(0, 0, 0.0001), 2: Clock(0, 0, 0.0001), 3: Clock(0, 0, 0.0002)}
    assert doctor_measure.stragglers([FAST] * 4, clocks).status == "ok"
    slow = doctor_measure.stragglers([FAST, FAST, replace(FAST, work=0.003), FAST], clocks)
    assert said(slow) == ("warn", "rank 2 takes 3.0 times the median's time for the same work")
    assert slow.do.startswith("look at rank 2:")
    assert doctor_measure.stragglers([FAST, replace(FAST, work=0.0029)], {}).status == "ok"
    far = doctor_measure.stragglers([FAST] * 4, clocks | {3: Clock(0, 0, 0.002)})
    assert said(far) == ("warn", "rank 3 answers rank 0 20.0 times slower than the median")
    near = doctor_measure.stragglers([FAST] * 4, clocks | {3: Clock(0, 0, 0.0009)})
    assert near.status == "ok"  # another machine's ranks answer slower than those of rank 0's own


def out_of_step(comm):
    """Rank 1's clock is wrong, and rank 2 is slow at its own work."""
    ahead = 7.0 if comm.rank == 1 else 0.0
    seen = ask_clocks(comm, lambda: time.time() + ahead)
    steps = []
    found = measure(comm, step=steps.append, alone=0.1 if comm.rank == 2 else 0.01)
    return seen, found, steps


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_measured_between_processes():
    ranks = [outcome.value for outcome in launch(out_of_step, 3, limit=100) if outcome.error is None]
    assert len(ranks) == 3
    seen = ranks[0][0]
    assert abs(seen[1].offset - 7.0) <= seen[1].uncertainty + 0.01
    assert abs(seen[2].offset) <= seen[2].uncertainty + 0.01
    assert all(clock.trip >= 2 * clock.uncertainty > 0 for clock in seen.values())
    assert [each[1] for each in ranks] == [ranks[0][1]] * 3  # the same findings on every rank
    found = {finding.name: finding for finding in ranks[0][1]}
    assert "rank 2 takes 10.0 times the median's time for the same work" in found["stragglers"].found
    assert found["bandwidth"].numbers["all_reduce_bytes_per_s"] > 0
    assert found["latency"].numbers["p99_s"] >= found["latency"].numbers["median_s"] > 0
    assert ranks[1][2] == [
        "the exchange of clocks",
        "the work of each rank",
        "the latency of collectives",
        "the bandwidth of collectives",
    ]

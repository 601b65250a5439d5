"""What the benchmarks of the testing kit say of what they measure."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import kit, kit_zoo
from distmetrics import ThreadWorld, sync_and_compute
from tests.testing.zoo import sample_metrics


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_world_has_the_same_samples(world_size: int) -> None:
    def value(comm: object) -> float:
        return float(sync_and_compute(kit.filled(comm.rank, world_size), comm=comm))  # type: ignore[attr-defined,arg-type]

    single = float(kit.filled(0, 1).compute())
    assert ThreadWorld(world_size).run(value) == [single] * world_size
    assert 0 < single < 1


def test_threads_are_compared_with_each_way() -> None:
    timings = {way: [(2.0, 1.0, 0.5), (4.0, 2.0, 0.5), (1.0, 0.5, 0.5)] for way in kit.RUNS}
    found = kit.summary(timings)
    threads, launch = found["threads"], found["launch"]
    assert threads["runs_a_second"] == kit.RUNS["threads"] / 2
    assert (threads["least"], threads["most"]) == (kit.RUNS["threads"] / 4, kit.RUNS["threads"])
    assert threads["runs_a_cpu_second"] == kit.RUNS["threads"]
    assert launch["threads_are_times_as_fast"] == kit.RUNS["threads"] / kit.RUNS["launch"]
    assert threads["threads_are_times_as_fast_by_cpu"] == 1


def test_the_zoo_page_counts_what_was_right_and_tells_the_rest() -> None:
    found = {
        "tour": [19, Counter({"sample-order": 3, "": 1}), 70],
        "f1": [20, Counter({"": 3, "no-hang": 1}), 80],
    }
    page = kit_zoo.page(sample_metrics, found, examples=4)
    assert "## Mutants: 3 of 4 verdicts right, 1 metrics" in page
    assert "| tour | sample-order | 19 | 70 | 3 of 4 | nothing (1 ×) |" in page
    assert "## Right metrics: 3 of 4 verdicts right, 1 metrics" in page
    assert "| f1 | – | 20 | 80 | 3 of 4 | no-hang (1 ×) |" in page

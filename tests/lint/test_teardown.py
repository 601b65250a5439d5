"""DL106 leaves alone what ends a test or a job, and nothing else."""

from __future__ import annotations

import textwrap

import pytest

from tests.lint.helpers import check

FINALLY = "finally:\n        dist.barrier()"
EXCEPT = "except RuntimeError:\n        dist.barrier()\n        raise"
LEAVES = "except RuntimeError:\n        dist.barrier()\n        dist.destroy_process_group()\n        raise"


def lines(arm: str, *, name: str = "run", after: str = "", start: str = "") -> list[int]:
    source = f"""\
import torch.distributed as dist
import torch.multiprocessing as mp

def {name}(model, batch):
    try:
        loss = model(batch)
        dist.all_reduce(loss)
    {arm}
    {after}

{start}
"""
    return [found.line for found in check(source, "DL106")]


@pytest.mark.parametrize("arm", [FINALLY, EXCEPT])
def test_the_end_of_what_runs_as_a_whole(arm: str) -> None:
    assert lines(arm) == [9]
    assert lines(arm, name="test_run") == []
    assert lines(arm, start="if __name__ == '__main__':\n    run(build(), load())") == []
    assert lines(arm, start="def main():\n    mp.spawn(run, nprocs=2)") == []
    assert lines(arm, start="def main():\n    run(build(), load())") == [9]


def test_what_leaves_the_group() -> None:
    assert lines(LEAVES) == []
    assert lines(FINALLY, after="dist.destroy_process_group()") == []


def test_what_goes_on() -> None:
    assert lines(FINALLY, name="test_run", after="dist.all_reduce(batch)") == [9]
    source = """\
    import torch.distributed as dist

    def test_run(model, batches):
        for batch in batches:
            try:
                dist.all_reduce(model(batch))
            finally:
                dist.barrier()
    """
    assert [found.line for found in check(textwrap.dedent(source), "DL106")] == [8]

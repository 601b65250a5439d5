"""How many processes there are, and which data each of them has seen, as public repositories say it, in small."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

GROUP = """\
import os
import torch
import torch.distributed as dist
{imports}

def setup(args, rank, size, several):
    {setup}

def train(model, loader, rank):
    model = torch.nn.parallel.DistributedDataParallel(model)
    for batch in loader:
        loss = model(batch)
        if not torch.isfinite(loss):
            return None
        loss.backward()
    if rank == 0:
        dist.barrier()
"""
ONE = "dist.init_process_group('nccl', world_size=1, rank=0)"


@pytest.mark.parametrize(
    "setup",
    [
        ONE,
        "dist.init_process_group('nccl', 'tcp://127.0.0.1:9999', None, 1, 0)",
        f"if torch.cuda.device_count() > 1 and dist.is_available(): {ONE}",
        f"os.environ['WORLD_SIZE'] = '1'; {ONE}",
        f"if several: {ONE}\n    else: {ONE}",
    ],
)
def test_a_group_of_one_process(setup: str) -> None:
    assert lines(GROUP.format(setup=setup, imports=""), "DL101", "DL103") == []


@pytest.mark.parametrize(
    "setup",
    [
        "pass",
        "dist.init_process_group('nccl')",
        "dist.init_process_group('nccl', world_size=2, rank=rank)",
        "dist.init_process_group('nccl', world_size=size, rank=rank)",
        "dist.init_process_group('nccl', world_size=1, **args)",
        f"if several: dist.init_process_group('nccl')\n    else: {ONE}",
        f"if not dist.is_initialized(): {ONE}",
        f"if 'RANK' not in os.environ: {ONE}",
        f"if args.local_rank == -1: {ONE}",
        f"if size > 1 and args.world_size > 1:\n        return several()\n    {ONE}",
    ],
)
def test_groups_that_may_be_of_more(setup: str) -> None:
    source = GROUP.format(setup=setup, imports="")
    assert len(lines(source, "DL101")) == 1
    assert len(lines(source, "DL103")) == 1


def test_a_group_beside_a_library_that_starts_processes() -> None:
    source = GROUP.format(setup=ONE, imports="from accelerate import Accelerator")
    assert len(lines(source, "DL101")) == 1
    assert len(lines(source, "DL103")) == 1

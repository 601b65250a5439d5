"""Ranks that part in public repositories, in small: what is right beside the nearest thing that is not."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

FOLLOWERS = """\
import torch.distributed as dist

def serve(rank, signal, work):
    if rank == 0:
        work()
        dist.broadcast(signal, src=0)
    else:
        while {test}:
            {call}
            if signal.item() == 0:
                break
"""
CLOSURE = """\
import torch.distributed as dist

def step(rank, signal, optimizer, model):
    def closure():
        if rank == 0:
            dist.broadcast(signal, src=0)
        return model()

    if rank == 0:
        optimizer.step(closure)
        dist.broadcast(signal, src=0)
    else:
        while True:
            {call}
            if signal.item() == 0:
                break
            closure()
"""


@pytest.mark.parametrize(
    ("test", "call", "expected"),
    [
        ("True", "dist.broadcast(signal, src=0)", []),
        ("1", "dist.broadcast(signal, src=0)", []),
        ("True", "dist.barrier(); dist.broadcast(signal, src=0)", []),
        ("True", "pass", [6]),
        ("work.more", "dist.broadcast(signal, src=0)", []),
    ],
)
def test_followers_wait_in_an_endless_loop(test: str, call: str, expected: list[int]) -> None:
    assert lines(FOLLOWERS.format(test=test, call=call), "DL101") == expected


def test_followers_of_a_closure() -> None:
    assert lines(CLOSURE.format(call="dist.broadcast(signal, src=0)"), "DL101") == []
    assert lines(CLOSURE.format(call="dist.barrier()"), "DL101") == [6, 11]


def test_a_loop_of_every_rank_follows_nobody() -> None:
    source = """\
import torch.distributed as dist

def serve(rank, signal):
    if rank == 0:
        dist.broadcast(signal, src=0)
    while True:
        dist.broadcast(signal, src=0)
"""
    assert lines(source, "DL101") == [5]


LEAVES = """\
import os
import torch.distributed as dist

def main(args, found):
    latest = args.resume == "latest"
    {before}
    if dist.get_rank() == 0:
        if {leave}:
            return -1
    {between}
    if {test}:
        dist.broadcast_object_list([found], 0)
"""


@pytest.mark.parametrize(
    ("leave", "test", "expected"),
    [
        ("os.path.exists(args.log) and not latest", "latest", []),
        ("not latest and os.path.exists(args.log)", "latest", []),
        ("os.path.exists(args.log) and args.strict and not latest", "latest", []),
        ("os.path.exists(args.log) and latest", "not latest", []),
        ("os.path.exists(args.log) and not latest", "latest and found", []),
        ("os.path.exists(args.log) and latest", "latest", [12]),
        ("os.path.exists(args.log) or not latest", "latest", [12]),
        ("os.path.exists(args.log) and not latest", "args.distributed", [12]),
        ("os.path.exists(args.log)", "latest", [12]),
    ],
)
def test_tests_that_contradict_each_other(leave: str, test: str, expected: list[int]) -> None:
    assert lines(LEAVES.format(leave=leave, test=test, before="pass", between="pass"), "DL101") == expected


def test_a_variable_that_changes_does_not_contradict_itself() -> None:
    leave = "os.path.exists(args.log) and not latest"
    assert lines(LEAVES.format(leave=leave, test="latest", before="pass", between="latest = True"), "DL101") == [12]


def test_no_group_says_nothing_of_the_data() -> None:
    source = """\
import torch.distributed as dist

def train(model, train_loader, group):
    for batch in train_loader:
        if group is None and model(batch) > 3:
            dist.barrier()
"""
    assert lines(source, "DL103") == [6]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            "accelerator.save_state('x')",
            "only rank 0 reaches this save_state: it waits for ever, if the model is sharded (FSDP, DeepSpeed)",
        ),
        ("accelerator.save_state()", "only rank 0 reaches this save_state: it waits for ever"),
        (
            "save(accelerator)",
            "only rank 0 reaches this save_model (inside save): it waits for ever, if the model is sharded",
        ),
        ("accelerator.wait_for_everyone()", "only rank 0 reaches this wait_for_everyone: it waits for ever"),
        ("trainer.save_model()", "only rank 0 reaches this save_model: it waits for ever"),
    ],
)
def test_what_only_sharded_models_wait_for(call: str, expected: str) -> None:
    source = f"""\
from transformers import Trainer

trainer = Trainer()

def save(accelerator):
    accelerator.save_model("x")

def train(accelerator):
    if accelerator.is_main_process:
        {call}
"""
    assert [found.message[: len(expected)] for found in check(source, "DL101")] == [expected]

"""What only some ranks reach: tests of the rank, and what is around a call."""

from __future__ import annotations

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.guards import Arms, guards, rank_test
from tests.lint.helpers import RELAXED, parsed

NONE = Arms()
ZERO = Arms(True, True, True)  # both arms are of some ranks only, the first one is rank 0's
OTHERS = Arms(True, True, False)
THEN = Arms(True, False, True)
PREAMBLE = """\
import os
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
is_main = dist.get_rank() == 0
me = dist.get_rank()
"""
TESTS = {
    "rank == 0": ZERO,
    "0 == rank": ZERO,
    "rank != 0": OTHERS,
    "rank > 0": OTHERS,
    "rank < 1": ZERO,
    "rank in (0, 1)": ZERO,
    "rank not in [0]": OTHERS,
    "not rank": ZERO,
    "args.local_rank == 0": ZERO,
    "self.global_rank == 1": OTHERS,
    "dist.get_rank() == 0": ZERO,
    "int(os.environ['RANK']) == 0": ZERO,
    "os.environ.get('LOCAL_RANK', '0') == '0'": ZERO,
    "int(os.environ.get('LOCAL_RANK', 0)) == 0": ZERO,
    "self.trainer.is_global_zero": ZERO,
    "accelerator.is_main_process": ZERO,
    "is_main_process()": ZERO,
    "bool(is_main_process())": ZERO,
    "is_main": ZERO,
    "me == 0": ZERO,
    "not is_main": OTHERS,
    "not not is_main": ZERO,
    "rank == 0 and x": THEN,
    "x and rank == 0": THEN,
    "rank != 0 or x": Arms(False, True, False),
    "not (rank == 0 and x)": THEN.turned,
    "rank == 0 or x": Arms(False, True, True),
    "x": NONE,
    "x and y": NONE,
    "rank == -1": NONE,
    "rank >= 0": NONE,
    "rank > -1": NONE,
    "rank is None": NONE,
    "rank == other": NONE,
    "world_size > 1": NONE,
    "dist.is_initialized()": NONE,
    "len(x) == 0": NONE,
    "epoch == 0": NONE,
}


def arms(test):
    source = parsed(f"{PREAMBLE}if {test}: pass\n")
    return rank_test(source, source.nodes(cst.If)[0].test)


@pytest.mark.parametrize("test", TESTS)
def test_which_arms_only_some_ranks_reach(test):
    wanted = TESTS[test]
    asked = 3 if wanted.then or wanted.orelse else 2  # without arms, none is rank 0's
    assert arms(test)[:asked] == wanted[:asked]


KNOWN = st.sampled_from(sorted(TESTS.keys() - {"rank == -1"}))  # which one process alone passes


@RELAXED
@given(KNOWN, KNOWN)
def test_not_and_and_or_go_together(one, other):
    left, right = arms(f"({one})"), arms(f"({other})")
    assert arms(f"not ({one})") == left.turned
    both, either = arms(f"({one}) and ({other})"), arms(f"({one}) or ({other})")
    assert both.then == (left.then or right.then)
    assert both.orelse == (left.orelse and right.orelse)
    assert either.orelse == (left.orelse or right.orelse)
    assert arms(f"not (({one}) and ({other}))") == both.turned


@pytest.mark.parametrize(
    ("body", "firsts"),
    [
        ("probe()", []),
        ("if rank == 0: probe()", [True]),
        ("if rank == 0: pass\nelse: probe()", [False]),
        ("if rank == 0: pass\nelif x: probe()", [False]),
        ("if x: pass\nelif rank == 0: probe()", [True]),
        ("if rank == 0:\n    if rank > 0: probe()", [False, True]),
        ("if probe() and rank == 0: pass", []),
        ("if rank == 0 and probe(): pass", [True]),
        ("rank == 0 or probe()", [False]),
        ("y = probe() if rank == 0 else 1", [True]),
        ("y = 1 if rank == 0 else probe()", [False]),
        ("if rank != 0: return\nprobe()", [True]),
        ("if rank == 0: return\nprobe()", [False]),
        ("if rank != 0:\n    x()\n    return\nprobe()", [True]),
        ("for y in x:\n    if rank != 0: continue\n    probe()", [True]),
        ("for y in x:\n    if rank != 0: continue\nprobe()", []),
        ("if rank != 0: raise ValueError\nprobe()", []),
        ("if rank != 0: return\nelse: x()\nprobe()", [True]),
        ("probe()\nif rank != 0: return", []),
        ("for rank in range(4):\n    if rank == 0: probe()", []),
        ("with open(x):\n    if rank == 0:\n        while y: probe()", [True]),
        ("if rank == 0:\n    def inner(): probe()", []),
        ("if rank == 0: f(lambda: probe())", []),
    ],
)
def test_guards_around_a_call(body, firsts):
    indented = body.replace("\n", "\n    ")
    source = parsed(f"{PREAMBLE}def f(x, rank):\n    {indented}\n")
    (call,) = (each for each in source.nodes(cst.Call) if source.code(each) == "probe()")
    found = list(guards(source, call))
    assert [guard.first for guard in found] == firsts
    leaves = "return\n" in body or "continue\n" in body
    assert all(guard.leaves == leaves for guard in found)


@pytest.mark.parametrize(
    ("decorator", "number"),
    [("@rank_zero_only", 1), ("@utils.master_only", 1), ("@x.on_main_process()", 1), ("@x", 0)],
)
def test_decorators(decorator, number):
    source = parsed(f"{PREAMBLE}{decorator}\ndef f():\n    probe()\n")
    assert len(list(guards(source, source.nodes(cst.Call)[-1]))) == number

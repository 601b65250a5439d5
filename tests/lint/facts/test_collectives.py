"""What is reported, and what is not, when ranks take different ways: one small function a case."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

HEAD = """\
import os
import sys
import deepspeed
import distmetrics as dm
import horovod.torch as hvd
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_xla.core.xla_model as xm
from accelerate import Accelerator, PartialState
from distmetrics import sync_and_compute
from lightning.fabric import Fabric
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torchmetrics import MeanMetric

rank = dist.get_rank()
accelerator = Accelerator()
fabric = Fabric()
"""
START = HEAD.count("\n")


def marked(body: str) -> list[int]:
    """Lines of ``body`` that are reported."""
    return [line - START for line in lines(HEAD + body, "DL101")]


GUARDS = [
    "rank == 0",
    "0 == rank",
    "not rank",
    "rank < 1",
    "rank <= 0",
    "rank in (0, -1)",
    "dist.get_rank() == 0",
    "torch.distributed.get_rank() == 0",
    "dist.is_initialized() and dist.get_rank() == 0",
    "not dist.is_initialized() or dist.get_rank() == 0",
    "dist.get_world_size() > 1 and rank == 0",
    "rank == 0 and epoch % 5 == 0",
    'int(os.environ["RANK"]) == 0',
    'os.environ["RANK"] == "0"',
    'os.environ.get("LOCAL_RANK", "0") == "0"',
    "args.local_rank in [-1, 0]",
    "self.trainer.is_global_zero",
    "self.trainer.local_rank == 0",
    "accelerator.is_main_process",
    "accelerator.is_local_main_process",
    "accelerator.process_index == 0",
    "PartialState().is_main_process",
    "fabric.global_rank == 0",
    "hvd.rank() == 0",
    "xm.is_master_ordinal()",
    "xm.get_ordinal() == 0",
    "is_main_process()",
    "rank == src",
    "rank < 4",
]


@pytest.mark.parametrize("guard", GUARDS)
def test_guard(guard: str) -> None:
    assert marked(f"if {guard}:\n    dist.barrier()\n") == [2]
    assert marked(f"if not ({guard}):\n    dist.barrier()\n") == [2]
    assert marked(f"if {guard}:\n    print(1)\nelse:\n    dist.barrier()\n") == [4]
    assert marked(f"if {guard}:\n    dist.barrier()\nelse:\n    dist.barrier()\n") == []
    assert marked(f"if {guard}:\n    print(1)\ndist.barrier()\n") == []


SAME_EVERYWHERE = [
    "dist.is_initialized()",
    "dist.get_world_size() > 1",
    "args.distributed",
    "self.trainer.world_size > 1",
    "rank >= 0",
    "rank != -1",
    "rank is not None",
    "epoch % 5 == 0",
    "self.sharded or rank == 0",
    "not (not self.sharded and rank != 0)",
    "tensor_rank == 0",
    "self.debug",
    "not self.trainer.sanity_checking",
]


@pytest.mark.parametrize("test", SAME_EVERYWHERE)
def test_no_guard(test: str) -> None:
    assert marked(f"if {test}:\n    dist.barrier()\n") == []


COLLECTIVES = [
    "dist.all_reduce(x)",
    "torch.distributed.all_gather_object(out, x)",
    "dist.all_reduce(x, group=None)",
    "dist.all_reduce(x, group=dist.group.WORLD)",
    "dist.new_group([0, 1])",
    "accelerator.gather(x)",
    "accelerator.save_state('out')",
    "self.accelerator.get_state_dict(model)",
    "preparer.gather_for_metrics(x)",
    "fabric.all_gather(x)",
    "fabric.save('out', state)",
    "trainer.save_checkpoint('out')",
    "self.trainer.save_checkpoint('out')",
    "self.trainer.strategy.barrier()",
    "pl_module.all_gather(x)",
    "dm.mean(x, weight=1)",
    "dm.all_gather_cat(x)",
    "sync_and_compute(metric)",
    "dcp.save(state, checkpoint_id='out')",
    "FSDP.optim_state_dict(model, optimizer)",
    "weight.full_tensor()",
    "hvd.allreduce(x)",
    "xm.rendezvous('save')",
    "model_engine.save_checkpoint('out')",
    "mean.compute()",
    "engine.save_checkpoint('out')",
]
OBJECTS = "mean = MeanMetric()\nengine, _, _, _ = deepspeed.initialize(model=model)\n"


@pytest.mark.parametrize("call", COLLECTIVES)
def test_collective(call: str) -> None:
    assert marked(f"{OBJECTS}if rank == 0:\n    y = {call}\n") == [4]
    assert marked(f"{OBJECTS}y = {call}\nif rank == 0:\n    print(y)\n") == []


NAMESAKES = [
    "np.zeros(3).all_gather(x)",
    "self.comm.all_gather(x)",
    "checkpoint_io.save_checkpoint('out')",
    "save_checkpoint('out')",
    "logger.log(x)",
    "report.compute()",
    "accelerator.save(x, 'out')",
    "accelerator.print(x)",
    "torch.save(x, 'out')",
    "dist.send(x, 1)",
    "dist.all_reduce(x, group=node)",
    "dist.all_reduce(x, dist.ReduceOp.SUM, node)",
    "functools.reduce(f, x)",
    "model.state_dict()",
]


@pytest.mark.parametrize("call", NAMESAKES)
def test_namesake(call: str) -> None:
    assert marked(f"if rank == 0:\n    y = {call}\n") == []


WAYS_OUT = ["return", "sys.exit()"]


@pytest.mark.parametrize("way", WAYS_OUT)
def test_early_exit(way: str) -> None:
    assert marked(
        f"def f(x):\n    if rank != 0:\n        {way}\n    x = g(x)\n    dist.barrier()\n    dist.barrier()\n"
    ) == [5]
    assert marked(f"def f(x):\n    if x.done:\n        {way}\n    dist.barrier()\n") == []
    assert marked(f"def f(x):\n    dist.barrier()\n    if rank != 0:\n        {way}\n    print(x)\n") == []


@pytest.mark.parametrize("way", ["continue", "break", "return"])
def test_leaving_a_loop(way: str) -> None:
    loop = f"def f(xs):\n    for x in xs:\n        if rank != 0:\n            {way}\n        "
    assert marked(loop + "dist.all_reduce(x)\n") == [5]
    assert marked(loop + "print(x)\n    print(xs)\n") == []


def test_an_error_on_one_rank_is_no_hang() -> None:
    assert marked("if rank == 0:\n    if missing:\n        raise OSError\ndist.barrier()\n") == []
    assert marked("if rank == 0:\n    try:\n        make()\n    except OSError:\n        raise\ndist.barrier()\n") == []


def test_return_from_a_loop_before_a_collective() -> None:
    loop = "    for x in xs:\n        if rank != 0:\n            return\n        print(x)\n"
    assert marked("def f(xs):\n" + loop + "    dist.barrier()\n") == [6]


METHOD = "    def f(self):\n        if self.first:\n            dist.barrier()\n"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("rank == 0 and dist.barrier()\n", 1),
        ("rank == 0 or dist.barrier()\n", 1),
        ("x = dist.all_reduce(x) if rank == 0 else None\n", 1),
        ("xs = [dist.all_reduce(x) for x in xs] if rank == 0 else []\n", 1),
        ("with torch.no_grad():\n    if rank == 0:\n        dist.barrier()\n", 3),
        ("try:\n    pass\nfinally:\n    if rank == 0:\n        dist.barrier()\n", 5),
        ("while True:\n    if rank == 0:\n        dist.barrier()\n", 3),
        ("if rank == 0:\n    with dm.synced(metric):\n        print(metric)\n", 2),
        ("if rank == 0:\n    for x in fabric.all_gather(xs):\n        print(x)\n", 2),
        ("if rank == 0:\n    if dist.all_reduce(x):\n        print(x)\n", 2),
        ("main = rank == 0\nif main:\n    dist.barrier()\n", 3),
        ("main = rank == 0 if dist.is_initialized() else True\nif not main:\n    dist.barrier()\n", 3),
        (
            "class A:\n    def __init__(self):\n        self.first = rank == 0\n" + METHOD,
            6,
        ),
        (
            "class A:\n    @property\n    def first(self):\n        return rank == 0\n" + METHOD,
            7,
        ),
        ("def first():\n    return dist.get_rank() == 0\nif first():\n    dist.barrier()\n", 4),
        ("with FSDP.state_dict_type(model, kind):\n    if rank == 0:\n        s = model.state_dict()\n", 3),
    ],
)
def test_where_guards_and_calls_hide(body: str, line: int) -> None:
    assert marked(body) == [line]


@pytest.mark.parametrize(
    "body",
    [
        "if rank != 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n",
        "for r in range(8):\n    if r == rank:\n        load()\n    dist.barrier()\n",
        "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)\ndist.barrier()\n",
        "if rank == 0:\n    for p in ps:\n        dist.barrier()\nelse:\n    for q in qs:\n        dist.barrier()\n",
        "if rank == 0:\n    if wanted:\n        dist.barrier()\nelif wanted:\n    dist.barrier()\n",
        "if rank == 0:\n    x = dist.all_reduce(x) if flag else 0\nelse:\n    if flag:\n        dist.all_reduce(y)\n",
        "def f(x):\n    rank = len(x.shape)\n    if rank == 0:\n        dist.barrier()\n",
        "is_main = __name__ == '__main__'\nif is_main:\n    dist.barrier()\n",
        "def f(every):\n    if not every and rank != 0:\n        return\n    if every:\n        dist.barrier()\n",
    ],
)
def test_paired_on_every_rank(body: str) -> None:
    assert marked(body) == []


def test_helpers_at_any_depth_are_named() -> None:
    source = HEAD + (
        "def inner(x):\n    return dist.all_reduce(x)\n"
        "class A:\n    def outer(self, x):\n        return inner(x)\n"
        "    def f(self, x):\n        if rank == 0:\n            self.outer(x)\n"
    )
    (found,) = check(source, "DL101")
    assert found.line - START == 8
    assert "this all_reduce (inside outer)" in found.message
    assert [(step.label, step.line - START) for step in found.trace] == [("guard", 7), ("call", 5), ("collective", 2)]


def test_recursive_helpers_end() -> None:
    body = "def f(n):\n    if n:\n        f(n - 1)\n    dist.barrier()\nif rank == 0:\n    f(3)\n"
    assert marked(body) == [6]


def test_own_method_is_judged_by_its_body() -> None:
    body = (
        "from lightning import LightningModule\n"
        "class A(LightningModule):\n    def all_gather(self, x):\n        return x\n"
        "    def f(self, x):\n        if rank == 0:\n            self.all_gather(x)\n"
    )
    assert marked(body) == []
    assert marked(body.replace("def all_gather(self, x)", "def other(self, x)")) == [7]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("def f(self):\n", True),
        ("class A(Theirs):\n  def f(self):\n", True),
        ("from torch import nn\nclass A(nn.Module):\n  def f(self):\n", False),
        ("class A:\n  def f(self):\n", False),
        ("import lightning\nclass A(lightning.LightningModule):\n  def f(me):\n    self = me\n", True),
    ],
)
def test_whose_all_gather_it_is(head: str, expected: bool) -> None:
    receiver = "me" if "me)" in head else "self"
    body = f"    if rank == 0:\n      {receiver}.all_gather(x)\n"
    assert bool(marked(head + body)) is expected


def test_guarding_decorators() -> None:
    body = "from lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\ndef f(x):\n    dist.barrier()\n"
    assert marked(body) == [4]
    assert marked(body.replace("@rank_zero_only", "@torch.no_grad()")) == []
    assert marked(body.replace("@rank_zero_only", "@accelerator.on_main_process")) == [4]


def test_who_is_named() -> None:
    def message(guard: str) -> str:
        (found,) = check(HEAD + f"if {guard}:\n    dist.barrier()\n", "DL101")
        return found.message

    assert message("rank == 0").startswith("only rank 0 reaches")
    assert message("rank == 3").startswith("only rank 3 reaches")
    assert message("rank != 0").startswith("rank 0 never reaches")
    assert message("args.local_rank == 0").startswith("only local rank 0 reaches")
    assert message("rank == src").startswith("only a rank with rank == src reaches")


def test_what_the_others_do_instead() -> None:
    (found,) = check(HEAD + "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.barrier()\n", "DL101")
    assert "the others make barrier instead" in found.message
    assert [(step.label, step.line - START) for step in found.trace] == [("guard", 1), ("others", 4)]

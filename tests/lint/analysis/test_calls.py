"""Calls: of the tables' APIs, of the file's own functions and classes, of helpers, and of what cannot be seen."""

from __future__ import annotations

import pytest

from distlint.analysis.formula import DATA, RANK, ZERO, negate
from tests.lint.analysis.reading import analyse, guards, one_sided, only, parted, value, value_of


@pytest.mark.parametrize(
    ("call", "label"),
    [
        ("dist.barrier()", "barrier"),
        ("torch.distributed.all_reduce(x)", "all_reduce"),
        ("accelerator.wait_for_everyone()", "wait_for_everyone"),
        ("accelerator.gather_for_metrics((x, y))", "gather_for_metrics"),
        ("self.accelerator.gather(x)", "gather"),
        ("fabric.barrier()", "barrier"),
        ("self.fabric.all_gather(x)", "all_gather"),
        ("trainer.save_checkpoint(x)", "save_checkpoint"),
        ("trainer.strategy.barrier()", "barrier"),
        ("trainer.strategy.reduce_boolean_decision(x)", "reduce_boolean_decision"),
        ("pl_module.all_gather(x)", "all_gather"),
        ("model_engine.save_checkpoint(x)", "save_checkpoint"),
        ("whatever.gather_for_metrics(x)", "gather_for_metrics"),
        ("tensor.full_tensor()", "full_tensor"),
        ("torch.distributed.checkpoint.save(x)", "save"),
        ("torch.distributed.fsdp.FullyShardedDataParallel.full_optim_state_dict(x)", "full_optim_state_dict"),
    ],
)
def test_collectives_are_known(call: str, label: str) -> None:
    assert only(f"def f(x, self):\n    {call}\n").label == label


@pytest.mark.parametrize(
    "call", ["x.gather(1, index)", "x.all_reduce()", "reduce(f, x)", "self.barrier()", "x.save(y)"]
)
def test_other_things_of_these_names_are_no_collectives(call: str) -> None:
    assert list(analyse(f"from functools import reduce\ndef f(x, self):\n    {call}\n").events("collective")) == []


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed import barrier as meet",
        "from torch import distributed as d\nmeet = d.barrier",
        "import torch.distributed\nmeet = torch.distributed.barrier",
        "from deepspeed.comm import barrier as meet",
        "from accelerate.utils import wait_for_everyone as meet",
    ],
)
def test_names_are_followed_to_where_they_come_from(imported: str) -> None:
    assert one_sided(f"{imported}\ndef f(rank):\n    if rank == 0:\n        meet()\n")


def test_imports_inside_functions_are_followed() -> None:
    assert guards("def f(rank):\n    from torch.distributed import barrier\n    if not rank:\n        barrier()\n") == [
        "branch"
    ]


HELPERS = {
    "function": "def meet():\n    dist.barrier()\ndef f(rank):\n    if rank == 0:\n        meet()\n",
    "two deep": "def meet():\n    dist.barrier()\ndef g():\n    meet()\ndef f(rank):\n    if rank == 0:\n        g()\n",
    "defined later": "def f(rank):\n    if rank == 0:\n        meet()\ndef meet():\n    dist.barrier()\n",
    "method": "class A:\n    def meet(self):\n        dist.barrier()\n"
    "    def f(self, rank):\n        if rank == 0:\n            self.meet()\n",
    "inherited": "class B:\n    def meet(self):\n        dist.barrier()\nclass A(B):\n"
    "    def f(self, rank):\n        if rank == 0:\n            self.meet()\n",
    "super": "class B:\n    def f(self):\n        dist.barrier()\nclass A(B):\n"
    "    def f(self, rank):\n        if rank == 0:\n            super().f()\n",
    "static": "class A:\n    @staticmethod\n    def meet():\n        dist.barrier()\n"
    "    def f(self, rank):\n        if rank == 0:\n            self.meet()\n",
    "class": "class A:\n    def meet(self):\n        dist.barrier()\n"
    "def f(rank):\n    a = A()\n    if rank == 0:\n        a.meet()\n",
    "constructor": "class A:\n    def __init__(self):\n        dist.barrier()\n"
    "def f(rank):\n    if rank == 0:\n        A()\n",
    "attribute": "class A:\n    def meet(self):\n        dist.barrier()\nclass B:\n    def __init__(self):\n"
    "        self.a = A()\n    def f(self, rank):\n        if rank == 0:\n            self.a.meet()\n",
    "nested": "def f(rank):\n    def meet():\n        dist.barrier()\n    if rank == 0:\n        meet()\n",
    "given": "def f(is_first):\n    if is_first:\n        dist.barrier()\ndef g(rank):\n    f(rank == 0)\n",
    "given by name": "def f(a, is_first=False):\n    if is_first:\n        dist.barrier()\n"
    "def g(rank):\n    f(1, is_first=not rank)\n",
    "returned early": "def f(a):\n    if a:\n        return\n    dist.barrier()\ndef g(rank):\n    f(rank != 0)\n",
    "decorator": "from lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\n"
    "def f():\n    dist.barrier()\n",
    "decorator and helper": "@rank_zero_only\ndef meet():\n    dist.barrier()\ndef f():\n    meet()\n",
    "decorator of an accelerator": "@accelerator.on_main_process\ndef f():\n    dist.barrier()\n",
    "conditional argument": "def f(rank):\n    print(dist.barrier() if rank == 0 else 0)\n",
    "recursion": "def f(rank, n):\n    if rank == 0:\n        dist.barrier()\n    f(rank, n - 1)\n",
    "mutual recursion": "def f(rank):\n    g(rank)\n"
    "def g(rank):\n    if rank == 0:\n        dist.barrier()\n    f(rank)\n",
    "async": "async def meet():\n    dist.barrier()\nasync def f(rank):\n    if rank == 0:\n        await meet()\n",
    "property": "class A:\n    @property\n    def first(self):\n        return dist.get_rank() == 0\n"
    "    def f(self):\n        if self.first:\n            dist.barrier()\n",
}


@pytest.mark.parametrize("source", HELPERS.values(), ids=HELPERS)
def test_collectives_in_helpers_are_found_under_the_callers_guard(source: str) -> None:
    assert one_sided(source) == ["barrier"]


def test_the_way_to_a_helpers_collective_is_told() -> None:
    (found, *rest) = parted(HELPERS["two deep"])
    assert not rest
    assert [call.place.text for call in found.visit.calls] == ["g()", "meet()"]
    assert found.visit.step.place.text == "dist.barrier()"
    assert found.visit.guard is not None
    assert found.visit.guard.place.text == "rank == 0"
    assert found.reached


@pytest.mark.parametrize(
    "body",
    [
        "return dist.get_rank() == 0",
        "return not dist.get_rank()",
        "if dist.is_initialized():\n        return dist.get_rank() == 0\n    return True",
        "if not dist.is_available():\n        return True\n    return dist.get_rank() == 0",
        "return not dist.is_initialized() or dist.get_rank() == 0",
        "return int(os.environ.get('RANK', 0)) == 0",
        "return rank_of() == 0",
        "first = rank_of() == 0\n    return first",
        "return True if rank_of() == 0 else False",
    ],
)
def test_helpers_that_tell_the_rank(body: str) -> None:
    helper = """
def rank_of():
    if not dist.is_initialized():
        return 0
    return dist.get_rank()
"""
    source = f"{helper}def first():\n    {body}\ndef f():\n    x = first()\n    y = not first()\n"
    assert value_of(source).varies == RANK
    assert one_sided(f"{source}    if first():\n        dist.barrier()\n") == ["barrier"]


@pytest.mark.parametrize("name", ["get_rank", "utils.get_rank", "comm.get_rank", "self.get_rank"])
def test_functions_that_cannot_be_seen_are_believed_by_name(name: str) -> None:
    assert value(f"{name}() == 0").formula == ZERO
    assert value(f"{name}() != 0").formula == negate(ZERO)


def test_an_own_function_is_believed_before_its_name() -> None:
    source = "def get_rank():\n    return 3\ndef f():\n    x = get_rank() == 0\n"
    assert not value_of(source).is_local


def test_wrapped_in_main_and_called_in_a_helper() -> None:
    source = """
        from torch.nn.parallel import DistributedDataParallel as DDP

        def main(net, loader, rank):
            model = DDP(net)
            for batch in loader:
                train(model, batch)
            if rank == 0:
                show(model)
                show(model.module)

        def train(model, batch):
            loss = model(batch).mean()
            loss.backward()

        def show(net):
            return net(1)
        """
    steps = [(event.label, event.receiver.wrapped) for event in analyse(source).events("forward")]
    assert steps == [("forward", "ddp"), ("forward", "ddp")]
    assert [found.visit.step.place.text for found in parted(source)][:1] == ["net(1)"]


def test_wrapped_as_an_attribute_and_called_in_a_method() -> None:
    source = """
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Trainer:
            def __init__(self, net):
                self.net = DDP(net)
                self.plain = self.net.module
            def show(self, rank, x):
                if rank == 0:
                    self.net(x)
                    self.plain(x)
        """
    assert one_sided(source) == ["forward"]


def test_events_know_what_they_were_given() -> None:
    event = only("def f(rank, x, sub):\n    dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=sub)\n")
    assert event.args[0].is_rank
    given = event.argument(event.effect.group, "group")
    assert given is not None
    assert event.argument_node(0, "tensor") is not None
    assert event.argument(1, "missing") is None


def test_a_value_that_nobody_can_read_is_lost() -> None:
    assert only("def f(x):\n    dist.all_reduce(x.detach().clone())\n").is_lost
    assert only("def f(x):\n    dist.all_reduce(torch.tensor(x))\n").is_lost
    assert not only("def f(x):\n    dist.all_reduce(x)\n").is_lost
    assert not only("def f(x):\n    dist.all_reduce(x.detach().view(-1))\n").is_lost


def test_a_result_that_is_thrown_away_is_known() -> None:
    assert only("def f(x, accelerator):\n    accelerator.gather(x)\n").is_dropped
    assert not only("def f(x, accelerator):\n    y = accelerator.gather(x)\n").is_dropped


def test_names_of_libraries_that_are_shadowed() -> None:
    assert not value("len", "len = 3").is_local
    assert list(analyse("def f(dist):\n    dist.barrier()\n").events("collective")) == []


def test_parameters_are_joined_over_all_calls() -> None:
    source = "def f(y):\n    x = y\ndef g(rank, loader):\n    f(1)\n    f(rank)\n"
    assert value_of(source).varies == RANK
    source = "def f(y):\n    x = y\ndef g(rank, loader):\n    for each in loader:\n        f(each)\n"
    assert value_of(source).varies == DATA


def test_calls_with_stars_are_read() -> None:
    for call in ("f(*rest)", "f(1, *rest, **more)", "f(**{'y': 1})", "f(y=1, *rest)"):
        assert analyse(f"def f(y, *a, z=1, **k):\n    x = y\ndef g(rest, more):\n    {call}\n")

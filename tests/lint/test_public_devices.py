"""Devices, samplers and lengths in public repositories, in small: what is right beside the nearest that is not."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, device, mean, sizes):
        super().__init__()
        {init}

    def forward(self, x: torch.Tensor):
        {forward}
        return x - self.mean
"""
DATA = """\
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def val_dataloader(self):
        return self.loader(self.val, DataLoader)

    def loader(self, val, make):
        sampler = DistributedSampler(val)
        return {maker}(val, sampler=sampler)
"""
MODEL = """\
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import {imported}

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

trainer = Trainer(devices=2, {switch})
"""
SPLIT = """\
def work(accelerator, files, state):
    {cut}
    with state.split_between_processes(files) as mine:
        for number, file in enumerate(mine):
            accelerator.wait_for_everyone()
"""


def net(init: str = "pass", forward: str = "pass") -> str:
    """A module with one line in its ``__init__`` and one in ``forward``."""
    return NET.format(init=init, forward=forward)


@pytest.mark.parametrize(
    ("statement", "is_reported"),
    [
        ("x = x.cuda()", True),
        ("with torch.cuda.device_of(x): x = x.cuda()", False),
        ("with torch.cuda.device(x.device): x = x.cuda()", False),
        ("with torch.no_grad(): x = x.cuda()", True),
        ("x = x if x.get_device() == -1 else x.cuda()", False),
        ("x = x if x.dim() == 1 else x.cuda()", True),
        ("x = nn.Linear(3, 3).cuda()(x)", True),
    ],
)
def test_calls_that_need_no_other_device(statement: str, is_reported: bool) -> None:
    assert bool(lines(net(forward=statement), "DL001")) is is_reported


@pytest.mark.parametrize(
    ("guard", "leaves", "is_reported"),
    [
        ("not x.is_cuda", "return x", False),
        ("not torch.cuda.is_available()", "print(x)", True),
        ("x.dim() == 1", "return x", True),
    ],
)
def test_what_follows_the_way_out_of_machines_without_cuda(guard: str, leaves: str, is_reported: bool) -> None:
    body = f"if {guard}:\n            {leaves}\n        x = x.cuda()"
    assert bool(lines(net(forward=body), "DL001")) is is_reported


@pytest.mark.parametrize(
    ("first", "is_reported"),
    [
        ("torch.zeros(1, device=order.device)", False),
        ("torch.zeros(1, device=x.device)", True),
    ],
)
def test_what_is_made_beside_a_tensor_is_where_that_is(first: str, is_reported: bool) -> None:
    body = f"order = torch.randperm(3)\n        x = torch.cat([{first}, order])"
    assert bool(lines(net(forward=body), "DL002")) is is_reported


@pytest.mark.parametrize(
    ("value", "is_reported"),
    [
        ("torch.tensor([0.5]).view(-1, 1, 1)", True),
        ("torch.tensor([0.5]).to(device)", False),
        ("torch.zeros(3, device=mean.device)", False),
        ("torch.tensor(mean)", False),
    ],
)
def test_what_is_seen_to_be_made_on_the_host(value: str, is_reported: bool) -> None:
    assert bool(lines(net(init=f"self.mean = {value}"), "DL003")) is is_reported


@pytest.mark.parametrize(("maker", "is_reported"), [("make", True), ("DataLoader", True), ("self.make", False)])
def test_loaders_that_a_function_is_given_the_maker_of(maker: str, is_reported: bool) -> None:
    assert bool(check(DATA.format(maker=maker), "DL004")) is is_reported


@pytest.mark.parametrize(
    ("switch", "imported", "is_reported"),
    [
        ("use_distributed_sampler=False", "DataLoader", False),
        ("replace_sampler_ddp=False", "DataLoader", False),
        ("use_distributed_sampler=True", "DataLoader", True),
        ("replace_sampler_ddp=False", "DistributedSampler", True),
    ],
)
def test_ranks_that_all_evaluate_everything(switch: str, imported: str, is_reported: bool) -> None:
    assert bool(lines(MODEL.format(switch=switch, imported=imported), "DL202")) is is_reported


def test_one_trainer_of_two_that_leaves_samplers_alone() -> None:
    source = MODEL.format(switch="use_distributed_sampler=False", imported="DataLoader")
    assert lines(source + "other = Trainer(devices=2)\n", "DL202") == [6]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("pass", [4]),
        ("files = files[: len(files) - len(files) % state.num_processes]", []),
        ("n = len(files) // state.num_processes * state.num_processes\n    files = files[:n]", []),
        ("files = files[: len(files) - len(files) % 4]", [4]),
        ("files = files[:100]", [4]),
    ],
)
def test_lists_that_are_cut_to_fit_the_ranks(cut: str, expected: list[int]) -> None:
    found = check(SPLIT.format(cut=cut), "DL104")
    assert [step.line for each in found for step in each.trace[:1]] == expected


@pytest.mark.parametrize(
    ("test", "barrier", "expected"),
    [
        ("found() and not resume", "if resume:\n        dist.barrier()", []),
        ("not resume", "if resume:\n        dist.barrier()", []),
        ("found() and not resume", "if resume and rank == 0:\n        dist.barrier()", [8]),
    ],
)
def test_a_rank_that_raises_says_nothing_of_the_others(test: str, barrier: str, expected: list[int]) -> None:
    source = f"""\
import torch.distributed as dist

def main(rank, resume):
    if rank == 0:
        if {test}:
            raise ValueError
    {barrier}
"""
    assert lines(source, "DL101") == expected


def test_a_test_that_all_ranks_fail_is_learnt_from() -> None:
    source = """\
import torch.distributed as dist

def main(rank, resume):
    if not resume:
        raise ValueError
    if rank == 0 or resume:
        dist.barrier()
"""
    assert lines(source, "DL101") == []

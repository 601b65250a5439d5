"""A part of a model that gets no gradient under DistributedDataParallel: whose word it is, and in whose terms."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distmetrics import Runner
from distmetrics.errors import ConfigurationError
from distmetrics.strategies import DDP, DDP2, DDPFork, DDPSpawn
from distmetrics.strategies.base import Entry
from distmetrics.train import Trainer
from tests.train.models import Logistic, loader


class Spare(Logistic):
    def __init__(self):
        super().__init__()
        self.spare = nn.ModuleDict({"module": nn.Linear(3, 3)})


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def steps(strategy, module):
    step = strategy.wrap(Entry(module))
    module.log = lambda *args, **options: None
    for _ in range(2):
        step((((torch.ones(2, 4), torch.ones(2)), 0), {}), "training_step").backward()


@pytest.mark.parametrize("kind", [DDP, DDP2, DDPSpawn])
def test_parameters_without_a_gradient_are_named_and_the_strategys_option(group, kind):
    message = (
        r"got no gradient in the last backward pass.*: spare.module.weight, spare.module.bias\n(.|\n)*"
        rf"strategy={kind.__name__}\(find_unused_parameters=True\), where"
    )
    with pytest.raises(ConfigurationError, match=message) as info:
        steps(kind(), Spare())
    assert "reduction in the prior iteration" in str(info.value.__cause__)
    steps(kind(find_unused_parameters=True), Spare())


class Odd(Logistic):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("of the step")


def test_other_errors_are_the_users(group):
    with pytest.raises(RuntimeError, match="of the step"):
        steps(DDP(), Odd())


def train(runner, steps=None):
    net = Spare()
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for x, _ in itertools.islice(runner.setup_dataloaders(loader(16), train=True), steps):
        runner.backward(model(x).sum())
        optimizer.step()


@pytest.mark.gloo
@pytest.mark.timeout(100)
def test_on_two_ranks():
    message = r": spare.module.weight, spare.module.bias\n(.|\n)*strategy=DDPFork\(find_unused_parameters=True\)"
    flags = {"strategy": "ddp_fork", "devices": 2, "accelerator": "cpu"}
    with pytest.raises(ConfigurationError, match=message):
        Trainer(max_epochs=1, **flags).fit(Spare(), loader(16))
    with pytest.raises(ConfigurationError, match=message):
        Runner(**flags).launch(train)


@pytest.mark.gloo
@pytest.mark.timeout(100)
def test_one_step_is_enough():
    """Torch tells in the next forward: a fit of one step would end with other weights on every rank."""
    message = r"got no gradient in the last backward pass.*: spare.module.weight, spare.module.bias\n"
    flags = {"strategy": "ddp_fork", "devices": 2, "accelerator": "cpu"}
    with pytest.raises(ConfigurationError, match=message):
        Trainer(max_steps=1, **flags).fit(Spare(), loader(16))
    with pytest.raises(ConfigurationError, match=message):
        Runner(**flags).launch(train, 1)
    Trainer(max_steps=1, strategy=DDPFork(find_unused_parameters=True), devices=2, accelerator="cpu").fit(
        Spare(), loader(16)
    )


def test_forks_of_a_process_whose_group_is_open(group):
    for begin in (
        lambda flags: Trainer(max_epochs=1, **flags).fit(Logistic(), loader(16)),
        lambda flags: Runner(**flags).launch(train),
    ):
        message = r"ddp_fork': this process is rank 0 of 1 of a process group that is open(.|\n)*destroy_process_group"
        with pytest.raises(ConfigurationError, match=message):
            begin({"strategy": "ddp_fork", "devices": 2, "accelerator": "cpu"})

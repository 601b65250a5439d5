"""Strategies in forked ranks: one's own, one's own cluster, more ranks, parameters left out."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distmetrics import Runner
from distmetrics.errors import ConfigurationError
from distmetrics.strategies import DDP, DDP2, FSDP, DDPFork, DDPSpawn
from distmetrics.strategies.base import Entry
from tests.acceptance import free_port
from tests.run.models import Logistic
from tests.strategies.common import Cluster, Deep, assert_same, in_ranks, outcome, single, train

FORK = {"strategy": "ddp_fork", "devices": 2, "accelerator": "cpu"}


class ByHand(nn.Module):
    """Averages gradients by hooks, in the place of DistributedDataParallel."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        for parameter in step.parameters():
            parameter.register_post_accumulate_grad_hook(self.average)

    def average(self, parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    def forward(self, inputs, method):
        return self.step(inputs, method)


class Mine(DDPFork):
    def wrap(self, step):
        return ByHand(step)


@pytest.mark.gloo
def test_a_wrapper_of_ones_own_without_no_sync_averages_each_step_of_an_update():
    found, expected = (
        train(strategy, devices, batch_size=12 // devices, accumulate_grad_batches=2)[0]
        for strategy, devices in ((Mine, 2), ("single", 1))
    )
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), atol=1e-6, rtol=0)


def in_cluster(port):
    rank = dist.get_rank()
    dist.destroy_process_group()  # the job makes one, at the address that the cluster says
    runner = Runner(plugins=[Cluster(rank, port)], accelerator="cpu")
    place = runner.strategy.name, runner.world_size, runner.local_rank
    return *place, runner.launch(lambda runner: runner.all_gather(torch.tensor(rank)).tolist())


def in_parts(flags):
    strategy = FSDP(wrap=(nn.Sequential, nn.Linear), reshard=False, replicas=2)
    return outcome(*train(strategy, 4, module=Deep(), batch_size=3, **flags))


@pytest.mark.gloo
def test_a_cluster_of_ones_own_and_parts_on_more_ranks_than_two():
    joined = in_ranks(2, in_cluster, free_port())
    assert joined == [("ddp", 2, rank, [0, 1]) for rank in range(2)]
    for found in in_ranks(4, in_parts, {"gradient_clip_val": 0.5, "num_sanity_val_steps": 1}):
        assert_same(found, outcome(*single(Deep, clip=0.5)))


class Spare(Logistic):
    def __init__(self):
        super().__init__()
        self.spare = nn.ModuleDict({"module": nn.Linear(3, 3)})


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


UNUSED = r"got no gradient in the last backward pass.*: spare.module.weight, spare.module.bias\n"


def steps(strategy, module):
    step = strategy.wrap(Entry(module))
    module.log = lambda *args, **options: None
    for _ in range(2):
        step((((torch.ones(2, 4), torch.ones(2)), 0), {}), "training_step").backward()


class Odd(Logistic):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("of the step")


@pytest.mark.parametrize("kind", [DDP, DDP2, DDPSpawn])
def test_parameters_without_a_gradient_are_named_and_the_strategys_option(group, kind):
    option = rf"(.|\n)*strategy={kind.__name__}\(find_unused_parameters=True\), where"
    with pytest.raises(ConfigurationError, match=UNUSED + option) as info:
        steps(kind(), Spare())
    assert "reduction in the prior iteration" in str(info.value.__cause__)
    steps(kind(find_unused_parameters=True), Spare())
    with pytest.raises(RuntimeError, match="of the step"):  # another error is the user's
        steps(kind(), Odd())


def one_step(runner, net):
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runner.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()


@pytest.mark.gloo
def test_one_step_is_enough_to_find_a_parameter_without_a_gradient():
    """Torch tells in the next forward: ranks would end with other weights after one step."""
    with pytest.raises(ConfigurationError, match=UNUSED):
        Runner(**FORK).launch(one_step, Spare())


def test_forks_of_a_process_whose_group_is_open(group):
    text = r"ddp_fork': this process is rank 0 of 1 of a process group that is open(.|\n)*destroy_"
    with pytest.raises(ConfigurationError, match=text):
        Runner(**FORK).launch(one_step, Logistic())

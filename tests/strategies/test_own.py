"""A strategy of one's own: as a class with hooks; and a cluster of one's own."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distmetrics.comm.verdict import settle
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.launch.spawn import launch
from distmetrics.strategies import DDPFork, Strategy
from distmetrics.strategies.registry import resolve
from distmetrics.train import Trainer
from tests.strategies.common import Deep, assert_same, outcome, single, train
from tests.train.models import Logistic, loader


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
    name = "mine"

    def init_process_group(self, backend, **options):
        dist.init_process_group(backend, timeout=timedelta(seconds=77), **options)
        self.joined = backend

    def wrap(self, step):
        assert self.joined == "gloo"
        return ByHand(step)


@pytest.mark.gloo
def test_hooks_for_the_process_group_and_the_wrapping():
    assert_same(outcome(*train(Mine, 2, batch_size=6)), outcome(*single()))


@pytest.mark.gloo
def test_a_wrapper_without_no_sync_averages_each_step_of_an_update():
    found, expected = (
        train(strategy, devices, batch_size=12 // devices, accumulate_grad_batches=2)[0].state_dict()
        for strategy, devices in ((Mine, 2), ("single", 1))
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


class Twice(Strategy):
    """The least that one can write."""

    name = "twice"

    def step(self, module, optimizer, closure=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        return super().step(module, optimizer, closure)


def test_a_class_may_be_passed():
    module = Logistic()
    before = module.layer.weight.clone()
    train(Twice, 1, module=module)
    assert torch.equal(module.layer.weight, before)


class Cluster(ClusterEnvironment):
    """Says what a scheduler would; the rank comes as an argument."""

    def __init__(self, rank, port):
        self._rank, self._port = rank, port

    world_size = local_world_size = 2
    main_address = "127.0.0.1"

    @property
    def rank(self):
        return self._rank

    @property
    def local_rank(self):
        return self._rank

    @property
    def main_port(self):
        return self._port


def in_cluster(comm, port):
    dist.destroy_process_group()  # the job is to make one by itself, at the address that the cluster says
    trainer = Trainer(
        strategy="auto", plugins=[Cluster(comm.rank, port)], accelerator="cpu", max_epochs=1, enable_progress_bar=False
    )
    assert (trainer.strategy.name, trainer.world_size, trainer.strategy.local_rank) == ("ddp", 2, comm.rank)
    module = Deep()
    trainer.fit(module, loader(24, 6))
    found = comm.rank, [value.clone() for value in module.parameters()]
    dist.barrier()
    return found


@pytest.mark.gloo
def test_a_cluster_of_ones_own():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    outcomes = launch(in_cluster, 2, port, start_method="fork")
    first, second = settle(outcomes)
    assert (first[0], second[0]) == (0, 1)
    for a, b in zip(first[1], second[1], strict=True):
        assert torch.equal(a, b)


def test_the_number_of_machines_must_be_the_clusters():
    with pytest.raises(ConfigurationError, match="num_nodes=3, and this process is one of 2, on 1 mach"):
        resolve("ddp", devices=2, accelerator="cpu", num_nodes=3, plugins=[Cluster(0, 1)])
    with pytest.raises(ConfigurationError, match="plugins must be one cluster environment"):
        resolve("ddp", devices=2, accelerator="cpu", plugins=[Cluster(0, 1), Cluster(1, 1)])

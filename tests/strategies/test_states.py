"""What a checkpoint holds does not depend on the strategy: whole weights and optimizer states, the user's own names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from distmetrics.comm.threads import ThreadWorld
from distmetrics.errors import ConfigurationError
from distmetrics.strategies import FSDP
from distmetrics.strategies.base import Entry
from distmetrics.strategies.ddp_sharded import ShardedUpdates, owners_of
from distmetrics.strategies.registry import resolve
from distmetrics.train import Trainer
from tests.runner.threads import Threads
from tests.strategies.common import Deep, in_ranks, step_of, train
from tests.train.models import samples


def update(strategy, module, optimizer, max_norm):
    strategy.clip(module, optimizer, max_norm=max_norm)
    strategy.step(module, optimizer)
    optimizer.zero_grad()


def steps(strategy, module, optimizer, batches, *, accumulate=1, clip=0.5):
    """Take steps as the trainer does."""
    strategy.place(module)
    call = strategy.training_call(Entry(module), [optimizer])
    step = step_of(call)
    for index, batch in enumerate(batches):
        if (index + 1) % accumulate:
            with strategy.accumulate(call), strategy.forward():
                strategy.backward(step(batch, index) / accumulate)
            continue
        with strategy.forward():
            loss = step(batch, index)
        strategy.backward(loss / accumulate)
        update(strategy, module, optimizer, clip)
    return optimizer


class Quiet(Deep):
    """Logs nothing: no trainer is there."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self(x), y)


def batches(rank, world_size, count=6, size=12):
    data = samples(count * size)
    whole = [tuple(t[i * size : (i + 1) * size] for t in data.tensors) for i in range(count)]
    return [tuple(t[rank::world_size] for t in batch) for batch in whole]


MODULE = Quiet()  # threads that seed and draw at a time would start from different weights


def run(strategy, rank, world_size, **options):
    module = copy.deepcopy(MODULE)
    optimizer = torch.optim.AdamW([{"params": module.layer.parameters(), "lr": 0.02}, {"params": rest(module)}])
    optimizer = steps(strategy, module, optimizer, batches(rank, world_size), **options)
    return module, optimizer


def rest(module):
    return [p for name, p in module.named_parameters() if not name.startswith("layer.")]


def whole_states(make, options):
    strategy = resolve(make(), devices=2, accelerator="cpu")
    comm = strategy.comm()
    module, optimizer = run(strategy, comm.rank, comm.world_size, **options)
    owned = sum(bool(state) for state in optimizer.state.values())
    found = strategy.weights(module), strategy.optimizer_state(module, optimizer)
    return *found, owned


def expected(options):
    strategy = resolve("single", accelerator="cpu")
    module, optimizer = run(strategy, 0, 1, **options)
    return module.state_dict(), optimizer.state_dict()


def check(found, wanted):
    weights, state, _ = found
    assert list(weights) == list(wanted[0])
    for name, value in wanted[0].items():
        assert type(weights[name]) in (torch.Tensor, nn.Parameter)
        torch.testing.assert_close(weights[name].detach(), value, rtol=0, atol=1e-6)
    assert state["param_groups"] == wanted[1]["param_groups"]
    assert state["state"].keys() == wanted[1]["state"].keys()
    for index, entry in wanted[1]["state"].items():
        for key, value in entry.items():
            torch.testing.assert_close(state["state"][index][key], value, rtol=1e-5, atol=1e-7)


class Sharded(ShardedUpdates, Threads):
    """Over threads, which have no DistributedDataParallel."""

    name = "sharded threads"


def fsdp():
    return FSDP(wrap=(nn.Linear,))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sharded_updates(world_size):
    found = ThreadWorld(world_size).run(lambda comm: whole_states(Sharded, {}))
    for each in found:
        check(each, expected({}))
    owned = [each[2] for each in found]
    assert sum(owned) == len(list(Deep().parameters())), "every state is kept once"
    assert max(owned) < sum(owned)


@pytest.mark.gloo
@pytest.mark.parametrize("options", [{}, {"accumulate": 3}])
@pytest.mark.parametrize("make", [FSDP, fsdp])
def test_fsdp(make, options):
    for each in in_ranks(2, whole_states, make, options):
        check(each, expected(options))


def resumed(make, weights, state):
    strategy = resolve(make(), devices=2, accelerator="cpu")
    comm = strategy.comm()
    module = Quiet()
    optimizer = torch.optim.AdamW([{"params": module.layer.parameters(), "lr": 0.9}, {"params": rest(module)}])
    strategy.place(module)
    step = step_of(strategy.training_call(Entry(module), [optimizer]))
    strategy.load_weights(module, weights)
    strategy.load_optimizer_state(module, optimizer, state)
    for index, batch in enumerate(batches(comm.rank, comm.world_size)[:2]):
        strategy.backward(step(batch, index))
        update(strategy, module, optimizer, 0.5)
    owned = sum(bool(entry) for entry in optimizer.state.values())
    return strategy.weights(module), strategy.optimizer_state(module, optimizer), owned


def resumed_single():
    strategy = resolve("single", accelerator="cpu")
    module, optimizer = run(strategy, 0, 1)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    state = copy.deepcopy(optimizer.state_dict())
    for index, batch in enumerate(batches(0, 1)[:2]):
        strategy.backward(module.training_step(batch, index))
        update(strategy, module, optimizer, 0.5)
    return start, state, (module.state_dict(), optimizer.state_dict())


def test_sharded_updates_go_on_from_a_checkpoint():
    weights, state, wanted = resumed_single()
    for each in ThreadWorld(2).run(lambda comm: resumed(Sharded, weights, state)):
        check(each, wanted)
        assert each[2] < len(state["state"])


@pytest.mark.gloo
def test_fsdp_goes_on_from_a_checkpoint():
    weights, state, wanted = resumed_single()
    for each in in_ranks(2, resumed, fsdp, weights, state):
        check(each, wanted)


def test_parameters_are_dealt_out_evenly():
    sizes = [100, 1, 50, 50, 2, 0]
    owners = owners_of([torch.zeros(size) for size in sizes], 2)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(2)]
    assert abs(loads[0] - loads[1]) <= 2


def test_an_optimizer_of_all_parameters_at_once_is_refused():
    module = Quiet()
    with pytest.raises(ConfigurationError, match="can't share out LBFGS"):
        Sharded().training_call(Entry(module), [torch.optim.LBFGS(module.parameters())])


def stranger():
    strategy = resolve(FSDP(), devices=2, accelerator="cpu")
    with pytest.raises(ConfigurationError, match=r"a tensor of shape \[3\] that is no parameter"):
        strategy.training_call(Entry(Quiet()), [torch.optim.SGD([torch.zeros(3, requires_grad=True)])])
    with pytest.raises(ConfigurationError, match="replicas=3 does not divide the 2 ranks"):
        FSDP(replicas=3).mesh_sizes()


@pytest.mark.gloo
def test_what_fsdp_can_not_shard():
    in_ranks(2, stranger)


class Uneven(Deep):
    def train_dataloader(self):
        whole = batches(0, 1, count=4, size=6)
        return whole if self.global_rank == 0 else whole[:1]


def uneven(make):
    module = Uneven()
    strategy = make() if callable(make) else make
    trainer = Trainer(
        strategy=strategy,
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        use_distributed_sampler=False,
        limit_val_batches=0,
    )
    trainer.fit(module)
    return {name: value.clone() for name, value in module.state_dict().items()}, trainer.global_step


@pytest.mark.gloo
def test_a_rank_without_a_batch_takes_part():
    wanted, count = in_ranks(2, uneven, "ddp")[0]
    for strategy in (FSDP, "ddp_sharded"):
        for weights, found in in_ranks(2, uneven, strategy):
            assert found == count == 4
            for name, value in wanted.items():
                torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.gloo
def test_with_several_groups_it_is_told_what_to_do():
    with pytest.raises(ConfigurationError, match=r"no batch for a training step(.|\n)*without wrap="):
        in_ranks(2, uneven, fsdp)


def twice():
    module = Deep()
    train(fsdp(), 2, module=module, batch_size=6)
    types = {type(part) for part in module.modules()}
    assert nn.Linear in types
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    assert not any(value for part in module.modules() for name, value in vars(part).items() if "_hooks" in name)
    train(fsdp(), 2, module=module, batch_size=6)
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.gloo
def test_a_module_is_plain_afterwards_and_can_be_trained_again():
    module = Deep()
    for _ in range(2):
        train("single", 1, module=module)
    for weights in in_ranks(2, twice):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=2e-6)

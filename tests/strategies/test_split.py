"""Weights and optimizer states in parts: checkpoints hold them whole, by the user's own names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from distmetrics import Runner
from distmetrics.comm.threads import ThreadWorld
from distmetrics.errors import ConfigurationError
from distmetrics.strategies import FSDP
from distmetrics.strategies.base import Entry
from distmetrics.strategies.ddp_sharded import ShardedUpdates, owners_of
from distmetrics.strategies.registry import resolve
from tests.run.models import loss_of, samples
from tests.run.threads import Threads
from tests.strategies.common import Deep, in_ranks, step_of, train


class Quiet(Deep):
    """Logs nothing: no trainer is there."""

    def training_step(self, batch, batch_idx):
        return loss_of(self(batch[0]), batch[1])


MODULE = Quiet()  # threads that seed and draw at a time would start from different weights


def batches(comm, count=6, size=12):
    x, y = samples(count * size).tensors
    ranks = range(comm.rank, size, comm.world_size)
    return [(x[i : i + size][ranks], y[i : i + size][ranks]) for i in range(0, count * size, size)]


def trained(strategy, start=None, *, accumulate=1):
    """Take steps as the trainer does, and go on with two where there is a checkpoint."""
    devices = 1 if strategy == "single" else 2
    strategy = resolve(strategy, devices=devices, accelerator="cpu")
    module = copy.deepcopy(MODULE)
    rest = [p for name, p in module.named_parameters() if not name.startswith("layer.")]
    groups = [{"params": module.layer.parameters(), "lr": 0.02}, {"params": rest}]
    optimizer = torch.optim.AdamW(groups)
    strategy.place(module)
    call = strategy.training_call(Entry(module), [optimizer])
    if start is not None:
        strategy.load_weights(module, start[0])
        strategy.load_optimizer_state(module, optimizer, copy.deepcopy(start[1]))
    for index, batch in enumerate(batches(strategy.comm())[: 6 if start is None else 2]):
        if (index + 1) % accumulate:
            with strategy.accumulate(call), strategy.forward():
                strategy.backward(step_of(call)(batch, index) / accumulate)
            continue
        with strategy.forward():
            loss = step_of(call)(batch, index)
        strategy.backward(loss / accumulate)
        strategy.clip(module, optimizer, max_norm=0.5)
        strategy.step(module, optimizer)
        optimizer.zero_grad()
    owned = sum(bool(state) for state in optimizer.state.values())
    weights = {name: value.clone() for name, value in strategy.weights(module).items()}
    return weights, copy.deepcopy(strategy.optimizer_state(module, optimizer)), owned


def same(found, expected):
    weights, state, _ = found
    assert list(weights) == list(expected[0])
    assert {type(each) for each in weights.values()} == {torch.Tensor}
    torch.testing.assert_close(weights, expected[0], rtol=0, atol=1e-6)
    assert state["param_groups"] == expected[1]["param_groups"]
    torch.testing.assert_close(state["state"], expected[1]["state"], rtol=1e-5, atol=1e-7)


class Sharded(ShardedUpdates, Threads):
    """Over threads, which have no DistributedDataParallel."""

    name = "sharded threads"


def test_sharded_updates():
    whole = trained("single")
    after = trained("single", whole)
    for world_size in (2, 3):
        found = ThreadWorld(world_size).run(lambda comm: trained(Sharded))
        again = ThreadWorld(world_size).run(lambda comm: trained(Sharded, whole))
        for each, other in zip(found, again, strict=True):
            same(each, whole)
            same(other, after)
        for ranks in (found, again):
            owned = [each[2] for each in ranks]
            assert sum(owned) == len(list(MODULE.parameters())), "every state is kept once"
            assert max(owned) < sum(owned)


def test_parameters_are_dealt_out_evenly():
    sizes = [100, 1, 50, 50, 2, 0]
    owners = owners_of([torch.zeros(size) for size in sizes], 2)
    load = sum(size for size, owner in zip(sizes, owners, strict=True) if owner)
    assert abs(2 * load - sum(sizes)) <= 2
    with pytest.raises(ConfigurationError, match="can't share out LBFGS"):
        Sharded().training_call(Entry(MODULE), [torch.optim.LBFGS(MODULE.parameters())])


def fsdp():
    return FSDP(wrap=(nn.Linear,))


def loop(runner):
    """Train, evaluate between the steps, and train on; return what the evaluation has seen."""
    net = copy.deepcopy(MODULE)
    model, optimizer = runner.setup(net, torch.optim.AdamW(net.parameters(), lr=0.02))
    if isinstance(runner.strategy, FSDP):
        text = r"parts\nDo:     model\.eval\("
        with torch.no_grad(), pytest.raises(ConfigurationError, match=text):
            model(torch.zeros(1, 4))
    seen = []
    for index, (x, y) in enumerate(batches(runner.strategy.comm())):
        if index == 3:
            model.eval()
            with torch.no_grad():
                for _ in range(runner.global_rank):  # ranks have different numbers of batches
                    model(x)
                seen.append(model(samples(3).tensors[0]).tolist())
            model.train()
        runner.backward(loss_of(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return seen, {name: value.clone() for name, value in model.state_dict().items()}


def twice():
    module = Deep()
    for _ in range(2):
        train(fsdp(), 2, module=module, batch_size=6)
        assert nn.Linear in {type(part) for part in module.modules()}
        assert {type(parameter) for parameter in module.parameters()} == {nn.Parameter}
        names = [name for part in module.modules() for name, value in vars(part).items() if value]
        assert not any("_hooks" in name for name in names)
    return {name: value.clone() for name, value in module.state_dict().items()}


def in_parts(start):
    """Do everything in one world: what is asked of FSDP, and what it refuses."""
    strategy = resolve(fsdp(), devices=2, accelerator="cpu")
    stranger = torch.optim.SGD([torch.zeros(3, requires_grad=True)])
    with pytest.raises(ConfigurationError, match=r"a tensor of shape \[3\] that is no parameter"):
        strategy.training_call(Entry(Quiet()), [stranger])
    with pytest.raises(ConfigurationError, match="replicas=3 does not divide the 2 ranks"):
        FSDP(replicas=3).mesh_sizes()
    found = [trained(FSDP()), trained(fsdp(), accumulate=3), trained(fsdp(), start)]
    looped = Runner(strategy=fsdp(), devices=2, accelerator="cpu").launch(loop)
    return *found, looped, twice()


@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_fsdp():
    whole = trained("single")
    seen, weights = Runner(strategy="single", accelerator="cpu").launch(loop)
    module = Deep()
    for _ in range(2):
        train("single", 1, module=module)
    for plain, added, again, looped, plainly in in_ranks(2, in_parts, whole[:2]):
        same(plain, whole)
        same(added, trained("single", accumulate=3))
        same(again, trained("single", whole))
        torch.testing.assert_close(looped[0], seen, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(looped[1], weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(plainly, dict(module.state_dict()), rtol=0, atol=2e-6)

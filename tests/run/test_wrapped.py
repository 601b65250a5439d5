"""What setup returns: the user's model and optimizer, but for what the strategy does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR

from distmetrics import ConfigurationError, Runner
from distmetrics.runner import RunnerModule, RunnerOptimizer
from tests.run.loops import model
from tests.run.models import loss_of, samples
from tests.run.test_runner import single, threads
from tests.run.threads import Threads


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 1)
        self.size = 3

    def forward(self, x, *, scale=1.0):
        return self.head(self.norm(self.body(x))).squeeze(1) * scale

    def loss(self, x, y):
        return loss_of(self(x), y)


def looks(runner):
    net, calls = Net(), []
    net.register_forward_hook(lambda *_: calls.append("net"))
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters()))
    assert isinstance(model, RunnerModule)
    assert (model.module, model.size, model.body) == (net, 3, net.body)
    for names in ("named_parameters", "named_modules", "named_buffers"):
        own, wrapped = ([*getattr(each, names)()] for each in (net, model))
        assert own[1:] == wrapped[1:]
    assert list(model.state_dict()) == list(net.state_dict())
    assert repr(model) == repr(net)
    model.size = 4
    model.extra = nn.Linear(1, 1)
    model.register_buffer("mean", torch.zeros(1))
    assert (net.size, net.extra, model.mean) == (4, model.extra, net.mean)
    del model.extra
    assert not hasattr(net, "extra")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        _ = model.missing
    x = torch.ones(2, 4)
    assert torch.equal(model(x, scale=2.0), net(x, scale=2.0))
    calls.clear()
    model.register_forward_hook(lambda *_: calls.append("model"))
    model(x)
    assert calls == ["net", "model"]
    net._forward_hooks.clear()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is Net
        assert torch.equal(copied.body.weight, net.body.weight)
    assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD
    assert model.eval() is model
    assert [part.training for part in (model, net, net.norm)] == [False] * 3
    model.train()
    assert (model.training, net.norm.training) == (True, True)
    model.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in net.parameters())
    model.double()
    assert net.body.weight.dtype == torch.float64
    seen = []
    model.apply(lambda part: seen.append(part))
    assert seen[-1] is net


def test_everything_but_the_call_is_the_users_own():
    single(looks)


def test_an_evaluation_calls_nothing_that_would_wait_for_other_ranks():
    calls = []

    class Counted(Threads):
        def training_call(self, entry, optimizers):
            step = super().training_call(entry, optimizers)
            return lambda *args: calls.append(1) or step(*args)

    def look(runner):
        model, teacher = runner.setup(Net()), runner.setup(nn.Linear(4, 1).requires_grad_(False))
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert not calls
        with runner.no_backward_sync(teacher):  # which has nothing to learn
            teacher(torch.ones(1, 4))
        calls.clear()
        model(torch.ones(2, 4))

    Runner(strategy=Counted(), devices=1).launch(look)
    assert calls == [1]


def test_a_method_that_would_pass_the_strategy_by():
    x, y = samples(4).tensors

    def look(runner):
        net = Net()
        model = runner.setup(net)
        if runner.world_size == 1:
            return model.loss(x, y).backward()
        with pytest.raises(ConfigurationError, match=r"Net\.loss computes with gradients past the strategy"):
            model.loss(x, y)
        assert not net._forward_pre_hooks
        with torch.no_grad():
            assert model.loss(x, y).ndim == 0
        with pytest.raises(ConfigurationError, match="no method 'los'"):
            model.mark_forward_method("los")
        model.mark_forward_method("loss")
        runner.backward(model.loss(x[runner.global_rank :], y[runner.global_rank :]))
        return net.body.weight.grad.clone()

    assert torch.equal(*threads(look))
    single(look)


def test_schedulers_take_the_optimizer_and_a_closure_is_called():
    def look(runner):
        net = Net()
        made = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
        model, optimizer = runner.setup(net, made)
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert isinstance(optimizer, RunnerOptimizer)
        steps = StepLR(optimizer, 1, gamma=0.5)
        optimizer.step(lambda: runner.backward(model(torch.ones(2, 4)).sum()))
        steps.step()
        assert optimizer.param_groups[0]["lr"] == made.param_groups[0]["lr"] == 0.5
        sequence = SequentialLR(optimizer, [StepLR(optimizer, 4), StepLR(optimizer, 2)], [2])
        OneCycleLR(optimizer, 1.0, total_steps=4)
        plateau = ReduceLROnPlateau(optimizer, patience=0)
        optimizer.step()
        sequence.step()
        plateau.step(1.0)
        assert optimizer.state is made.state
        assert optimizer.defaults["momentum"] == 0.9
        assert "SGD" in repr(optimizer)
        extra = nn.Parameter(torch.zeros(1))
        optimizer.add_param_group({"params": [extra]})
        assert made.param_groups[1]["params"][0] is extra
        optimizer.zero_grad()
        assert net.body.weight.grad is None
        optimizer.load_state_dict(optimizer.state_dict())
        other = nn.Linear(4, 1)
        other, lbfgs = runner.setup(other, torch.optim.LBFGS(other.parameters(), max_iter=5))
        losses = []

        def closure():
            lbfgs.zero_grad()
            losses.append(other(torch.ones(2, 4)).square().sum())
            runner.backward(losses[-1])
            return losses[-1]

        lbfgs.step(closure)
        assert losses[-1] < losses[0]

    single(look)


@pytest.mark.parametrize("stepped", [False, True])
def test_an_optimizer_follows_parameters_that_are_replaced(stepped):
    """As they are where a model is moved to XLA; its states follow, too."""

    def train(runner):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        if stepped:
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        wrapped, optimizer = runner.setup(net, optimizer)
        mine = {*net.parameters()}
        assert {*optimizer.param_groups[0]["params"]} == mine
        assert {*optimizer.state} == (mine if stepped else set())
        runner.backward(wrapped(torch.ones(2, 4)).sum())
        optimizer.step()
        return wrapped.state_dict()

    expected = single(train, precision=64)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        found = single(train, precision=64)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())

"""What setup returns: the user's model and optimizer, but for what the strategy does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR

from distmetrics import ConfigurationError, Runner
from distmetrics.runner import RunnerModule, RunnerOptimizer
from tests.runner.loops import loss_fn, model, samples
from tests.runner.threads import Threads


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 1)
        self.size = 3
        self.modes = []

    def forward(self, x, *, scale=1.0):
        return self.head(self.norm(self.body(x))).squeeze(1) * scale

    def loss(self, x, y):
        return loss_fn(self(x), y)

    def describe(self):
        return f"{self.size} units"

    def train(self, mode=True):
        self.modes.append(mode)
        return super().train(mode)


def one(fn):
    return Runner(strategy="single", accelerator="cpu").launch(fn)


def several(fn):
    return Runner(strategy=Threads(), devices=2).launch(fn)


def test_everything_but_the_call_is_the_users_own():
    def look(runner):
        net = Net()
        model = runner.setup(net)
        assert isinstance(model, RunnerModule)
        assert isinstance(model, nn.Module)
        assert model.module is net
        assert (model.size, model.body, model.describe()) == (3, net.body, "3 units")
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in net.named_parameters()]
        assert [name for name, _ in model.named_modules()][1:] == [name for name, _ in net.named_modules()][1:]
        assert list(model.state_dict()) == list(net.state_dict())
        assert list(map(id, model.parameters())) == list(map(id, net.parameters()))
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

    one(look)


def test_modes():
    def look(runner):
        net = Net()
        model = runner.setup(net)
        assert model.eval() is model
        assert [part.training for part in (model, net, net.norm)] == [False] * 3
        model.train()
        assert model.training
        assert net.norm.training
        assert net.modes == [False, True]
        model.requires_grad_(False)
        assert not any(parameter.requires_grad for parameter in net.parameters())
        model.double()
        assert net.body.weight.dtype == torch.float64
        seen = []
        model.apply(lambda part: seen.append(part))
        assert seen[-1] is net

    one(look)


def test_hooks_of_the_user_are_called_once():
    def look(runner):
        net, calls = Net(), []
        net.register_forward_hook(lambda *_: calls.append("net"))
        model = runner.setup(net)
        model.register_forward_hook(lambda *_: calls.append("model"))
        model(torch.ones(2, 4))
        assert calls == ["net", "model"]

    one(look)


def test_a_copy_or_a_pickle_is_the_users_model():
    def look(runner):
        model, optimizer = runner.setup(net := Net(), torch.optim.SGD(net.parameters()))
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(copied) is Net
            assert torch.equal(copied.body.weight, net.body.weight)
        assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD

    one(look)


def test_running_statistics_are_one_models_in_evaluation():
    def look(runner):
        model = runner.setup(Net())
        model(torch.full((3, 4), 1.0 + runner.global_rank) * torch.arange(3.0)[:, None])
        before = model.norm.running_mean.clone()
        model.eval()
        return before, model.norm.running_mean.clone()

    (first, after_first), (second, after_second) = several(look)
    assert not torch.equal(first, second)
    assert torch.equal(after_first, first)
    assert torch.equal(after_second, first)


def test_a_method_that_would_pass_the_strategy_by():
    x, y = samples(4).tensors

    def look(runner):
        net = Net()
        model = runner.setup(net)
        with pytest.raises(ConfigurationError, match=r"Net.loss computes with gradients past the strategy 'threads'"):
            model.loss(x, y)
        assert not net._forward_pre_hooks
        with torch.no_grad():
            assert model.loss(x, y).ndim == 0
        with pytest.raises(ConfigurationError, match="no method 'los'"):
            model.mark_forward_method("los")
        model.mark_forward_method("loss")
        runner.backward(model.loss(x[runner.global_rank :], y[runner.global_rank :]))
        return net.body.weight.grad.clone()

    first, second = several(look)
    assert torch.equal(first, second)
    one(lambda runner: runner.backward(_called(runner.setup(Net()), x, y)))


def _called(model, x, y):
    model.mark_forward_method("loss")
    return model.loss(x, y)


def test_schedulers_take_the_optimizer():
    def look(runner):
        model, optimizer = runner.setup(net := Net(), torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9))
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert isinstance(optimizer, RunnerOptimizer)
        steps = StepLR(optimizer, 1, gamma=0.5)
        runner.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        steps.step()
        assert optimizer.param_groups[0]["lr"] == optimizer.optimizer.param_groups[0]["lr"] == 0.5
        sequence = SequentialLR(optimizer, [CosineAnnealingLR(optimizer, 4), StepLR(optimizer, 2)], [2])
        OneCycleLR(optimizer, 1.0, total_steps=4)
        plateau = ReduceLROnPlateau(optimizer, patience=0)
        optimizer.step()
        sequence.step()
        plateau.step(1.0)
        assert optimizer.state is optimizer.optimizer.state
        assert optimizer.defaults["momentum"] == 0.9
        assert "SGD" in repr(optimizer)
        extra = nn.Parameter(torch.zeros(1))
        optimizer.add_param_group({"params": [extra]})
        assert optimizer.optimizer.param_groups[1]["params"][0] is extra
        optimizer.zero_grad()
        assert net.body.weight.grad is None
        optimizer.load_state_dict(optimizer.state_dict())

    one(look)


def test_a_closure():
    x, y = samples(8).tensors

    def fit(runner):
        net = nn.Linear(4, 1)
        model, optimizer = runner.setup(net, torch.optim.LBFGS(net.parameters(), max_iter=5))
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = loss_fn(model(x).squeeze(1), y)
            runner.backward(loss)
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        return losses

    losses = one(fit)
    assert losses[-1] < losses[0]


def test_states_of_an_optimizer_follow_its_parameters():
    def resume(runner):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        wrapped, stepped = runner.setup(net, optimizer)
        assert stepped.state[net[0].weight]["step"] == 1
        return wrapped

    one(resume)


@pytest.mark.parametrize("stepped", [False, True])
def test_an_optimizer_follows_parameters_that_are_replaced(stepped):
    """As they are where a model is moved to XLA."""

    def train(runner):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        if stepped:
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        wrapped, optimizer = runner.setup(net, optimizer)
        mine = {id(parameter) for parameter in net.parameters()}
        assert {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} == mine
        assert {id(parameter) for parameter in optimizer.state} == (mine if stepped else set())
        runner.backward(wrapped(torch.ones(2, 4)).sum())
        optimizer.step()
        return wrapped.state_dict()

    def launched():
        return Runner(strategy="single", accelerator="cpu", precision=64).launch(train)

    expected = launched()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        found = launched()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_model_with_nothing_to_learn():
    def look(runner):
        teacher = runner.setup(nn.Linear(4, 1).requires_grad_(False))
        with runner.no_backward_sync(teacher):
            return teacher(torch.ones(1, 4)).shape

    assert several(look) == [(1, 1)] * 2

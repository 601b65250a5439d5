"""One's own loop: the numbers of one process, whatever the number of ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics import ConfigurationError, InputError, InputTypeError, MismatchError, Runner
from distmetrics.errors import DistmetricsError
from tests.run.loops import Fit, assert_same_fit, model, plain
from tests.run.models import loss_of, samples
from tests.run.threads import Threads


def threads(fn, world_size=2, **flags):
    """Call ``fn(runner)`` on every rank; return each rank's result."""
    return Runner(strategy=Threads(), devices=world_size, **flags).launch(fn)


def single(fn, **flags):
    return Runner(strategy="single", accelerator="cpu", **flags).launch(fn)


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}, {"val": 3}, {"val": 2}])
@pytest.mark.parametrize(("world_size", "steps"), [(1, 2), (2, 2), (3, 1)])
def test_the_loop_of_one_process(world_size, steps, options):
    for found in Fit(strategy=Threads(), devices=world_size).run(**options, steps=steps):
        assert_same_fit(found, plain(**options))


class Parent(Runner):
    def run(self, x):
        return x + self.world_size


class Child(Parent):
    def run(self, x):
        return 10 * super().run(x)


class Forgetful(Runner):
    def __init__(self):
        self.mine = 1

    def run(self):
        return 1


class Again(Runner):
    def run(self):
        self.run()


def test_what_is_launched():
    assert Child(strategy="single").run(2) == 30
    assert Child(strategy=Threads(), devices=2).run(2) == [40, 40]
    with pytest.raises(ConfigurationError, match="has not called super"):
        Forgetful().run()
    for inside in (
        lambda runner: runner.launch(print),
        lambda _: Runner(strategy="single").launch(print),
        lambda _: Again(strategy="single").run(),
    ):
        with pytest.raises(ConfigurationError, match="launch inside a launch"):
            threads(inside)
    with pytest.raises(ConfigurationError, match="launch inside a launch"):
        Again(strategy="single").run()


OUTSIDE = {
    "setup": lambda runner: runner.setup(model()),
    "setup_dataloaders": lambda runner: runner.setup_dataloaders([1]),
    "backward": lambda runner: runner.backward(torch.ones(())),
    "barrier": lambda runner: runner.barrier(),
    "log": lambda runner: runner.log,
    "all_gather": lambda runner: runner.all_gather(torch.ones(())),
    "broadcast": lambda runner: runner.broadcast(1),
    "save": lambda runner: runner.save("x.pt", 1),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_outside_of_a_launch(what):
    runner = Runner(strategy=Threads(), devices=2)
    assert (runner.world_size, runner.global_rank, runner.is_global_zero) == (2, 0, True)
    for _ in range(2):  # before and after
        with pytest.raises(ConfigurationError, match=f"{what} outside of a launch"):
            OUTSIDE[what](runner)
        runner.launch(lambda runner: None)


def test_the_log_of_a_launch():
    def talk(runner):
        for index in range(3):
            value = torch.tensor(float(index))
            runner.log.mean("loss", value, weight=1 + runner.global_rank)
        runner.log.sum("samples", 4)
        return runner.log.flush(), runner.log.flush()

    runner = Runner(strategy=Threads(), devices=2)
    for _ in range(2):  # each launch has its own
        assert runner.launch(talk) == [({"loss": 1.0, "samples": 8.0}, {})] * 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda runner: runner.broadcast((n for n in ()), allow_pickle=True),
            InputTypeError,
            "cannot be sent.*cannot pickle",
        ),
        (
            lambda runner: runner.broadcast(1, allow_pickle=runner.global_rank == 0),
            MismatchError,
            "allow_pickle=True",
        ),
        (lambda runner: runner.broadcast(1, src=runner.global_rank), MismatchError, "rank 1"),
        (lambda runner: runner.save({}, {}), InputTypeError, "no path"),
        (
            lambda runner: runner.save("x.pt", (n for n in ())),
            DistmetricsError,
            "rank 0 could not write .*pickle",
        ),
    ],
)
def test_wrong_calls_are_refused_on_every_rank(call, error, text, tmp_path, monkeypatch):
    def refused(runner):
        with pytest.raises(error, match=text):
            call(runner)
        runner.save(runner.global_rank, "turned.pt")  # as in torch.save

    monkeypatch.chdir(tmp_path)
    threads(refused)
    assert [file.name for file in tmp_path.iterdir()] == ["turned.pt"]


def test_a_seed_of_the_runner_is_in_force_in_each_launch():
    runner = Runner(strategy="single", seed=3)
    assert runner.launch(lambda _: torch.rand(1)) == runner.launch(lambda _: torch.rand(1))


class Low(Threads):
    def forward(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_model_computes_in_the_precision_and_returns_float32():
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    def compute(runner):
        return runner.setup(Net(2, 1))(torch.ones(1, 2)).dtype

    assert Runner(strategy=Low(), devices=1).launch(compute) == [torch.float32]
    assert seen == [torch.bfloat16]


def test_a_loss_needs_a_model_that_is_set_up():
    def train(runner):
        net = model()
        wrapped = runner.setup(net)
        with pytest.raises(ConfigurationError, match="call the one that setup returned"):
            runner.backward(net(torch.ones(2, 4)).sum())
        loss = wrapped(torch.ones(2, 4)).sum()
        for wrong in (1.0, loss.detach(), loss.expand(2)):
            with pytest.raises(InputTypeError if type(wrong) is float else InputError):
                runner.backward(wrong)
        with pytest.raises(ConfigurationError, match="not set up"):
            runner.backward(loss, nn.Linear(1, 1))
        runner.backward(loss, wrapped)

    single(train)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (5, "5 items on 2 ranks: ranks would take different numbers"),
        (8, r"8 items on 2 ranks: their batches(.|\n)*Likely: it doesn't shuffle(.|\n)*train=True"),
    ],
)
def test_training_on_data_that_is_dealt_out_for_evaluation(count, message):
    def train(runner, **said):
        net = runner.setup(model())
        for x, y in runner.setup_dataloaders(DataLoader(samples(count), 2), **said):
            runner.backward(loss_of(net(x), y))

    with pytest.raises(ConfigurationError, match=message):
        threads(train)
    if count == 8:  # somebody has said that steps are none of it
        threads(lambda runner: train(runner, train=False))
    single(train)


def _step_inside(runner, net, optimizer):
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum())
        optimizer.step()


def _step_after(runner, net, optimizer):
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum())
    optimizer.step()


def _call_inside(runner, net, optimizer):
    """It is the model's call that DistributedDataParallel goes by."""
    with runner.no_backward_sync(net):
        loss = net(torch.ones(2, 4)).sum()
    runner.backward(loss)
    optimizer.step()


def _closure_inside(runner, net, optimizer):
    def closure():
        loss = net(torch.ones(2, 4)).sum()
        runner.backward(loss)
        return loss

    with runner.no_backward_sync(net):
        optimizer.step(closure)


def _model_said(runner, net, optimizer):
    other = runner.setup(model())
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum(), net)
    runner.backward(other(torch.ones(2, 4)).sum(), other)
    optimizer.step()


@pytest.mark.parametrize("wrong", [_step_inside, _step_after, _call_inside, _closure_inside, _model_said])
def test_a_step_with_gradients_that_have_stayed_on_their_rank(wrong):
    text = r"rank's alone, and the ranks' weights would part(.|\n)*step\(\)"

    def train(runner):
        net = model()
        net, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        if runner.world_size == 1:
            wrong(runner, net, optimizer)
            return
        before = net.module[0].weight.clone()
        with pytest.raises(ConfigurationError, match=text):
            wrong(runner, net, optimizer)
        assert torch.equal(net.module[0].weight, before)
        optimizer.zero_grad()
        optimizer.step()  # with no gradients at all
        runner.backward(net(torch.ones(2, 4)).sum())
        optimizer.step()
        assert not torch.equal(net.module[0].weight, before)
        with runner.no_backward_sync(net):
            optimizer.step()  # with gradients that have been shared

    threads(train)
    single(train)


def test_wrong_set_up():
    def wrong(runner):
        net = model()
        optimizer = torch.optim.SGD(net.parameters())
        wrapped, stepped = runner.setup(net, optimizer)
        loader = runner.setup_dataloaders(DataLoader(samples(2)))
        other, twice = nn.Linear(1, 1), "set up already"
        for call, error, message in [
            (lambda: runner.setup(3), InputTypeError, "nn.Module, first; got a int"),
            (lambda: runner.setup(other, other), InputTypeError, "after the model, got a Linear"),
            (
                lambda: runner.setup(other, torch.optim.SGD(model().parameters())),
                ConfigurationError,
                "steps no parameter of the Linear",
            ),
            (lambda: runner.setup(net), ConfigurationError, twice),
            (lambda: runner.setup(wrapped), ConfigurationError, twice),
            (lambda: runner.setup(other, stepped), ConfigurationError, twice),
            (lambda: runner.setup(other, optimizer), ConfigurationError, twice),
            (lambda: runner.setup_dataloaders(loader), ConfigurationError, twice),
            (lambda: runner.setup_dataloaders("abc"), InputTypeError, "takes loaders"),
            (lambda: runner.setup_dataloaders(net), InputTypeError, "takes loaders"),
            (lambda: runner.setup_dataloaders(3), InputTypeError, "takes loaders"),
            (lambda: runner.setup_dataloaders(), InputTypeError, "at least one"),
            (lambda: runner.no_backward_sync(net), InputTypeError, "that setup returned"),
            (
                lambda: runner.clip_gradients(net, stepped, max_norm=1),
                InputTypeError,
                "that setup returned",
            ),
            (
                lambda: runner.clip_gradients(wrapped, stepped),
                ConfigurationError,
                "either max_norm",
            ),
        ]:
            with pytest.raises(error, match=message):
                call()
        for limit in (
            {"max_norm": -1},
            {"max_norm": 0},
            {"clip_value": -0.1},
            {"max_norm": "1"},
            {"clip_value": True},
        ):
            with pytest.raises(ConfigurationError, match="must be a positive number, or None"):
                runner.clip_gradients(wrapped, stepped, **limit)
        runner.clip_gradients(wrapped, stepped, max_norm=1.0, norm_type=float("inf"))

    single(wrong)

"""One's own loop: the numbers of one process, whatever the number of ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics import ConfigurationError, InputError, InputTypeError, MismatchError, Runner
from distmetrics.errors import DistmetricsError
from tests.acceptance.test_runner import CPU, Loop
from tests.run.loops import model
from tests.run.models import loss_of, samples
from tests.run.threads import Threads


def threads(fn, world_size=2, **flags):
    """Call ``fn(runner)`` on every rank; return each rank's result."""
    return Runner(strategy=Threads(), devices=world_size, **flags).launch(fn)


def single(fn, **flags):
    return Runner(strategy="single", accelerator="cpu", **flags).launch(fn)


class Forgetful(Runner):
    def __init__(self):
        self.mine = 1

    def run(self):
        return 1


class Again(Runner):
    def run(self):
        self.run()


def test_what_is_launched():
    class Child(Loop):
        def run(self):
            return 10 * len(super().run()[0])  # a run may call its parent's

    assert Child(strategy=Threads(), devices=2, **CPU).run() == [40, 40]
    with pytest.raises(ConfigurationError, match="has not called super"):
        Forgetful().run()
    for inside in (lambda runner: runner.launch(print), lambda _: Again(strategy="single").run()):
        for launch in (threads, single):
            with pytest.raises(ConfigurationError, match="launch inside a launch"):
                launch(inside)


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


def talk(runner):
    for index in range(3):
        runner.log.mean("loss", torch.tensor(float(index)), weight=1 + runner.global_rank)
    runner.log.sum("samples", 4)
    return runner.log.flush(), runner.log.flush()


def test_outside_of_a_launch_and_the_log_of_each():
    runner = Runner(strategy=Threads(), devices=2)
    assert (runner.world_size, runner.global_rank, runner.is_global_zero) == (2, 0, True)
    for _ in range(2):  # before and after
        for what, call in OUTSIDE.items():
            with pytest.raises(ConfigurationError, match=f"{what} outside of a launch"):
                call(runner)
        assert runner.launch(talk) == [({"loss": 1.0, "samples": 8.0}, {})] * 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r: r.broadcast((n for n in ()), allow_pickle=True), InputTypeError, "cannot be sent.*cannot pickle"),
        (lambda r: r.broadcast(1, allow_pickle=r.global_rank == 0), MismatchError, "allow_pickle=True"),
        (lambda r: r.broadcast(1, src=r.global_rank), MismatchError, "rank 1"),
        (lambda r: r.save({}, {}), InputTypeError, "no path"),
        (lambda r: r.save("x.pt", (n for n in ())), DistmetricsError, "rank 0 could not write .*pickle"),
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


class Low(Threads):
    def forward(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_model_computes_in_the_precision_and_returns_float32_and_a_seed_is_each_launchs():
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
    runner = Runner(strategy="single", seed=3)
    assert runner.launch(lambda _: torch.rand(1)) == runner.launch(lambda _: torch.rand(1))


X = torch.ones(2, 4)


def test_a_loss_needs_a_model_that_is_set_up_and_data_that_is_dealt_out_for_training():
    def train(runner):
        net = model()
        wrapped = runner.setup(net)
        with pytest.raises(ConfigurationError, match="call the one that setup returned"):
            runner.backward(net(X).sum())
        loss = wrapped(X).sum()
        for wrong in (1.0, loss.detach(), loss.expand(2)):
            with pytest.raises(InputTypeError if type(wrong) is float else InputError):
                runner.backward(wrong)
        with pytest.raises(ConfigurationError, match="not set up"):
            runner.backward(loss, nn.Linear(1, 1))
        runner.backward(loss, wrapped)
        for x, y in runner.setup_dataloaders(DataLoader(samples(5), 2)):
            runner.backward(loss_of(wrapped(x), y))

    with pytest.raises(ConfigurationError, match="5 items on 2 ranks: ranks would take different num"):
        threads(train)
    single(train)


def _step_inside(runner, net, optimizer):
    with runner.no_backward_sync(net):
        runner.backward(net(X).sum())
        optimizer.step()


def _call_inside(runner, net, optimizer):
    """It is the model's call that DistributedDataParallel goes by."""
    with runner.no_backward_sync(net):
        loss = net(X).sum()
    runner.backward(loss)
    optimizer.step()


def _closure_inside(runner, net, optimizer):
    with runner.no_backward_sync(net):
        optimizer.step(lambda: runner.backward(net(X).sum()))


def _model_said(runner, net, optimizer):
    other = runner.setup(model())
    with runner.no_backward_sync(net):
        runner.backward(net(X).sum(), net)
    runner.backward(other(X).sum(), other)
    optimizer.step()


@pytest.mark.parametrize("wrong", [_step_inside, _call_inside, _closure_inside, _model_said])
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
        runner.backward(net(X).sum())
        optimizer.step()
        assert not torch.equal(net.module[0].weight, before)
        with runner.no_backward_sync(net):
            optimizer.step()  # with gradients that have been shared

    threads(train)
    single(train)


def test_wrong_set_up():
    net, other = model(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters())
    stranger, twice = torch.optim.SGD(model().parameters()), "set up already"

    def wrong(runner):
        wrapped, stepped = runner.setup(net, optimizer)
        loader = runner.setup_dataloaders(DataLoader(samples(2)))
        for method, args, error, message in [
            ("setup", [3], InputTypeError, "nn.Module, first; got a int"),
            ("setup", [other, other], InputTypeError, "after the model, got a Linear"),
            ("setup", [other, stranger], ConfigurationError, "steps no parameter of the Linear"),
            ("setup", [net], ConfigurationError, twice),
            ("setup", [wrapped], ConfigurationError, twice),
            ("setup", [other, stepped], ConfigurationError, twice),
            ("setup", [other, optimizer], ConfigurationError, twice),
            ("setup_dataloaders", [loader], ConfigurationError, twice),
            ("setup_dataloaders", ["abc"], InputTypeError, "takes loaders"),
            ("setup_dataloaders", [net], InputTypeError, "takes loaders"),
            ("setup_dataloaders", [], InputTypeError, "at least one"),
            ("no_backward_sync", [net], InputTypeError, "that setup returned"),
            ("clip_gradients", [net, stepped], InputTypeError, "that setup returned"),
            ("clip_gradients", [wrapped, stepped], ConfigurationError, "either max_norm"),
        ]:
            with pytest.raises(error, match=message):
                getattr(runner, method)(*args)
        for limit in (-1, 0, "1", True):
            for name in ("max_norm", "clip_value"):
                with pytest.raises(ConfigurationError, match="must be a positive number, or None"):
                    runner.clip_gradients(wrapped, stepped, **{name: limit})
        runner.clip_gradients(wrapped, stepped, max_norm=1.0, norm_type=float("inf"))

    single(wrong)

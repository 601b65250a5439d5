"""Gradients of losses over tokens are those of one process that has all tokens at once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distmetrics import ConfigurationError, InputError, Runner
from distmetrics.train import Callback, Trainer
from tests.run.threads import Threads
from tests.strategies import tokens
from tests.strategies.common import in_ranks


def assert_same(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def threads(fn, world_size=2, **flags):
    return Runner(strategy=Threads(), devices=world_size, **flags).launch(fn)


def single(fn):
    return Runner(strategy="single", accelerator="cpu").launch(fn)


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (1, {"accumulated": 4}),
        (2, {"clip": 0.1}),
        (3, {"accumulated": 2, "clip": 0.1}),
        # gradients are the mean after each backward
        (1, {"accumulated": 3, "in_blocks": False}),
        (2, {"accumulated": 3, "in_blocks": False}),
        (2, {"empty_from": 12}),  # a rank never has a token
    ],
)
def test_weights_of_one_process(world_size, options):
    loose = {name: value for name, value in options.items() if name in ("clip", "empty_from")}
    for weights in threads(lambda runner: tokens.loop(runner, **options), world_size):
        assert_same(weights, tokens.one_process(**loose))


@pytest.mark.parametrize(("precision", "world_size", "tolerance"), [("bf16", 2, 5e-2), (64, 1, 1e-6), (16, 2, 1e-2)])
def test_precision(precision, world_size, tolerance):
    """Torch's default dtype is the process's; a scaled loss stays in the range of float16."""

    def scaled(runner):
        return tokens.loop(runner, 2, 0.1), runner.strategy.precision.scaler.get_scale()

    for weights, scale in threads(scaled, world_size, precision=precision):
        assert_same(weights, tokens.one_process(clip=0.1), tolerance)
        assert scale == (2**16 if precision == 16 else 1)  # no step has overflowed


def fitted(strategy, batch_size, *, module=None, devices=2, **flags):
    module, flags = module or tokens.Tokens(), {"accelerator": "cpu", "max_epochs": 1} | flags
    trainer = Trainer(strategy=strategy, devices=devices, **flags)
    trainer.fit(module, None if type(module) is tokens.Cut else tokens.loader(batch_size))
    return tokens.state_of(module.net)


def launched(strategy):
    runner = Runner(strategy=strategy, devices=2, accelerator="cpu")
    return runner.launch(tokens.loop, 2)


def in_one_world():
    updates = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    looped = [launched(name) for name in ("ddp", "ddp_sharded", "fsdp")]
    clipped = [fitted(name, 6, **updates) for name in ("ddp", "fsdp")]
    return looped, clipped, fitted("ddp", 0, module=tokens.Cut(), use_distributed_sampler=False)


def test_weights_of_one_process_over_replicas():
    found = fitted("dp", tokens.SEQUENCES // 4, devices=3, accumulate_grad_batches=4)
    assert_same(found, tokens.one_process())


@pytest.mark.gloo
def test_weights_of_one_process_under_each_strategy():
    for looped, clipped, cut in in_ranks(2, in_one_world):
        for weights in looped:
            assert_same(weights, tokens.one_process())
        for weights in clipped:
            assert_same(weights, tokens.one_process(clip=0.1))
        assert_same(cut, tokens.one_process(cut_at=tokens.CUT_AT))  # without a batch: no weight


def by_turns(runner):
    """Step the halves of a model one after the other, each by a loss of its own."""
    net = tokens.model()
    halves = [torch.optim.SGD(net[index].parameters(), 0.1) for index in (0, 2)]
    net, first, last = runner.setup(net, *halves)
    for x, y in tokens.micro_batches(runner.global_rank, runner.world_size, 1):
        for sign, optimizer in ((1, first), (-1, last)):
            optimizer.zero_grad()
            loss, count = tokens.loss_of(net, x, y)
            runner.backward(sign * loss, weight=count)
            optimizer.step()
    return tokens.state_of(net)


def test_optimizers_that_step_by_turns():
    (expected,) = threads(by_turns, 1)
    for found in threads(by_turns):
        assert_same(found, expected)


def discards(index, module, optimizer, loss_of, backward):
    """Make a backward pass that is thrown away, by the module or the optimizer, and one that counts."""
    for repeat in range(2):
        loss, count = loss_of()
        backward(loss * (repeat or 9.0), weight=count + 5 * (1 - repeat))
        if not repeat:
            [optimizer, module][index % 2].zero_grad(set_to_none=index % 3 > 0)
    optimizer.step()
    optimizer.zero_grad()


class Discards(tokens.Tokens):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss_of = partial(tokens.loss_of, self.net, *batch)
        discards(batch_idx, self, self.optimizers(), loss_of, self.manual_backward)


def test_what_is_discarded_does_not_count():
    def fit(runner):
        net = tokens.model()
        net, optimizer = runner.setup(net, tokens.optimizer_of(net))
        for index, batch in enumerate(tokens.micro_batches(runner.global_rank, runner.world_size, 1)):
            discards(index, net, optimizer, partial(tokens.loss_of, net, *batch), runner.backward)
        return tokens.state_of(net)

    manual = fitted("single", tokens.SEQUENCES, devices=1, module=Discards())
    for found in (*threads(fit), manual):
        assert_same(found, tokens.one_process())


def slope(model, x):
    """Return a loss of a linear model, whose weights have the gradient ``x``."""
    return model(torch.full((1, 2), float(x))).sum()


def learner(runner, **options):
    net = nn.Linear(2, 1, **options)
    return runner.setup(net, torch.optim.SGD(net.parameters(), 0.1))


def mixed(first, second, runner):
    model, _ = learner(runner)
    runner.backward(slope(model, 1), weight=first)
    runner.backward(slope(model, 1), weight=second)


def sums(end, runner):
    model, optimizer = learner(runner)
    with runner.no_backward_sync(model):
        runner.backward(slope(model, 1), weight=3)
        if end == "clip":
            runner.clip_gradients(model, optimizer, clip_value=0.1)
    optimizer.step()


def apart(runner):
    net = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in "ab"})
    net.forward = lambda x: net["a"](x) + net["b"](x)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in net.values()]
    model, often, _ = runner.setup(net, *optimizers)
    for x, weight in ((1, 1), (5, 3)):
        runner.backward(slope(model, x), weight=weight)
        often.step()
        often.zero_grad()


def several(runner):
    model, _ = learner(runner)
    runner.setup(nn.Linear(2, 1).requires_grad_(False))  # a teacher
    runner.backward(slope(model, 3), weight=2)
    runner.setup(nn.Linear(2, 1))
    runner.backward(slope(model, 3), model, weight=2)


NO_WEIGHT = "the weight of a loss must be a number from 0 on, got"


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        (partial(mixed, 3, None), ConfigurationError, "some losses of an update have a weight, and others"),
        (partial(mixed, None, 3), ConfigurationError, "some losses of an update have a weight, and others"),
        *[(partial(mixed, wrong, 1), InputError, NO_WEIGHT) for wrong in (-1, float("nan"), "3", True, torch.ones(2))],
        (partial(sums, "step"), ConfigurationError, "not divided by the sum of the weights"),
        (partial(sums, "clip"), ConfigurationError, "gradients of the SGD of Linear are sums"),
        (apart, ConfigurationError, "some optimizers of the model have stepped or cleared"),
        (several, ConfigurationError, "has a weight, and 2 models are set up to be trained"),
    ],
)
def test_weights_that_make_no_sense(fit, error, message):
    with pytest.raises(error, match=message):
        single(fit)


def test_what_may_be_mixed():
    def fit(runner):
        net = tokens.model()
        model, optimizer = runner.setup(net, torch.optim.SGD(net[2].parameters(), 0.0))
        frozen = runner.setup(nn.Linear(2, 1).requires_grad_(False))
        found = []
        for weight in (2, None, 3):  # updates with a weight, and without; nothing steps the first layer
            runner.backward(model(torch.ones(1, 4)).sum(), model, weight=weight)
            found.append(net[2].bias.grad.clone())
            optimizer.step()
            optimizer.zero_grad()
        x = torch.ones(1, 2, requires_grad=True)
        runner.backward(frozen(x).sum(), frozen, weight=2)
        return [torch.equal(found[0], each) for each in found], torch.equal(x.grad, frozen.weight)

    assert single(fit) == ([True] * 3, True)


class Recomputed(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=self.is_reentrant)


class Itself(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight


@pytest.mark.parametrize("is_reentrant", [True, False, None])
def test_a_loss_of_weight_0_may_be_nan(is_reentrant):
    """Also through a checkpoint that computes again, or where it is a parameter itself."""

    def fit(runner):
        model = runner.setup(Itself() if is_reentrant is None else Recomputed(2, 3))
        model.module.is_reentrant = is_reentrant
        out = model(torch.ones(4, 2))
        loss = out if out.ndim == 0 else (out.sum(1) * 0).sum() / (out.sum() * 0)
        with torch.autograd.set_detect_anomaly(True), torch.set_grad_enabled(out.ndim > 0):
            runner.backward(loss, weight=0)
        return model.weight.grad

    assert not single(fit).any()


class At(Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("step", [1, 3])
def test_a_fit_goes_on_bit_for_bit(step, tmp_path):
    """In the middle of an update, and between two: weights count in the same unit."""
    path = tmp_path / "at.ckpt"
    flags = {"devices": 1, "accumulate_grad_batches": 4, "callbacks": At(step, path)}
    whole = fitted("single", 6, **flags)
    module = tokens.Tokens()
    trainer = Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4)
    trainer.fit(module, tokens.loader(6), ckpt_path=path)
    assert_same(tokens.state_of(module.net), whole, 0.0)


class Weighs(tokens.Tokens):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        return {"loss": loss.nan_to_num(), "weight": self.weight}


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_what_a_training_step_returns_for_a_weight(strategy):
    flags = {"devices": 1 + (strategy == "dp"), "limit_train_batches": 2, "terminate_on_nan": True}
    for wrong in ("3", torch.ones(2), -1):
        with pytest.raises(InputError, match=NO_WEIGHT):
            fitted(strategy, 12, module=Weighs(wrong), **flags)
    fitted(strategy, 12, module=Weighs(None), **flags)

"""Gradients of losses over tokens are those of one process that has all tokens at once."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from distmetrics import ConfigurationError, InputError, Runner
from distmetrics.train import Module, Trainer
from tests.run.test_resume import Saver, Stop
from tests.run.test_runner import single, threads
from tests.strategies.common import in_ranks

STEPS, SEQUENCES, LONGEST = 10, 24, 7
CUT_AT = 7
EMPTY_STEP = 4  # in which no rank has a token
IGNORED = -100


def sequences(empty_from: int = 18, cut_at: int = STEPS):
    """Return features and labels of every step's sequences.

    From ``empty_from`` on they have no tokens, nor has the second half of a step from ``cut_at``.
    """
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(STEPS * SEQUENCES, LONGEST, 4, generator=generator)
    y = torch.randint(3, (STEPS * SEQUENCES, LONGEST), generator=generator)
    lengths = torch.randint(LONGEST + 1, (STEPS * SEQUENCES,), generator=generator)
    rows = torch.arange(STEPS * SEQUENCES)
    lengths[(rows // SEQUENCES >= cut_at) & (rows % SEQUENCES >= SEQUENCES // 2)] = 0
    lengths[(rows % SEQUENCES >= empty_from) | (rows // SEQUENCES == EMPTY_STEP)] = 0
    y[torch.arange(LONGEST) >= lengths[:, None]] = IGNORED
    return x, y


torch.manual_seed(3)
_MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def fresh():
    return copy.deepcopy(_MODEL)


def optimizer_of(net):
    return torch.optim.AdamW(net.parameters(), lr=0.05)


def loss_of(net, x, y):
    """Return the mean over tokens, NaN where there are none, and their number."""
    loss = nn.functional.cross_entropy(net(x.flatten(0, 1)), y.flatten(), ignore_index=IGNORED)
    return loss, int((y != IGNORED).sum())


def state_of(net):
    return {name: value.detach().float().clone() for name, value in net.state_dict().items()}


def one_process(*, clip=None, empty_from=18, cut_at=STEPS):
    """Return the weights after steps on all of each step's tokens; gradients of none are zero."""
    net = fresh()
    optimizer = optimizer_of(net)
    parts = (part.split(SEQUENCES) for part in sequences(empty_from, cut_at))
    for x, y in zip(*parts, strict=True):
        optimizer.zero_grad()
        loss, count = loss_of(net, x, y)
        loss.backward()
        if not count:
            for parameter in net.parameters():
                parameter.grad.zero_()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return state_of(net)


def micro_batches(rank, world_size, accumulated, empty_from=18):
    """Return what one rank gets: for each step so many micro-batches."""
    size = SEQUENCES // world_size // accumulated
    parts = (part.split(size) for part in sequences(empty_from))
    return list(zip(*parts, strict=True))[rank::world_size]


def loop(runner, accumulated=1, clip=None, in_blocks=True, empty_from=18):
    """Train by a runner, and return the weights."""
    net = fresh()
    net, optimizer = runner.setup(net, optimizer_of(net))
    batches = micro_batches(runner.global_rank, runner.world_size, accumulated, empty_from)
    for index, (x, y) in enumerate(batches, 1):
        is_last = index % accumulated == 0
        with runner.no_backward_sync(net, enabled=in_blocks and not is_last):
            loss, count = loss_of(net, x, y)
            runner.backward(loss, weight=count)
        if is_last:
            if clip is not None:
                runner.clip_gradients(net, optimizer, max_norm=clip)
            optimizer.step()
            optimizer.zero_grad()
    return state_of(net)


class Tokens(Module):
    """The same for the trainer."""

    def __init__(self):
        super().__init__()
        self.net = fresh()

    def training_step(self, batch, batch_idx):
        loss, count = loss_of(self.net, *batch)
        return {"loss": loss, "weight": count}

    def configure_optimizers(self):
        return optimizer_of(self)


class Cut(Tokens):
    """The second of two ranks has batches for the first steps alone."""

    def train_dataloader(self):
        batches = micro_batches(self.global_rank, 2, 1)
        return batches if self.global_rank == 0 else batches[:CUT_AT]


def loader(batch_size, empty_from=18):
    return DataLoader(TensorDataset(*sequences(empty_from)), batch_size)


def assert_same(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("world_size", "options", "precision"),
    [
        (1, {"accumulated": 4}, 32),
        (3, {"accumulated": 2, "clip": 0.1}, 32),
        # gradients are the mean after each backward
        (1, {"accumulated": 3, "in_blocks": False}, 32),
        (2, {"accumulated": 3, "in_blocks": False}, 32),
        (2, {"empty_from": 12}, 32),  # a rank never has a token
        # torch's default dtype is the process's; a scaled loss stays in the range of float16
        *[(ranks, {"accumulated": 2, "clip": 0.1}, precision) for ranks, precision in ((2, "bf16"), (1, 64), (2, 16))],
    ],
)
def test_weights_of_one_process(world_size, options, precision):
    def looped(runner):
        return loop(runner, **options), runner.strategy.precision.scaler.get_scale()

    expected = one_process(clip=options.get("clip"), empty_from=options.get("empty_from", 18))
    for weights, scale in threads(looped, world_size, precision=precision):
        assert_same(weights, expected, {"bf16": 5e-2, 16: 1e-2}.get(precision, 1e-6))
        assert scale == (2**16 if precision == 16 else 1)  # no step has overflowed


def fitted(strategy, batch_size, *, module=None, devices=2, ckpt_path=None, **flags):
    module, flags = module or Tokens(), {"accelerator": "cpu", "max_epochs": 1} | flags
    trainer = Trainer(strategy=strategy, devices=devices, **flags)
    data = None if type(module) is Cut else loader(batch_size)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return state_of(module.net)


def launched(strategy):
    runner = Runner(strategy=strategy, devices=2, accelerator="cpu")
    return runner.launch(loop, 2)


def in_one_world():
    updates = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    looped = [launched(name) for name in ("ddp", "ddp_sharded", "fsdp")]
    clipped = [fitted(name, 6, **updates) for name in ("ddp", "fsdp")]
    return looped, clipped, fitted("ddp", 0, module=Cut(), use_distributed_sampler=False)


def test_weights_of_one_process_over_replicas():
    found = fitted("dp", SEQUENCES // 4, devices=3, accumulate_grad_batches=4)
    assert_same(found, one_process())


@pytest.mark.gloo
def test_weights_of_one_process_under_each_strategy():
    for looped, clipped, cut in in_ranks(2, in_one_world):
        for weights in looped:
            assert_same(weights, one_process())
        for weights in clipped:
            assert_same(weights, one_process(clip=0.1))
        assert_same(cut, one_process(cut_at=CUT_AT))  # without a batch: no weight


def by_turns(runner):
    """Step the halves of a model one after the other, each by a loss of its own."""
    net = fresh()
    halves = [torch.optim.SGD(net[index].parameters(), 0.1) for index in (0, 2)]
    net, first, last = runner.setup(net, *halves)
    for x, y in micro_batches(runner.global_rank, runner.world_size, 1):
        for sign, optimizer in ((1, first), (-1, last)):
            optimizer.zero_grad()
            loss, count = loss_of(net, x, y)
            runner.backward(sign * loss, weight=count)
            optimizer.step()
    return state_of(net)


def test_optimizers_that_step_by_turns():
    (expected,) = threads(by_turns, 1)
    for found in threads(by_turns):
        assert_same(found, expected)


def discards(index, module, optimizer, of_batch, backward):
    """Make a backward pass that is thrown away, by the module or the optimizer, and one that counts."""
    for repeat in range(2):
        loss, count = of_batch()
        backward(loss * (repeat or 9.0), weight=count + 5 * (1 - repeat))
        if not repeat:
            [optimizer, module][index % 2].zero_grad(set_to_none=index % 3 > 0)
    optimizer.step()
    optimizer.zero_grad()


class Discards(Tokens):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        of_batch = partial(loss_of, self.net, *batch)
        discards(batch_idx, self, self.optimizers(), of_batch, self.manual_backward)


def test_what_is_discarded_does_not_count():
    def fit(runner):
        net = fresh()
        net, optimizer = runner.setup(net, optimizer_of(net))
        for index, batch in enumerate(micro_batches(runner.global_rank, runner.world_size, 1)):
            discards(index, net, optimizer, partial(loss_of, net, *batch), runner.backward)
        return state_of(net)

    manual = fitted("single", SEQUENCES, devices=1, module=Discards())
    for found in (*threads(fit), manual):
        assert_same(found, one_process())


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
        net = fresh()
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


@pytest.mark.parametrize("step", [1, 3])
def test_a_fit_goes_on_bit_for_bit(step, tmp_path):
    """In the middle of an update, and between two: weights count in the same unit."""
    path, flags = tmp_path / "at.ckpt", {"devices": 1, "accumulate_grad_batches": 4}
    whole = fitted("single", 6, **flags)
    with pytest.raises(Stop):
        fitted("single", 6, callbacks=Saver(path, "batch", 0, step), **flags)
    assert_same(fitted("single", 6, ckpt_path=path, **flags), whole, 0.0)


class Weighs(Tokens):
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

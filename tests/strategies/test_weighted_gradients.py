"""Gradients of losses over tokens are those of one process that has all tokens at once."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from distmetrics import ConfigurationError, InputError, Runner
from distmetrics.train import Callback, Module, Trainer
from tests.runner.threads import Threads
from tests.strategies import tokens
from tests.strategies.common import in_ranks


def assert_same(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


def runner(strategy, devices, **flags):
    return Runner(strategy=strategy, devices=devices, accelerator="cpu", **flags)


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("accumulated", [1, 2, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_weights_of_one_process(world_size, accumulated, clip):
    found = runner(Threads(), world_size).launch(tokens.loop, accumulated, clip)
    for weights in found:
        assert_same(weights, tokens.one_process(clip=clip))


def test_a_mean_of_means_would_be_another():
    plain = runner(Threads(), 2).launch(unweighted)[0]
    expected = tokens.one_process()
    assert max((plain[name] - value).abs().max() for name, value in expected.items()) > 1e-3


def unweighted(runner):
    backward = runner.backward
    runner.backward = lambda loss, weight: backward(loss if weight else loss.nan_to_num())
    return tokens.loop(runner, 2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_are_the_mean_after_each_backward(world_size):
    """Also where micro-batches are not in a block: each is added to the mean of those before."""
    found = runner(Threads(), world_size).launch(tokens.loop, 3, in_blocks=False)
    for weights in found:
        assert_same(weights, tokens.one_process())


@pytest.mark.gloo
@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_sharded_spawn", "fsdp_spawn"])
@pytest.mark.parametrize(("world_size", "accumulated"), [(2, 1), (2, 2), (3, 4)])
def test_weights_of_one_process_under_a_strategy(strategy, world_size, accumulated):
    expected = tokens.one_process(clip=0.1)
    assert_same(runner(strategy, world_size).launch(tokens.loop, accumulated, 0.1), expected)
    trainer = Trainer(
        strategy=strategy,
        devices=world_size,
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulated,
        gradient_clip_val=0.1,
        enable_checkpointing=False,
    )
    module = tokens.Tokens()
    trainer.fit(module, tokens.loader(tokens.SEQUENCES // world_size // accumulated))
    assert trainer.global_step == tokens.STEPS
    assert_same(module.net.state_dict(), expected)


def cut():
    trainer = Trainer(
        strategy="ddp",
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        use_distributed_sampler=False,
        enable_checkpointing=False,
    )
    module = tokens.Cut()
    trainer.fit(module)
    return {name: value.detach().clone() for name, value in module.net.state_dict().items()}


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_a_rank_without_a_batch_has_no_weight():
    for found in in_ranks(2, cut):
        assert_same(found, tokens.one_process(cut_at=tokens.CUT_AT))


def by_trainer(strategy, devices, batch_size, **flags):
    trainer = Trainer(
        strategy=strategy, devices=devices, accelerator="cpu", max_epochs=1, enable_checkpointing=False, **flags
    )
    module = tokens.Tokens()
    trainer.fit(module, tokens.loader(batch_size))
    return {name: value.detach().clone() for name, value in module.net.state_dict().items()}


@pytest.mark.parametrize("accumulated", [1, 4])
def test_replicas(accumulated):
    found = by_trainer("dp", 3, tokens.SEQUENCES // accumulated, accumulate_grad_batches=accumulated)
    assert_same(found, tokens.one_process())


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_replicas_on_two_machines():
    for found in in_ranks(2, by_trainer, "ddp2", 2, 12):
        assert_same(found, tokens.one_process())


def scaled(runner):
    """Return the weights, and how often the loss' scale has made a step too large."""
    scale = runner.strategy.precision
    weights = tokens.loop(runner, 2, 0.1)
    return weights, scale.state()["grad_scaler"]["scale"]


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 5e-2), (64, 1e-6), (16, 1e-2)])
def test_precision(precision, tolerance):
    ranks = 1 if precision == 64 else 2  # torch's default dtype is the process's, and not a thread's
    found = runner(Threads(), ranks, precision=precision).launch(tokens.loop, 2, 0.1)
    for weights in found:
        assert_same(weights, tokens.one_process(clip=0.1), tolerance)


def test_a_scaled_loss_stays_in_the_range_of_float16():
    for _, scale in runner(Threads(), 2, precision=16).launch(scaled):
        assert scale == 2**16  # where torch's scale begins: no step has overflowed


def test_a_rank_that_never_has_a_token():
    expected = tokens.one_process(empty_from=12)
    for found in runner(Threads(), 2).launch(tokens.loop, 1, empty_from=12):
        assert_same(found, expected)


def two_optimizers(runner, weighted=True):
    """Step the halves of a model one after the other, each by a loss of its own."""
    net = tokens.model()
    net, first, last = runner.setup(
        net, torch.optim.SGD(net[0].parameters(), 0.1), torch.optim.SGD(net[2].parameters(), 0.1)
    )
    for x, y in tokens.micro_batches(runner.global_rank, runner.world_size, 1):
        for sign, optimizer in ((1, first), (-1, last)):
            optimizer.zero_grad()
            loss, count = tokens.loss_of(net, x, y)
            runner.backward(sign * loss, weight=count)
            optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


def test_optimizers_that_step_by_turns():
    (expected,) = runner(Threads(), 1).launch(two_optimizers)
    for found in runner(Threads(), 2).launch(two_optimizers):
        assert_same(found, expected)


def test_what_is_discarded_does_not_count():
    def fit(runner):
        net = tokens.model()
        net, optimizer = runner.setup(net, tokens.optimizer_of(net))
        for index, (x, y) in enumerate(tokens.micro_batches(runner.global_rank, runner.world_size, 1)):
            for repeat in range(2):
                loss, count = tokens.loss_of(net, x, y)
                runner.backward(loss * (repeat or 9.0), weight=count + 5 * (1 - repeat))
                if not repeat:
                    [optimizer, net][index % 2].zero_grad(set_to_none=index % 3 > 0)
            optimizer.step()
            optimizer.zero_grad()
        return {name: value.clone() for name, value in net.state_dict().items()}

    for found in runner(Threads(), 2).launch(fit):
        assert_same(found, tokens.one_process())


def mixed(runner, weights):
    net = tokens.model()
    net, optimizer = runner.setup(net, tokens.optimizer_of(net))
    for weight in weights:
        loss, _ = tokens.loss_of(net, torch.ones(1, 2, 4), torch.ones(1, 2, dtype=torch.long))
        runner.backward(loss, weight=weight)
    return optimizer


@pytest.mark.parametrize("weights", [[3, None], [None, 3]])
def test_all_losses_of_an_update_have_a_weight_or_none(weights):
    with pytest.raises(ConfigurationError, match="some losses of an update have a weight, and others have none"):
        runner("single", 1).launch(mixed, weights)


@pytest.mark.parametrize("weight", [-1, float("nan"), "3", torch.ones(2), True])
def test_what_is_no_weight(weight):
    with pytest.raises(InputError, match="the weight of a loss must be a number from 0 on, got"):
        runner("single", 1).launch(mixed, [weight])


def test_a_sum_is_not_stepped_with():
    def fit(runner):
        net = tokens.model()
        net, optimizer = runner.setup(net, tokens.optimizer_of(net))
        with runner.no_backward_sync(net):
            loss, count = tokens.loss_of(net, torch.ones(1, 2, 4), torch.ones(1, 2, dtype=torch.long))
            runner.backward(loss, weight=count)
        optimizer.step()

    with pytest.raises(ConfigurationError, match="not divided by the sum of the weights"):
        runner("single", 1).launch(fit)


def slope(model, x):
    """Return a loss of a linear model, whose weights have the gradient ``x``."""
    return model(torch.full((1, 2), float(x))).sum()


def test_optimizers_that_step_after_different_numbers_of_losses():
    def fit(runner):
        net = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1, bias=False) for name in "ab"})
        net.forward = lambda x: net["a"](x) + net["b"](x)
        model, often, _ = runner.setup(net, *(torch.optim.SGD(part.parameters(), 0.1) for part in net.values()))
        for x, weight in ((1, 1), (5, 3)):
            runner.backward(slope(model, x), weight=weight)
            often.step()
            often.zero_grad()

    with pytest.raises(ConfigurationError, match="some optimizers of the model have stepped or cleared"):
        runner("single", 1).launch(fit)


def test_discarded_beside_parameters_that_nothing_steps():
    def fit(runner):
        net = tokens.model()
        model, optimizer = runner.setup(net, torch.optim.SGD(net[2].parameters(), 0.1))
        found = []
        for _ in range(2):
            runner.backward(model(torch.ones(1, 4)).sum(), weight=5)
            found.append(net[2].bias.grad.clone())
            optimizer.zero_grad()
        return found

    first, second = runner("single", 1).launch(fit)
    torch.testing.assert_close(first, second)


def test_several_models_that_are_trained():
    def fit(runner):
        model = runner.setup(torch.nn.Linear(2, 1))
        teacher = torch.nn.Linear(2, 1).requires_grad_(False)
        runner.setup(teacher)
        runner.backward(slope(model, 3), weight=2)
        runner.setup(torch.nn.Linear(2, 1))
        runner.backward(slope(model, 3), model, weight=2)

    with pytest.raises(ConfigurationError, match="has a weight, and 2 models are set up to be trained"):
        runner("single", 1).launch(fit)


def test_a_frozen_model_through_which_an_input_is_learnt():
    def fit(runner):
        model = runner.setup(torch.nn.Linear(2, 1).requires_grad_(False))
        x = torch.ones(1, 2, requires_grad=True)
        runner.backward(model(x).sum(), weight=2)
        return torch.equal(x.grad, model.weight)

    assert runner("single", 1).launch(fit)


def test_updates_with_and_without_a_weight():
    def fit(runner):
        net = torch.nn.Linear(2, 1, bias=False)
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        found = []
        for weight in (2, None, 3):
            runner.backward(slope(model, 4), weight=weight)
            found.append(net.weight.grad[0, 0].item())
            optimizer.step()
            optimizer.zero_grad()
        return found

    assert runner("single", 1).launch(fit) == [4, 4, 4]


class At(Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("step", [1, 3])
def test_a_fit_goes_on_bit_for_bit(step, tmp_path):
    """In the middle of an update, and between two: weights count in the same unit."""
    found = []
    for callbacks, path in ([At(step, tmp_path / "at.ckpt")], None), ([], tmp_path / "at.ckpt"):
        trainer = Trainer(
            strategy="single",
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=4,
            enable_checkpointing=False,
            callbacks=callbacks,
        )
        module = tokens.Tokens()
        trainer.fit(module, tokens.loader(6), ckpt_path=path)
        found.append(module.net.state_dict())
    assert_same(found[1], found[0], 0.0)


def test_a_sum_is_not_clipped():
    def fit(runner):
        net = torch.nn.Linear(2, 1)
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        with runner.no_backward_sync(model):
            runner.backward(slope(model, 1), weight=3)
            runner.clip_gradients(model, optimizer, clip_value=0.1)

    with pytest.raises(ConfigurationError, match="gradients of the SGD of Linear are sums"):
        runner("single", 1).launch(fit)


class Recomputed(torch.nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=self.is_reentrant)


def over_nothing(out):
    return (out.sum(1) * 0).sum() / (out.sum() * 0)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_loss_of_nan_through_a_checkpoint(is_reentrant):
    def fit(runner):
        model = runner.setup(Recomputed(2, 3))
        model.module.is_reentrant = is_reentrant
        with torch.autograd.set_detect_anomaly(True):
            runner.backward(over_nothing(model(torch.ones(4, 2))), weight=0)
        return model.weight.grad

    assert not runner("single", 1).launch(fit).any()


class Itself(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.value = torch.nn.Parameter(torch.ones(()))

    def forward(self):
        return self.value


def test_a_loss_that_is_a_parameter():
    def fit(runner):
        model = runner.setup(Itself())
        loss = model()
        with torch.no_grad():
            runner.backward(loss, weight=0)
        return model.value.grad.item()

    assert runner("single", 1).launch(fit) == 0


class Weighs(tokens.Tokens):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx)["loss"].nan_to_num(), "weight": self.weight}


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("dp", 2)])
@pytest.mark.parametrize("weight", ["3", torch.ones(2), -1, None])
def test_what_a_training_step_returns_for_a_weight(strategy, devices, weight):
    trainer = Trainer(
        strategy=strategy,
        devices=devices,
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=2,
        terminate_on_nan=True,
        enable_checkpointing=False,
    )
    refused = pytest.raises(InputError, match="the weight of a loss must be a number from 0 on, got")
    with refused if weight is not None else nullcontext():
        trainer.fit(Weighs(weight), tokens.loader(12))


class Discards(Module):
    def __init__(self, set_to_none, whole):
        super().__init__()
        self.automatic_optimization = False
        self.net, self.set_to_none, self.whole = tokens.model(), set_to_none, whole

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for repeat in range(2):
            loss, count = tokens.loss_of(self.net, *batch)
            self.manual_backward(loss * (repeat or 9.0), weight=count + 5 * (1 - repeat))
            if not repeat:
                (self if self.whole else optimizer).zero_grad(set_to_none=self.set_to_none)
        optimizer.step()

    def configure_optimizers(self):
        return tokens.optimizer_of(self)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_a_manual_step_discards_does_not_count(set_to_none, whole):
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=1, enable_checkpointing=False)
    module = Discards(set_to_none, whole)
    trainer.fit(module, tokens.loader(tokens.SEQUENCES))
    assert_same(module.net.state_dict(), tokens.one_process())

"""What a module may override beside its steps: the ends of steps and epochs, predictions; and wrong signatures."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.train import Callback, DataModule, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads

WORLDS = [("single", 1), ("threads", 2), ("threads", 3)]


def make(world=("single", 1), **flags):
    name, devices = world
    strategy = Threads() if name == "threads" else name
    return Trainer(**({"strategy": strategy, "devices": devices, "accelerator": "cpu", "max_epochs": 1} | flags))


class Ends(Logistic):
    """Computes losses and values in the ends of its steps."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"logits": self(x), "y": y}

    def training_step_end(self, outputs):
        loss = nn.functional.binary_cross_entropy_with_logits(outputs["logits"], outputs["y"])
        self.log("train_loss", loss, on_epoch=True)
        return {"loss": loss, "pred": outputs["logits"] > 0}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return self(x), y

    def validation_step_end(self, outputs):
        logits, y = outputs
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(logits, y))

    test_step, test_step_end = validation_step, validation_step_end


@pytest.mark.parametrize("world", WORLDS[:2])
def test_ends_of_steps_are_called_under_every_strategy(world):
    plain, ends = Logistic(), Ends()
    make(world).fit(plain, loader(8))
    run = make(world)
    run.fit(ends, loader(8))
    assert torch.equal(plain.layer.weight, ends.layer.weight)
    assert run.callback_metrics["train_loss"] > 0
    data = loader(7, 2, seed=1)
    for stage in ("validate", "test"):
        (found,) = getattr(run, stage)(ends, data)
        (expected,) = getattr(make(world), stage)(plain, data)
        assert found["val_loss"] == expected["val_loss"]


class Concatenates(Ends):
    def __init__(self):
        super().__init__()
        self.found = []

    def training_epoch_end(self, outputs):
        assert not any(out["loss"].requires_grad for out in outputs)
        self.found.append(torch.cat([out["pred"] for out in outputs]))
        self.log("mean_loss", torch.stack([out["loss"] for out in outputs]).mean())

    def validation_epoch_end(self, outputs):
        self.found.append(len(outputs))
        self.log("batches", len(outputs), reduce_fx="sum")


def test_outputs_of_an_epoch():
    run, module = make(max_epochs=2), Concatenates()
    run.fit(module, loader(10), loader(6, 2))
    shapes = [item if isinstance(item, int) else len(item) for item in module.found]
    assert shapes == [3, 10, 3, 10]  # batches of validation, predictions of training
    assert float(run.callback_metrics["mean_loss"]) > 0
    parallel = make(WORLDS[1])
    parallel.fit(Concatenates(), loader(8), loader(6, 2))
    assert float(parallel.callback_metrics["batches"]) == 4


class TwoLoaders(Logistic):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        return dataloader_idx

    def validation_epoch_end(self, outputs):
        self.found = outputs


def test_outputs_of_several_loaders():
    module = TwoLoaders()
    make().validate(module, [loader(4, 2), loader(2, 2)])
    assert module.found == [[0, 0], [1]]


def test_outputs_are_kept_for_no_one_else():
    alive = []

    class Watched(Logistic):
        def training_step(self, batch, batch_idx):
            gc.collect()
            alive.append(sum(ref() is not None for ref in refs))
            loss = super().training_step(batch, batch_idx)
            extra = torch.zeros(10)
            refs.append(weakref.ref(extra))
            return {"loss": loss, "extra": extra}

    refs = []
    make().fit(Watched(), loader(24))
    assert max(alive) <= 1


class Predicts(Logistic):
    def predict_step(self, batch, batch_idx):
        return {"x": batch[0], "logit": self(batch[0])}


@pytest.mark.parametrize("world", [*WORLDS, ("threads", 5)])
@pytest.mark.parametrize("count", [7, 2])
def test_predictions_come_in_the_order_of_the_data(world, count):
    data = loader(count, 2)
    module = Predicts()
    found = make(world).predict(module, data)
    expected = torch.cat([x for x, _ in data])
    assert torch.equal(torch.cat([item["x"] for item in found]), expected)
    torch.testing.assert_close(torch.cat([item["logit"] for item in found]), module(expected).detach())


def test_predictions_of_several_loaders_and_of_none():
    class Numbered(Logistic):
        def predict_step(self, batch, batch_idx, dataloader_idx):
            return dataloader_idx

    run = make()
    assert run.predict(Numbered(), [loader(4, 2), loader(2, 2)]) == [[0, 0], [1]]
    assert run.predict(Logistic(), [torch.zeros(2, 4)], return_predictions=False) is None
    (plain,) = run.predict(Logistic(), [torch.zeros(2, 4)])  # what the module returns when called
    assert plain.shape == (2,)
    assert len(make(limit_predict_batches=1).predict(Predicts(), loader(6, 2))) == 1

    class Data(DataModule):
        def predict_dataloader(self):
            return loader(4, 2)

    assert len(run.predict(Predicts(), datamodule=Data())) == 2


class HookCalls(Logistic):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(("start", batch_idx, len(batch[0])))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("from_hook", batch_idx, on_step=False, on_epoch=True, reduce_fx="sum")
        self.seen.append(("end", batch_idx, outputs.requires_grad))

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(("optimizer", type(optimizer).__name__, self.layer.weight.grad is not None))

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(("validation", outputs))

    def setup(self, stage):
        self.seen.append(stage)

    def teardown(self, stage):
        self.seen.append(stage)


def test_hooks_get_what_they_are_about():
    run, module = make(), HookCalls()
    run.fit(module, loader(8), loader(4))
    step = [("start", 0, 4), ("optimizer", "AdamW", True), ("end", 0, False)]
    assert module.seen[:4] == ["fit", *step]
    assert module.seen[-2:] == [("validation", None), "fit"]
    assert float(run.callback_metrics["from_hook"]) == 1.0


class WrongStep(Logistic):
    def training_step(self, batch):
        return None


class WrongHook(Logistic):
    def on_train_batch_end(self, batch_idx):
        pass


class OldOptimizers(Logistic):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return None


class OneLoader(Logistic):
    def validation_step(self, batch, batch_idx):
        return None


class OldHook(Logistic):
    def on_epoch_end(self):
        pass


class OldCallback(Callback):
    def on_sanity_check_start(self, trainer, module):
        pass


class WrongData(Logistic):
    def prepare_data(self, folder):
        pass


class WrongCallback(Callback):
    def on_train_batch_end(self, trainer, module, batch_idx):
        pass


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: make().fit(WrongStep(), loader(2)), r"WrongStep.training_step takes \(batch\), and is called with"),
        (
            lambda: make().fit(WrongHook(), loader(2)),
            r"Do:     def .*_batch_end\(self, outputs, batch, batch_idx\)",
        ),
        (lambda: make().fit(OldOptimizers(), loader(2)), "missing a required argument: 'optimizer_idx'"),
        (
            lambda: make().validate(OneLoader(), [loader(2), loader(2)]),
            r"with \(batch, batch_idx, dataloader_idx\)",
        ),
        (
            lambda: make().fit(OldHook(), loader(2)),
            r"OldHook.on_epoch_end would never be called.*\n.*on_train_epoch_end",
        ),
        (
            lambda: make(callbacks=OldCallback()).fit(Logistic(), loader(2)),
            "on_sanity_check_start would never be called",
        ),
        (
            lambda: make().fit(WrongData(), loader(2)),
            r"WrongData.prepare_data takes \(folder\), and is called with \(\)",
        ),
        (lambda: make(callbacks=WrongCallback()).fit(Logistic(), loader(2)), r"takes \(trainer, module, batch_idx\)"),
    ],
)
def test_wrong_signatures(action, message):
    with pytest.raises(ConfigurationError, match=message):
        action()


def test_an_attribute_is_no_hook():
    module = Logistic()
    module.backward = False
    make().fit(module, loader(2))


def test_a_failing_run_tells_callbacks():
    seen = []

    class Listens(Callback):
        def on_exception(self, trainer, module, exception):
            seen.append(str(exception))

    class Fails(Logistic):
        def training_step(self, batch, batch_idx):
            raise ValueError("bad pixel")

    with pytest.raises(ValueError, match="bad pixel"):
        make(callbacks=[Listens()]).fit(Fails(), loader(2))
    assert seen == ["bad pixel"]

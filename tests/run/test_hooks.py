"""What a module may override beside its steps, and what a batch and its values are taken for."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torchmetrics.classification import BinaryAccuracy

from distmetrics.errors import ConfigurationError
from distmetrics.train import Callback, DataModule
from tests.run.models import Logistic, Streamed, loader, loss_of, odd
from tests.run.threads import trainer

DP = {"strategy": "dp", "devices": 3}


class Ends(Logistic):
    """Computes losses and values in the ends of its steps, on what all replicas returned."""

    def __init__(self):
        super().__init__()
        self.hits, self.found = BinaryAccuracy(), []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        return {"loss": loss_of(logits, y), "logits": logits, "y": y}

    def training_step_end(self, outputs):
        self.losses = outputs["loss"].numel()
        loss = loss_of(outputs["logits"], outputs["y"])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "pred": outputs["logits"] > 0}

    def training_epoch_end(self, outputs):
        assert not any(out["loss"].requires_grad for out in outputs)
        self.found.append(torch.cat([out["pred"] for out in outputs]))
        self.log("mean_loss", torch.stack([out["loss"] for out in outputs]).mean())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return self(x), y

    def validation_step_end(self, outputs):
        logits, y = outputs
        self.hits.update(logits.sigmoid(), y)
        self.log("val_loss", loss_of(logits, y))
        self.log("val_accuracy", self.hits)

    def validation_epoch_end(self, outputs):
        self.found.append(outputs)
        self.log("batches", len(outputs), reduce_fx="sum")

    test_step, test_step_end = validation_step, validation_step_end


@pytest.mark.parametrize("flags", [{}, {"ranks": 2}, DP])
def test_ends_of_steps_are_called_under_every_strategy(flags):
    plain, ends = Logistic(), Ends()
    expected = trainer(max_epochs=2, **({} if flags == DP else flags))
    run, data = trainer(max_epochs=2, **flags), (loader(8), loader(7, 2, seed=1))
    expected.fit(plain, *data)
    run.fit(ends, *data)
    if flags == DP:
        assert ends.losses == 2  # one of each replica
    torch.testing.assert_close(ends.layer.state_dict(), plain.layer.state_dict())
    for name in ("train_loss", "val_loss", "val_accuracy"):
        assert float(run.callback_metrics[name]) == pytest.approx(expected.callback_metrics[name])
    assert float(run.callback_metrics["batches"]) == 4
    assert float(run.callback_metrics["mean_loss"]) > 0
    if not flags:  # batches of validation, predictions of training
        assert [len(each) for each in ends.found] == [4, 8, 4, 8]
    (found,), (wanted,) = run.test(ends, data[1]), expected.test(plain, data[1])
    assert found["val_loss"] == pytest.approx(wanted["val_loss"])


@pytest.mark.parametrize("ranks", [1, 3])
def test_predictions_come_in_the_order_of_the_data_and_by_loaders(ranks):
    for count in (7, 2):
        data, module = loader(count, 2), odd(predict_step=lambda self, batch, batch_idx: self(batch[0]))
        expected = module(torch.cat([x for x, _ in data])).detach()
        torch.testing.assert_close(torch.cat(trainer(ranks).predict(module, data)), expected)
    (plain,) = trainer().predict(Logistic(), [torch.zeros(2, 4)])  # by calling the module
    assert plain.shape == (2,)
    which, seen, nothing = lambda self, batch, batch_idx, dataloader_idx: dataloader_idx, [], Streamed([])
    module = odd(
        validation_step=which, predict_step=which, validation_epoch_end=lambda self, outputs: seen.extend(outputs)
    )
    trainer().validate(module, [loader(4, 2), loader(2, 2)])
    assert seen == [[0, 0], [1]]
    several = trainer(limit_predict_batches=2).predict(module, [loader(9, 2), loader(2, 2)])
    assert several == [[0, 0], [1]]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # it can't be dealt out
        with pytest.raises(ConfigurationError, match="validation loader gave no batch"):
            trainer(ranks).validate(Logistic(), nothing)
        assert trainer(ranks, limit_test_batches=0).test(Logistic(), nothing) == [{}]


class HookCalls(Logistic):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.backward = False  # an attribute is no hook

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(("start", batch_idx, len(batch[0])))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("from_hook", batch_idx, on_step=False, on_epoch=True, reduce_fx="sum")
        self.seen.append(("end", batch_idx, outputs.requires_grad))

    def on_before_optimizer_step(self, optimizer):
        has_gradient = self.layer.weight.grad is not None
        self.seen.append(("optimizer", type(optimizer).__name__, has_gradient))

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(("validation", outputs, self.trainer.num_batches))


def test_hooks_get_what_they_are_about():
    run, module = trainer(), HookCalls()
    run.fit(module, loader(8), loader(4))
    step = [("start", 0, 4), ("optimizer", "AdamW", True), ("end", 0, False)]
    assert (module.seen[:3], module.seen[-1]) == (step, ("validation", None, 1))
    assert float(run.callback_metrics["from_hook"]) == 1.0


class Watch(Callback):
    """Logs what the module's own hook logs, from outside."""

    def on_validation_batch_end(self, run, module, outputs, batch, batch_idx):
        module.log("outside", batch[0].sum())

    def on_train_batch_end(self, run, module, outputs, batch, batch_idx):
        if batch is not None:
            module.log("train_outside", batch[0].sum())

    def on_validation_epoch_end(self, run, module):
        assert {"inside", "outside"} <= run.callback_metrics.keys()


class Inside(Logistic):
    def training_step(self, batch, batch_idx):
        self.log("train_inside", batch[0].sum(), on_epoch=True, on_step=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("inside", batch[0].sum())


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_callback_logs_of_a_batch_weighs_as_the_batch(ranks):
    run = trainer(ranks, callbacks=[Watch()])
    run.fit(Inside(), loader(22), loader(21))
    found = {name: pytest.approx(float(value), rel=1e-12) for name, value in run.callback_metrics.items()}
    assert run.callback_metrics["outside"] == found["inside"]
    assert run.callback_metrics["train_outside"] == found["train_inside"]


NEVER = "would never be called"
SIGNATURES = [  # a class, a method of it, and what is said
    (Logistic, "training_step", lambda self, batch, batch_idx, optimizer_idx: None, "argument: 'optimizer_idx'"),
    (Logistic, "on_train_batch_end", lambda self, batch_idx: None, r"Do:     def .*d\(self, outputs, batch, batch_idx"),
    (Logistic, "prepare_data", lambda self, folder: None, r"data takes \(folder\), and is called with \(\)"),
    (Logistic, "on_epoch_end", lambda self: None, rf"Odd.on_epoch_end {NEVER}.*\n.*on_train_epoch_end"),
    (Logistic, "backward", lambda self, loss: None, f"Odd.backward {NEVER}"),
    (Callback, "on_sanity_check_start", lambda self, run, module: None, f"check_start {NEVER}"),
    (Callback, "on_train_batch_end", lambda self, run, module, batch_idx: None, r"takes \(run, module, batch_idx\)"),
    (DataModule, "on_after_batch_transfer", lambda self, batch, dataloader_idx: None, f"batch_transfer {NEVER}"),
]


@pytest.mark.parametrize(("base", "name", "method", "message"), SIGNATURES)
def test_wrong_signatures(base, name, method, message):
    wrong = odd(base, **{name: method})
    module = wrong if base is Logistic else Logistic()
    callbacks = [wrong] if base is Callback else []
    with pytest.raises(ConfigurationError, match=message):
        trainer(callbacks=callbacks).fit(module, wrong if base is DataModule else loader(2))
    with pytest.raises(ConfigurationError, match=r"with \(batch, batch_idx, dataloader_idx\)"):
        trainer().validate(Logistic(), [loader(2), loader(2)])


def none_where_negative(rows):
    return None if any(x[0] < 0 for x, _ in rows) else default_collate(rows)


def test_none_for_a_batch_is_no_rank_without_one():
    def step(self, batch, batch_idx):
        return None if batch is None else Logistic.training_step(self, batch, batch_idx)

    data = [(torch.full((4,), float(sign)), torch.tensor(1.0)) for sign in (1, -1, 1, 1)]
    batches = DataLoader(data, batch_size=1, collate_fn=none_where_negative)
    run = trainer()
    run.fit(odd(training_step=step), batches)
    assert run.global_step == 3  # one process leaves the step out
    text = r"loader of rank 1 gave None for a batch(.|\n)*collate_fn"
    with pytest.raises(ConfigurationError, match=text):
        trainer(2).fit(odd(training_step=step), batches)

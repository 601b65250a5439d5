"""What once gave another number without a word: it is right now, or an error."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader

from distmetrics.errors import ConfigurationError, DivergedError, InputError, MismatchError
from distmetrics.guard.settings import Settings, put_in_force
from distmetrics.train import Callback, DataModule, EarlyStopping, ModelCheckpoint, Module, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads


def fit(module, train, val=None, *, world=1, **flags):
    strategy = Threads() if world > 1 else "single"
    trainer = Trainer(strategy=strategy, devices=world, accelerator="cpu", **{"max_epochs": 1} | flags)
    trainer.fit(module, train, val)
    return trainer


class Constant(Logistic):
    def validation_step(self, batch, batch_idx):
        self.log("never_better", 1.0)


@pytest.mark.parametrize(("interval", "validations"), [(1, 6), (3, 2), (1.0, 1), (0.5, 2)])
def test_each_validation_within_an_epoch_counts_for_callbacks(tmp_path, interval, validations):
    """One step is another interval than the whole epoch, though 1 equals 1.0."""
    keeper = ModelCheckpoint("never_better", dirpath=tmp_path, save_top_k=-1, filename="{step}")
    fit(Constant(), loader(24), loader(8), val_check_interval=interval, callbacks=[keeper])
    assert len(list(tmp_path.glob("*.ckpt"))) == validations


def test_training_stops_after_a_step():
    stop = EarlyStopping("never_better", mode="min", patience=2)
    trainer = fit(Constant(), loader(24), loader(8), val_check_interval=1, callbacks=[stop])
    assert trainer.global_step == 3


class Counting(Logistic):
    """The epoch's number of samples, and its deterministic loss."""

    def training_step(self, batch, batch_idx):
        self.log("samples", float(len(batch[0])), reduce_fx="sum", on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("world", "before", "after"), [(1, 8, 4), (1, 4, 8), (2, 4, 2), (2, 2, 4)])
def test_an_epoch_is_gone_on_with_in_other_batches(tmp_path, world, before, after):
    keeper = ModelCheckpoint(every_n_train_steps=16 // (before * world), dirpath=tmp_path, filename="{step}")
    fit(Counting(), DataLoader(loader(48).dataset, before), world=world, callbacks=[keeper])
    paths = sorted(tmp_path.glob("*.ckpt"))
    trainer = Trainer(strategy=Threads() if world > 1 else "single", devices=world, accelerator="cpu", max_epochs=1)
    trainer.fit(Counting(), DataLoader(loader(48).dataset, after), ckpt_path=paths[0])
    assert float(trainer.callback_metrics["samples"]) == 48


def test_an_epoch_that_other_batches_do_not_fit_into_is_refused(tmp_path):
    keeper = ModelCheckpoint(every_n_train_steps=1, dirpath=tmp_path, save_top_k=-1, filename="{step}")
    fit(Counting(), DataLoader(loader(24).dataset, 8), callbacks=[keeper])
    trainer = Trainer(accelerator="cpu", max_epochs=1)
    with pytest.raises(
        ConfigurationError, match="after 1 batches of 8 on each; 1 ranks with batches of 5 have no such"
    ):
        trainer.fit(Counting(), DataLoader(loader(24).dataset, 5), ckpt_path=tmp_path / "1.ckpt")


class Watch(Callback):
    """Logs what the module's own hook logs, from outside."""

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.log("outside", batch[0].sum())

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch is not None:
            module.log("train_outside", batch[0].sum())

    def on_validation_epoch_end(self, trainer, module):
        self.seen = {name: float(trainer.callback_metrics[name]) for name in ("inside", "outside")}


class Inside(Logistic):
    def training_step(self, batch, batch_idx):
        self.log("train_inside", batch[0].sum(), on_epoch=True, on_step=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("inside", batch[0].sum())

    def on_validation_epoch_end(self):
        self.log("seven", 7.0)


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_callback_logs_of_a_batch_weighs_as_the_batch(world):
    watch = Watch()
    trainer = fit(Inside(), loader(22), loader(21), world=world, callbacks=[watch])
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert found["outside"] == pytest.approx(found["inside"], rel=1e-12)
    assert found["train_outside"] == pytest.approx(found["train_inside"], rel=1e-12)
    assert found["seven"] == 7.0


class Plain(Module):
    """Optimizes by hand, with or without the trainer's backward."""

    automatic_optimization = False

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.how = torch.nn.Linear(4, 1), how

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = (self.layer(batch[0]) ** 2).mean()
        if self.how == "closure":
            optimizer.step(lambda: self.manual_backward(loss))
        else:
            loss.backward() if self.how == "plain" else self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("how", "world"), [("plain", 1), ("shared", 2), ("closure", 2)])
def test_gradients_that_are_everybodys(how, world):
    module = Plain(how)
    before = module.layer.weight.detach().clone()
    fit(module, loader(16), world=world)
    assert not torch.equal(module.layer.weight, before)


def test_gradients_of_one_rank_alone_are_refused():
    message = r"Plain steps its SGD with gradients that manual_backward has not made(.|\n)*self.manual_backward\(loss\)"
    with pytest.raises(ConfigurationError, match=message):
        fit(Plain("plain"), loader(16), world=2)


def _none_where_negative(samples):
    return None if any(x[0] < 0 for x, _ in samples) else torch.utils.data.default_collate(samples)


class Accepting(Logistic):
    def training_step(self, batch, batch_idx):
        return None if batch is None else super().training_step(batch, batch_idx)


def test_none_for_a_batch_is_no_rank_without_one():
    data = [(torch.full((4,), float(sign)), torch.tensor(1.0)) for sign in (1, -1, 1, 1)]
    batches = DataLoader(data, batch_size=1, collate_fn=_none_where_negative)
    assert fit(Accepting(), batches).global_step == 3  # one process leaves the step out
    with pytest.raises(ConfigurationError, match=r"loader of rank 1 gave None for a batch(.|\n)*collate_fn"):
        fit(Accepting(), batches, world=2)


class SyncedOnOne(Logistic):
    """From one step on rank 1 alone waits for the others in each."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.global_rank == 1 and batch_idx >= self.first:
            self.log("mine", loss, sync_dist=True)
        return loss


@pytest.mark.gloo
@pytest.mark.timeout(100)
@pytest.mark.parametrize("first", [0, 1])
def test_a_synced_log_of_one_rank_meets_the_others_backward_pass(monkeypatch, first):
    """Long before the time that a rank may be late: a backward pass of torch's wrapper can't end without this rank."""
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "70")
    trainer = Trainer(strategy="ddp_spawn", devices=2, accelerator="cpu", max_epochs=1)
    with pytest.raises(DivergedError) as info:
        trainer.fit(SyncedOnOne(first), loader(24))
    text = str(info.value)
    assert text.startswith("rank 0 waits in a collective of torch.distributed, and this rank in another"), text
    assert "rank 0  is in a backward pass" in text
    assert f'rank 1  waits in self.log "train step"  {LOGGED_ON_ONE}' in text


LOGGED_ON_ONE = (
    f"tests/train/test_not_silent.py:{SyncedOnOne.training_step.__code__.co_firstlineno + 3} in training_step, "
    "self.log('mine', sync_dist=True)"
)


def test_a_synced_log_of_one_rank_is_told_by_its_name_and_line():
    with pytest.raises(MismatchError) as info:
        fit(SyncedOnOne(0), loader(24), world=2)
    assert f'rank 1  self.log "train step"  {LOGGED_ON_ONE}' in str(info.value)


class SyncedApart(Logistic):
    """Ranks sync other names, from other lines."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.global_rank == 0:
            self.log("first", 1.0, sync_dist=True)
        else:
            self.log("second", 2.0, sync_dist=True)
        return loss


@pytest.mark.parametrize("mode", ["on", "strict"])
def test_synced_logs_of_unlike_names_are_no_fault(mode):
    with put_in_force(Settings(mode)):
        trainer = fit(SyncedApart(), loader(24), world=2)
    found = {name: float(trainer.callback_metrics[name]) for name in ("first", "second")}
    assert found == {"first": 1.0, "second": 2.0}


class SlowToLearn(Logistic):
    """Rank 0 needs longer for a backward pass than the guard needs to be sure; nobody waits elsewhere for it."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("ours", loss, sync_dist=True)
        if self.global_rank == 0 and batch_idx == 1:
            loss.register_hook(lambda grad: time.sleep(8))
        return loss


@pytest.mark.gloo
@pytest.mark.timeout(100)
def test_a_slow_backward_pass_is_no_fault():
    trainer = Trainer(strategy="ddp_spawn", devices=2, accelerator="cpu", max_epochs=1)
    trainer.fit(SlowToLearn(), loader(24))
    assert trainer.global_step == 3


class Parcel:
    """A batch whose size nobody can tell."""

    def __init__(self, x):
        self.x = x


class Parcels(Logistic):
    def training_step(self, batch, batch_idx):
        return self.layer(batch.x).sum()

    def validation_step(self, batch, batch_idx):
        self.log("value", batch.x.mean())


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("dp", 1), ("dp", 2)])
def test_a_batch_whose_size_can_not_be_told(strategy, devices):
    module = Parcels()
    module.layer = torch.nn.Linear(4, 1)
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=1, num_sanity_val_steps=0)
    parcels = [Parcel(torch.ones(3, 4)), Parcel(torch.zeros(1, 4))]
    with pytest.raises(InputError, match="can't tell how many samples are behind 'value'"):
        trainer.validate(module, parcels)


class Transfers(DataModule):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch

    def train_dataloader(self):
        return loader(8)


class OldMoments(Callback):
    def on_epoch_end(self, trainer, module):
        pass


class OldBackward(Logistic):
    def backward(self, loss):
        loss.backward()


@pytest.mark.parametrize(
    ("module", "data", "callbacks", "message"),
    [
        (
            Logistic,
            Transfers(),
            [],
            "Transfers.on_after_batch_transfer would never be called",
        ),
        (Logistic, loader(8), [OldMoments()], "OldMoments.on_epoch_end would never be called.*\n.*on_train_epoch_end"),
        (OldBackward, loader(8), [], "OldBackward.backward would never be called"),
    ],
)
def test_hooks_that_nobody_calls(module, data, callbacks, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(module(), data, callbacks=callbacks)

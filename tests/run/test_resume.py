"""A fit that goes on from a checkpoint ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import random
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from distmetrics.errors import ConfigurationError
from distmetrics.run.metric_states import load_states, merged, metric_states
from distmetrics.train import Callback, EarlyStopping, ModelCheckpoint, Module
from tests.run.models import Logistic, loader, loss_of, samples
from tests.run.test_loggers import Kept
from tests.run.threads import trainer


class Noisy(Logistic):
    """Draws from every generator, and keeps a metric over the whole epoch of training."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.3)
        self.train_auroc = BinaryAUROC()

    def forward(self, x):
        return super().forward(self.dropout(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        drawn = random.random() + float(np.random.rand()) + torch.randn(1, device=x.device)
        x = x + 0.1 * drawn
        loss = super().training_step([x, y], batch_idx)
        self.train_auroc.update(self(x).sigmoid(), y.int())
        self.log("train_auroc", self.train_auroc)
        return {"loss": loss, "weight": 1 + batch_idx % 3, "seen": x.sum()}

    def training_epoch_end(self, outputs):
        seen = torch.stack([out["seen"] for out in outputs]).sum()
        self.log("seen", seen, reduce_fx="sum")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        scheduler = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Augmented(torch.utils.data.Dataset):
    """Draws when an item is fetched."""

    def __init__(self, count):
        self.data = samples(count)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x + 0.01 * torch.randn(4), y


def run(callbacks, *, ckpt_path=None, loading=None, **flags):
    """Train, and return all there is to compare."""
    module = Noisy()
    made = trainer(**{"max_epochs": 2, "callbacks": callbacks, "seed": 5} | flags)
    train = DataLoader(Augmented(24), batch_size=4, shuffle=True, **loading or {})
    made.fit(module, train, loader(7, 2, seed=1), ckpt_path=ckpt_path)
    weights = [value for parameter in module.parameters() for value in parameter.flatten().tolist()]
    logged = {name: float(value) for name, value in sorted(made.callback_metrics.items())}
    return {"weights": weights, "logged": logged, "step": made.global_step}


class Stop(Exception):  # noqa: N818
    pass


class Saver(Callback):
    """Saves at one moment, and ends the run there."""

    def __init__(self, path, moment, epoch, batch=None):
        self.path, self.at = path, (moment, epoch, batch)

    def note(self, run, moment, batch=None):
        if self.path.exists():
            raise Stop
        if (moment, run.current_epoch, batch) == self.at:
            run.save_checkpoint(self.path)

    def on_train_epoch_start(self, run, module):
        self.note(run, "epoch_start")

    def on_train_batch_start(self, run, module, batch, batch_idx):
        self.note(run, "before")

    def on_train_batch_end(self, run, module, outputs, batch, batch_idx):
        self.note(run, "batch", batch_idx)

    def on_validation_start(self, run, module):
        self.note(run, "before")

    def on_validation_end(self, run, module):
        self.note(run, "validation", run.progress.batches)

    def on_train_epoch_end(self, run, module):
        self.note(run, "epoch_end")


ACCUMULATE = {"accumulate_grad_batches": 4}
VALIDATE = {"val_check_interval": 2}


@pytest.mark.parametrize(
    ("moment", "epoch", "batch", "flags"),
    [
        ("batch", 1, 0, {}),
        ("batch", 1, 5, {}),
        ("epoch_start", 1, None, {}),
        ("validation", 1, 6, {}),
        ("epoch_end", 0, None, {}),
        ("batch", 1, 3, ACCUMULATE),
        ("batch", 1, 1, ACCUMULATE | {"num_sanity_val_steps": 2}),
        ("batch", 1, 2, VALIDATE),
        ("validation", 1, 2, VALIDATE),
        ("validation", 1, 6, {"val_check_interval": 0.5}),
        ("batch", 1, 1, {"limit_train_batches": 3}),
    ],
)
def test_from_every_moment_of_an_epoch(tmp_path, moment, epoch, batch, flags):
    whole, path = run([], **flags), tmp_path / "here.ckpt"
    with pytest.raises(Stop):
        run([Saver(path, moment, epoch, batch)], **flags)
    torch.manual_seed(99)
    assert run([], ckpt_path=path, **flags) == whole
    if "num_sanity_val_steps" in flags:  # which changes nothing
        assert run([], **ACCUMULATE) == whole


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["workers", "generator", "max_steps"])
def test_from_a_file(tmp_path, how):
    def again(seed, callbacks=(), path=None, **flags):
        generator = torch.Generator().manual_seed(seed)  # of the loader's own
        loading = {"workers": {"num_workers": 2}, "generator": {"generator": generator}}.get(how)
        return run([*callbacks], ckpt_path=path, loading=loading, **flags)

    whole = again(3, max_epochs=2, max_steps=11)
    keeper = ModelCheckpoint(every_n_train_steps=2, save_top_k=-1, filename="{step}", dirpath=tmp_path)
    if how == "max_steps":  # an epoch has 6
        keeper = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    again(3, [keeper], **({"max_steps": 9} if how == "max_steps" else {}))
    path = tmp_path / ("last.ckpt" if how == "max_steps" else "8.ckpt")
    found = again(99, path=path, max_epochs=2, max_steps=11)
    assert found["weights"] == whole["weights"]
    if how != "max_steps":  # which has ended an epoch with the values of its half
        assert found == whole


class Told(Logistic):
    def training_step(self, batch, batch_idx):
        self.log("hidden", 1.0, on_epoch=True, logger=False)
        if batch_idx == 0:
            self.log("once", 2.0, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("moment", "batch", "steps"), [("batch", 1, 2), ("validation", 4, 4)])
def test_loggers_hear_what_they_would_have_heard(tmp_path, moment, batch, steps):
    def rows(callbacks, ckpt_path=None):
        made = trainer(callbacks=callbacks, logger=(logger := Kept()), log_every_n_steps=1)
        with contextlib.suppress(Stop):
            made.fit(Told(), loader(8, 2), loader(4), ckpt_path=ckpt_path)
        return [row for row in logger.rows if row[0] > steps or "train_loss_epoch" in row[1]]

    whole, path = rows([]), tmp_path / "here.ckpt"
    rows([Saver(path, moment, 0, batch)])
    assert rows([], path) == whole


class Ordered(Module):
    """Deterministic: weights and values must not depend on the number of ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1).double()
        self.auroc = BinaryAUROC()

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.layer(x.double()).squeeze(1)
        loss = loss_of(logits, y.double())
        self.auroc.update(logits.sigmoid(), y.int())
        self.log("loss", loss, on_epoch=True)
        self.log("auroc", self.auroc)
        self.log("samples", float(len(y)), reduce_fx="sum", on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def ordered(ranks, batch, *, callbacks=(), **options):
    module, made = Ordered(), trainer(ranks, max_epochs=2, callbacks=[*callbacks])
    made.fit(module, DataLoader(samples(48), batch_size=batch), **options)
    return module, made


@pytest.mark.parametrize("before", [(2, 12), (1, 24), (4, 6)])
def test_other_ranks_and_batches_go_on_by_the_samples_seen(tmp_path, before):
    """3 steps of 24 samples are an epoch and the half of one."""
    every = ModelCheckpoint(every_n_train_steps=3, dirpath=tmp_path, filename="{step}")
    ordered(*before, callbacks=[every])
    whole, expected = ordered(1, 24)
    for after in ((1, 24), (2, 12), (3, 8), (2, 6), (1, 8)):
        module, found = ordered(*after, ckpt_path=tmp_path / "3.ckpt")
        assert float(found.callback_metrics["samples"]) == 48
        if after[0] * after[1] == 24:
            for name in ("loss_epoch", "auroc"):
                wanted = float(expected.callback_metrics[name])
                assert float(found.callback_metrics[name]) == pytest.approx(wanted, rel=1e-12)
            torch.testing.assert_close(module.layer.weight, whole.layer.weight)
    text = "after 1 batches of .* on each; 1 ranks with batches of 5 have no such place"
    with pytest.raises(ConfigurationError, match=text):
        ordered(1, 5, ckpt_path=tmp_path / "3.ckpt")


def test_metric_states_of_several_ranks_are_merged():
    data = [torch.rand(5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    truth, ranks = torch.tensor([0, 1, 1, 0, 1]), []
    made = lambda: {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()}  # noqa: E731
    for part in data:
        metrics = made()
        for metric in metrics.values():
            metric.update(part, truth)
        ranks.append(metric_states(metrics))
    fresh, whole = made(), made()
    load_states(fresh, merged(fresh, ranks))
    for name, metric in whole.items():
        metric.update(torch.cat(data), truth.repeat(3))
        assert fresh[name].compute() == metric.compute()


class Descends(Logistic):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def test_a_checkpoint_of_another_set_up_and_a_file_that_is_none_are_refused(tmp_path):
    run = trainer(callbacks=[ModelCheckpoint(dirpath=tmp_path, filename="whole")])
    run.fit(Logistic(), loader(4))
    whole, path = tmp_path / "whole.ckpt", tmp_path / "no.ckpt"
    for module, text in (
        (Noisy(), "has 0 lr_schedulers, and the fit 1"),
        (Descends(), "has the state of AdamW, and the fit steps SGD"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            trainer(max_epochs=2).fit(module, loader(4), ckpt_path=whole)
    for write, text in (
        (lambda: path.write_text("hello"), "cannot be read as a checkpoint"),
        (lambda: path.write_bytes(whole.read_bytes()[:-100]), "cut off"),
        (lambda: torch.save({"weights": 1}, path), "is no checkpoint"),
        (lambda: torch.save(Logistic().state_dict(), path), "(?s)of a trainer: .*load_state_dict"),
    ):
        write()
        with pytest.raises(ConfigurationError, match=text):
            trainer().validate(Logistic(), loader(4), ckpt_path=path)


class Flat(Logistic):
    def on_validation_epoch_end(self):
        self.log("flat", 1.0)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["extra"] = 7

    def on_load_checkpoint(self, checkpoint):
        self.found = checkpoint["extra"]


def test_stopped_training_stays_stopped_and_the_best_and_the_last_are_found(tmp_path):
    keeper = ModelCheckpoint("val_loss", dirpath=tmp_path / "kept", save_last=True)

    def fit(ckpt_path=None, patience=1):
        stop = EarlyStopping("flat", patience=patience)
        made, module = trainer(max_epochs=9, callbacks=[stop, keeper]), Flat(lr=1.0)
        made.fit(module, loader(8), held, ckpt_path=ckpt_path)
        return made, module, (made.current_epoch, getattr(module, "found", None))

    held = loader(6, seed=1)
    for which in ("best", "last"):
        text = f"ckpt_path='{which}': no ModelCheckpoint .* has saved one"
        with pytest.raises(ConfigurationError, match=text):
            trainer(callbacks=[keeper]).validate(Flat(), held, ckpt_path=which)
    made, module, at = fit()
    assert at == (2, None)
    (best,), (last,) = (made.validate(Flat(), held, ckpt_path=which) for which in ("best", "last"))
    assert best["val_loss"] == keeper.best_model_score
    assert last == made.validate(module, held)[0]
    later = ModelCheckpoint(dirpath=tmp_path / "later")
    made.callbacks = [later, ModelCheckpoint("later", dirpath=tmp_path / "kept")]
    later.best_k_models["later.ckpt"] = 1.0  # one without a monitor has no best
    with pytest.raises(ConfigurationError, match="ckpt_path='best': no ModelCheckpoint"):
        made.test(module, held, ckpt_path="best")
    (tmp_path / "later").mkdir()
    shutil.copy(keeper.best_model_path, tmp_path / "later")  # written after the other's last
    assert made.validate(Flat(), held, ckpt_path="last") == [best]
    assert fit("last")[2] == (2, 7)
    assert fit("last", patience=5)[2] == (6, 7)  # more patience goes on

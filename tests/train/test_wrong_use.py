"""What a new user may get wrong: an error that says what, where and what to do, and never a wrong number."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from distmetrics import Runner
from distmetrics.errors import ConfigurationError, InputError, MismatchError
from distmetrics.train import Callback, DataModule, EarlyStopping, ModelCheckpoint, Trainer
from tests.train.models import Logistic, loader, samples
from tests.train.threads import Threads


def trainer(**flags):
    return Trainer(**({"strategy": "single", "accelerator": "cpu", "max_epochs": 1} | flags))


def world(ranks=2, **flags):
    return trainer(strategy=Threads(), devices=ranks, **flags)


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("Module or a subclass, got the class Logistic itself", lambda: trainer().fit(Logistic, loader(4))),
        ("Module or a subclass, got an object of Linear", lambda: trainer().predict(nn.Linear(4, 1), loader(4))),
        (
            "an object of DataModule or a subclass, or None, got <class",
            lambda: trainer().fit(Logistic(), datamodule=DataModule),
        ),
        (r"(?s)this is an object of TensorDataset.*DataLoader\(", lambda: trainer().fit(Logistic(), samples(8))),
        ("this is an object of dict", lambda: trainer().fit(Logistic(), {"a": loader(4), "b": loader(4)})),
        ("this is an object of int", lambda: trainer().validate(Logistic(), 3)),
        ("this is an object of Tensor", lambda: trainer().predict(Logistic(), torch.zeros(2, 4))),
    ],
)
def test_arguments_of_another_kind(message, action):
    with pytest.raises(ConfigurationError, match=message):
        action()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loader_that_one_pass_uses_up(ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a generator can't be dealt out
        with pytest.raises(ConfigurationError, match="training loader in epoch 1 gave no batch"):
            trainer(max_epochs=2).fit(Logistic(), (batch for batch in loader(4)))
        with pytest.raises(ConfigurationError, match="validation loader gave no batch"):
            world(ranks).validate(Logistic(), Nothing())
        assert world(ranks, limit_test_batches=0).test(Logistic(), Nothing()) == [{}]


class Nothing:
    def __iter__(self):
        return iter(())


def test_a_file_that_is_no_checkpoint(tmp_path):
    text, weights = tmp_path / "text.ckpt", tmp_path / "weights.ckpt"
    text.write_text("hello")
    torch.save(Logistic().state_dict(), weights)
    with pytest.raises(ConfigurationError, match=r"text\.ckpt cannot be read as a checkpoint"):
        trainer().validate(Logistic(), loader(4), ckpt_path=text)
    with pytest.raises(ConfigurationError, match=r"(?s)no checkpoint of a trainer: .*load_state_dict"):
        trainer().validate(Logistic(), loader(4), ckpt_path=weights)
    whole = tmp_path / "whole.ckpt"
    trainer(callbacks=[ModelCheckpoint(dirpath=tmp_path, filename="whole")]).fit(Logistic(), loader(4))
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match="cut off"):
        trainer().validate(Logistic(), loader(4), ckpt_path=whole)


class Descends(Logistic):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def test_a_checkpoint_of_another_optimizer(tmp_path):
    trainer(callbacks=[ModelCheckpoint(dirpath=tmp_path, save_last=True)]).fit(Logistic(), loader(4))
    with pytest.raises(ConfigurationError, match="has the state of AdamW, and the fit steps SGD"):
        trainer(max_epochs=2).fit(Descends(), loader(4), ckpt_path=tmp_path / "last.ckpt")


class Detached(Logistic):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


def test_a_loss_without_a_gradient():
    with pytest.raises(InputError, match=r"training_step returns.* has no gradient"):
        trainer().fit(Detached(), loader(4))


class Logs(Logistic):
    """Logs what a test wants, in each step of a validation."""

    def __init__(self, name, value=1.0, **options):
        super().__init__()
        self.what = name, value, options

    def validation_step(self, batch, batch_idx):
        name, value, options = self.what
        self.log(name, value, **options)


@pytest.mark.parametrize("value", [7.0, BinaryAccuracy()])
@pytest.mark.parametrize("name", ["epoch", "step"])
def test_names_that_loggers_have_of_their_own(name, value):
    module = Logs(name, value)
    module.held = value
    with pytest.raises(
        ConfigurationError, match=f"nothing can be logged as '{name}', which is the trainer's own\nDo: "
    ):
        trainer().validate(module, loader(4))


class LogsAtTheEnd(Callback):
    """Logs where callbacks hear of an epoch's values: by the module, or by the trainer."""

    def __init__(self, how):
        self.how = how

    def on_train_epoch_end(self, trainer, module):
        if self.how == "module":
            module.log("late", 1.0)
        else:
            trainer.log_values({"late": 1.0 + trainer.current_epoch})


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_callback_logs_at_the_end_of_an_epoch(ranks):
    with pytest.raises(ConfigurationError, match=r"(?s)'late' can't be logged here.*trainer\.log_values\({'late': "):
        world(ranks, callbacks=[LogsAtTheEnd("module")]).fit(Logistic(), loader(4))
    stop = EarlyStopping("late", patience=1)
    run = world(ranks, max_epochs=9, callbacks=[LogsAtTheEnd("trainer"), stop])
    run.fit(Logistic(), loader(4))
    assert (float(run.callback_metrics["late"]), stop.best_score) == (2.0, 1.0)


@pytest.mark.parametrize("values", [{"epoch": 1.0}, {"lr": "fast"}, {3: 1.0}, {"lr": torch.zeros(2)}])
def test_values_that_a_callback_makes_known(values):
    with pytest.raises(
        (ConfigurationError, InputError), match=r"nothing can be logged as|must be|is no number|no real number"
    ):
        trainer().log_values(values)


class LogsSteps(Logistic):
    """Logs a value of rank 0's in each step, with other options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def training_step(self, batch, batch_idx):
        self.log("mine", 1.0, **self.options)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (1, {"rank_zero_only": True}, "'mine', and there is no value of it for this epoch"),
        (1, {}, "'mine', and there is no value of it for this epoch"),
        (2, {"rank_zero_only": True}, "'mine', and every rank has its own value of it, or rank 0 alone has one"),
        (2, {"sync_dist": True}, "'mine', and there is no value of it for this epoch"),
    ],
)
@pytest.mark.parametrize("make", [EarlyStopping, ModelCheckpoint])
def test_a_value_of_steps_that_a_callback_watches(ranks, options, message, make, tmp_path):
    run = world(ranks, callbacks=[make("mine")], default_root_dir=tmp_path)
    with pytest.raises(ConfigurationError, match=f"(?s)watches {message}.*Do:     log it with on_epoch=True"):
        run.fit(LogsSteps(**options), loader(8))
    world(ranks, callbacks=[make("mine")], default_root_dir=tmp_path).fit(
        LogsSteps(**options, on_epoch=True), loader(8)
    )


def test_a_checkpoint_of_a_step_by_a_value_of_rank_0(tmp_path):
    run = world(callbacks=[ModelCheckpoint("mine", every_n_train_steps=1)], default_root_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="rank 0 alone has one"):
        run.fit(LogsSteps(rank_zero_only=True), loader(8))


class Clashes(Logistic):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def training_step(self, batch, batch_idx):
        self.log(self.name, 3.0, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("name", ["train_loss_step", "train_loss_epoch"])
def test_a_name_that_another_value_is_known_as(name):
    with pytest.raises(ConfigurationError, match=f"'{name}' is what .* would both be known as"):
        trainer().fit(Clashes(name), loader(4))


class Shares(Logistic):
    """One metric object for training and validation."""

    def __init__(self, metric):
        super().__init__()
        self.shared = metric

    def training_step(self, batch, batch_idx):
        self.shared.update(self(batch[0]).sigmoid(), batch[1].int())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.shared.update(self(batch[0]).sigmoid(), batch[1].int())
        self.log("shared", self.shared)


@pytest.mark.parametrize("make", [BinaryAccuracy, lambda: MetricCollection({"a": BinaryAccuracy()})])
def test_a_metric_that_holds_other_samples(make):
    module = Shares(make())
    with pytest.raises(ConfigurationError, match=r"self\.shared holds samples from before"):
        trainer().fit(module, loader(8), loader(4))
    module.shared.reset()
    (first,) = trainer().validate(module, loader(4))
    assert trainer().validate(module, loader(4)) == [first]


def test_a_metric_made_of_others_is_used_in_each_validation():
    module = Shares(BinaryAccuracy() + BinaryAccuracy())
    (first,) = trainer().validate(module, loader(4))
    assert trainer().validate(module, loader(4)) == [first]


class Some(Logistic):
    """Logs a name on some ranks."""

    def __init__(self, wanted, **options):
        super().__init__()
        self.wanted, self.options = wanted, options

    def validation_step(self, batch, batch_idx):
        if self.wanted(self.global_rank, batch_idx):
            self.log("some", float(self.global_rank), **self.options)


WARNED = "(?s)only some ranks log 'some', in every batch.*rank 0 +not logged.*rank 1 +logged, first at"


def test_a_condition_on_the_rank_is_refused():
    with pytest.raises(MismatchError, match="only some ranks log 'some'") as caught:
        world(3).validate(Some(lambda rank, index: rank == 1), loader(24))
    told = str(caught.value)
    assert "ranks 0, 2  not logged" in told
    assert re.search(r"rank 1 +logged, first at .*test_wrong_use\.py:\d+ in validation_step", told)
    assert "Trainer(require_same_names=False) only warns" in told


def test_a_condition_on_the_rank_is_warned_of_if_wanted():
    with pytest.warns(UserWarning, match=WARNED):
        trainer(strategy=Threads(), devices=2, require_same_names=False).validate(
            Some(lambda rank, index: rank == 1), loader(16)
        )


def test_one_batch_is_too_few_to_be_sure():
    with pytest.warns(UserWarning, match=WARNED):
        world().validate(Some(lambda rank, index: rank == 1), loader(8))


class Numbered(Logistic):
    """Has the rank in the names."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log(f"loss_{self.global_rank}", loss, on_epoch=True)
        self.log(f"other_{self.global_rank}", loss, on_epoch=True)
        return loss


@pytest.mark.parametrize("strategy", [Threads(), pytest.param("ddp_spawn", marks=pytest.mark.gloo)])
def test_names_with_the_rank_in_them_are_refused(strategy):
    with pytest.raises(MismatchError, match="only some ranks log 'loss_0', 'loss_1', 'other_0', 'other_1'"):
        trainer(strategy=strategy, devices=2).fit(Numbered(), loader(16))


@pytest.mark.parametrize(
    "module",
    [
        Some(lambda rank, index: rank == 0, rank_zero_only=True),
        Some(lambda rank, index: rank == 0, sync_dist=False),
        Some(lambda rank, index: index == rank),  # by the data: one process has the same mean
        Some(lambda rank, index: True),
    ],
)
def test_other_conditions_are_not(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world().validate(module, loader(16))
        world(3).validate(module, loader(2))  # a rank without a batch can't log


class Validates(Callback):
    def __init__(self, other=None):
        self.other = other

    def on_train_epoch_end(self, trainer, module):
        self.result = (self.other or trainer).validate(module, loader(4))


def test_a_call_inside_a_call():
    with pytest.raises(ConfigurationError, match="validate inside a call of the same trainer"):
        trainer(callbacks=[Validates()]).fit(Logistic(), loader(4))
    inside = Validates(trainer())
    outer, module = trainer(max_epochs=2, callbacks=[inside]), Logistic()
    outer.fit(module, loader(4))
    assert inside.result[0]["val_count"] == 4
    assert module.trainer is outer


def test_flags_of_the_runner():
    with pytest.raises(TypeError, match="Runner got an unexpected keyword argument 'stategy'; did you mean 'strategy'"):
        Runner(stategy="ddp")


def test_no_limit_of_epochs():
    run = trainer(max_epochs=-1, max_steps=5)
    run.fit(Logistic(), DataLoader(TensorDataset(*samples(8)[:]), batch_size=4))
    assert (run.global_step, run.current_epoch) == (5, 3)
    with pytest.raises(ConfigurationError, match="no end"):
        trainer(max_epochs=-1).fit(Logistic(), loader(4))

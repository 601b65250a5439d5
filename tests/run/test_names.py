"""What ranks and steps must not log under a name: an error, and never a wrong number."""

from __future__ import annotations

import re
import warnings
from collections import namedtuple

import pytest
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import BinaryAccuracy

from distmetrics.errors import ConfigurationError, MismatchError, StateError
from distmetrics.guard.settings import Settings, put_in_force
from tests.run.models import Logistic, loader
from tests.run.threads import trainer


class Logs(Logistic):
    """Logs what a test wants, on some ranks and in some batches."""

    def __init__(self, name="some", value=None, wanted=lambda rank, index: True, **options):
        super().__init__()
        self.held = value
        self.what = name, value, wanted, options

    def validation_step(self, batch, batch_idx):
        name, value, wanted, options = self.what
        if wanted(self.global_rank, batch_idx):
            self.log(name, float(self.global_rank) if value is None else value, **options)

    def training_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("value", [7.0, BinaryAccuracy()])
@pytest.mark.parametrize("name", ["epoch", "step"])
def test_names_that_loggers_have_of_their_own(name, value):
    text = f"nothing can be logged as '{name}', which is the trainer's own\nDo: "
    with pytest.raises(ConfigurationError, match=text):
        trainer().validate(Logs(name, value), loader(4))


@pytest.mark.parametrize("name", ["train_loss_step", "train_loss_epoch"])
def test_a_name_that_another_value_is_known_as(name):
    with pytest.raises(ConfigurationError, match=f"'{name}' is what .* would both be known as"):
        trainer().fit(Logs(name, 3.0, on_step=False, on_epoch=True), loader(4))


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


def on_rank_1(rank, index):
    return rank == 1


def test_a_condition_on_the_rank_is_refused_or_warned_of():
    with pytest.raises(MismatchError, match="only some ranks log 'some'") as caught:
        trainer(3).validate(Logs(wanted=on_rank_1), loader(24))
    told = str(caught.value)
    assert "ranks 0, 2  not logged" in told
    assert re.search(r"rank 1 +logged, first at .*test_names\.py:\d+ in validation_step", told)
    assert "Trainer(require_same_names=False) only warns" in told
    text = "(?s)only some ranks log 'some', in every batch.*rank 0 +not logged.*rank 1 +logged"
    with pytest.warns(UserWarning, match=text):
        trainer(2, require_same_names=False).validate(Logs(wanted=on_rank_1), loader(16))
    with pytest.warns(UserWarning, match=text):  # one batch is too few to be sure
        trainer(2).validate(Logs(wanted=on_rank_1), loader(8))


@pytest.mark.parametrize(
    "module",
    [
        Logs(wanted=lambda rank, index: rank == 0, rank_zero_only=True),
        Logs(wanted=lambda rank, index: rank == 0, sync_dist=False),
        Logs(wanted=lambda rank, index: index == rank),  # by the data: as in one process
        Logs(),
    ],
)
def test_other_conditions_are_not(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(2).validate(module, loader(16))
        trainer(3).validate(module, loader(2))  # a rank without a batch can't log


class Numbered(Logistic):
    """Has the rank in the names, which are synced in each step, or are not."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for name in ("loss", "other"):
            self.log(f"{name}_{self.global_rank}", self.global_rank, **self.options)
        return loss


@pytest.mark.parametrize("mode", ["on", "strict"])
def test_names_with_the_rank_in_them_are_refused_of_epochs_alone(mode):
    names = "'loss_0', 'loss_1', 'other_0', 'other_1'"
    with put_in_force(Settings(mode)):
        with pytest.raises(MismatchError, match=f"only some ranks log {names}"):
            trainer(2).fit(Numbered(on_epoch=True), loader(16))
        run = trainer(2)
        run.fit(Numbered(sync_dist=True), loader(16))
    found = [float(run.callback_metrics[f"{name}_1"]) for name in ("loss", "other")]
    assert found == [1.0, 1.0]


def test_a_synced_log_of_one_rank_is_told_by_its_name_and_line():
    line = Logs.validation_step.__code__.co_firstlineno + 3
    where = f"tests/run/test_names.py:{line} in validation_step, self.log('some', sync_dist=True)"
    with pytest.raises(MismatchError) as info:
        trainer(2).fit(Logs(wanted=on_rank_1, sync_dist=True), loader(24))
    assert f'rank 1  self.log "train step"  {where}' in str(info.value)


class Kept(Metric):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx=None)

    def update(self, value):
        self.kept.append(value)

    def compute(self):
        return self.kept


Answer = namedtuple("Answer", "index")


class Outputs(Logistic):
    """Logs a metric whose state is a batch's."""

    def __init__(self):
        super().__init__()
        self.kept = Kept()

    def validation_step(self, batch, batch_idx):
        self.kept.update(Answer(batch_idx))
        self.log("kept", self.kept)


def test_states_of_a_class_need_a_flag():
    with pytest.raises(StateError, match=r"(?s)Answer is no plain data.*allow_pickle=True"):
        trainer(2).validate(Outputs(), loader(4))
    with pytest.raises(Exception, match="is no number"):  # it was synced, and is a list
        trainer(2, allow_pickle=True).validate(Outputs(), loader(4))

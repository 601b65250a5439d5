"""What ranks and steps must not log under a name: an error, and never a wrong number."""

from __future__ import annotations

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
            name = name.format(self.global_rank)
            self.log(name, float(self.global_rank) if value is None else value, **options)

    def training_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("name", ["epoch", "train_loss_step", "train_loss_epoch"])
def test_names_that_another_value_is_known_as(name):
    text = "which is the trainer's own\nDo: " if name == "epoch" else "is what .* would both be known"
    with pytest.raises(ConfigurationError, match=f"'{name}'.*{text}"):
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


@pytest.mark.parametrize("metric", [MetricCollection({"a": BinaryAccuracy()}), BinaryAccuracy() + BinaryAccuracy()])
def test_a_metric_that_holds_other_samples(metric):
    module = Shares(metric)
    if isinstance(metric, MetricCollection):
        with pytest.raises(ConfigurationError, match=r"self\.shared holds samples from before"):
            trainer().fit(module, loader(8), loader(4))
        module.shared.reset()
    (first,) = trainer().validate(module, loader(4))
    assert trainer().validate(module, loader(4)) == [first]


def on_rank_1(rank, index):
    return rank == 1


def test_a_condition_on_the_rank_is_refused_or_warned_of():
    with pytest.raises(MismatchError, match="only some ranks log 'some'") as caught:
        trainer(3).validate(Logs(wanted=on_rank_1), loader(24))
    assert "ranks 0, 2  not logged" in str(caught.value)
    assert "Trainer(require_same_names=False) only warns" in str(caught.value)
    text = "(?s)only some ranks log 'some', in every batch.*rank 0 +not logged.*rank 1 +logged"
    with pytest.warns(UserWarning, match=text):  # one batch is too few to be sure
        trainer(2).validate(Logs(wanted=on_rank_1), loader(8))


@pytest.mark.parametrize("module", [Logs(wanted=lambda rank, index: index == rank), Logs()])
def test_other_conditions_are_not(module):
    """By the data, as in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(2).validate(module, loader(16))
        trainer(3).validate(module, loader(2))  # a rank without a batch can't log


@pytest.mark.parametrize("mode", ["on", "strict"])
def test_names_with_the_rank_in_them_are_refused_of_epochs_alone(mode):
    """Where they are synced in each step, each counts."""
    with put_in_force(Settings(mode)):
        with pytest.raises(MismatchError, match="only some ranks log 'loss_0', 'loss_1'"):
            trainer(2).fit(Logs("loss_{}", on_epoch=True), loader(16))
        run = trainer(2)
        run.fit(Logs("loss_{}", sync_dist=True), loader(16))
    assert float(run.callback_metrics["loss_1"]) == 1.0


def test_a_synced_log_of_one_rank_is_told_by_its_name_and_line():
    line = Logs.validation_step.__code__.co_firstlineno + 4
    where = f"tests/run/test_names.py:{line} in validation_step, self.log('some', sync_dist=True)"
    with pytest.raises(MismatchError) as info:
        trainer(2).fit(Logs(wanted=on_rank_1, sync_dist=True), loader(24))
    assert f'rank 1  self.log "train step"  {where}' in str(info.value)


class Kept(Metric):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx=None)

    def update(self, scores, target):
        self.kept.append(Answer(len(scores)))

    def compute(self):
        return self.kept


Answer = namedtuple("Answer", "index")


def test_states_of_a_class_need_a_flag():
    with pytest.raises(StateError, match=r"(?s)Answer is no plain data.*allow_pickle=True"):
        trainer(2).validate(Shares(Kept()), loader(4))
    with pytest.raises(Exception, match="is no number"):  # it was synced, and is a list
        trainer(2, allow_pickle=True).validate(Shares(Kept()), loader(4))

"""What ranks of a trainer send each other: data, and objects of any class where its flag says so."""

from __future__ import annotations

import collections
import re

import pytest
import torch

from distmetrics.errors import ConfigurationError, InputTypeError, StateError
from distmetrics.train import Trainer
from tests.metrics.samples import Kept
from tests.train.models import Logistic, loader
from tests.train.threads import Threads

Answer = collections.namedtuple("Answer", "label score")
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}


def trainer(**flags):
    return Trainer(strategy=Threads(), devices=2, max_epochs=1, **QUIET, **flags)


class Answers(Logistic):
    def predict_step(self, batch, batch_idx):
        return Answer("a", torch.ones(1))


class Outputs(Logistic):
    """Logs a metric whose state is what ``validation_step`` made."""

    def __init__(self, made):
        super().__init__()
        self.kept, self.made = Kept(), made

    def validation_step(self, batch, batch_idx):
        self.kept.update(self.made)
        self.log("kept", self.kept)


def test_predictions_of_a_class_need_the_flag():
    with pytest.raises(InputTypeError, match=r"(?s)Answer is no plain data.*allow_pickle=True.*Trainer"):
        trainer().predict(Answers(), loader(4))
    assert trainer(allow_pickle=True).predict(Answers(), loader(4))[0] == Answer("a", torch.ones(1))


def test_states_of_a_class_need_the_flag():
    with pytest.raises(StateError, match=r"(?s)Answer is no plain data.*allow_pickle=True"):
        trainer().validate(Outputs(Answer(1, 2)), loader(4))
    with pytest.raises(Exception, match="is no number"):  # it was synced: what is computed is a list
        trainer(allow_pickle=True).validate(Outputs(Answer(1, 2)), loader(4))


def test_the_flag_is_true_or_false():
    with pytest.raises(ConfigurationError, match=re.escape("allow_pickle must be True or False")):
        trainer(allow_pickle="yes")

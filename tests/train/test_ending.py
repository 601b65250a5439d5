"""What fails at the end of a run hides nothing: the first error is raised, with a note of each that came after."""

from __future__ import annotations

import pytest

from distmetrics.train import Callback, DataModule, Trainer
from tests.train.models import Logistic, loader
from tests.train.threads import Threads


class Failing(Logistic):
    def __init__(self, *where):
        super().__init__()
        self.where = where

    def training_step(self, batch, batch_idx):
        if "step" in self.where:
            raise ValueError("a bad batch")
        return super().training_step(batch, batch_idx)

    def teardown(self, stage):
        if "teardown" in self.where:
            raise KeyError("nothing to tear down")


class Odd(Callback):
    def __init__(self, *where):
        self.where = where
        self.torn_down = 0

    def on_exception(self, trainer, module, exception):
        if "again" in self.where:
            raise exception
        if "on_exception" in self.where:
            raise OSError("no disk")

    def teardown(self, trainer, module, stage):
        self.torn_down += 1
        if "teardown" in self.where:
            raise RuntimeError("closed already")


def fit(module, callbacks, *, strategy="single", devices=1, data=None):
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=1, callbacks=callbacks)
    trainer.fit(module, loader(8) if data is None else data)
    return trainer


@pytest.mark.parametrize("world", [1, 2])
def test_the_first_error_is_raised_and_all_others_are_noted(world):
    strategy = Threads() if world > 1 else "single"
    with pytest.raises(ValueError, match="a bad batch") as info:
        fit(Failing("step", "teardown"), [Odd("on_exception"), Odd("teardown")], strategy=strategy, devices=world)
    notes = "\n".join(info.value.__notes__)
    places = [
        notes.index(text)
        for text in (
            "Odd.on_exception failed as well, after this:",
            "OSError: no disk",
            "Odd.teardown failed as well",
            "RuntimeError: closed already",
            "Failing.teardown failed as well",
            "KeyError: 'nothing to tear down'",
        )
    ]
    assert places == sorted(places)
    assert "test_ending.py" in notes


def test_an_error_raised_again_is_no_other():
    with pytest.raises(ValueError, match="a bad batch") as info:
        fit(Failing("step"), [Odd("again")])
    assert not hasattr(info.value, "__notes__")


class Data(DataModule):
    def train_dataloader(self):
        return loader(8)

    def teardown(self, stage):
        raise ArithmeticError("data")


def test_after_a_run_that_went_well_all_is_torn_down_and_the_trainer_is_free():
    callbacks = [Odd("teardown"), Odd()]
    module = Failing("teardown")
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=1, callbacks=callbacks)
    with pytest.raises(RuntimeError, match="closed already") as info:
        trainer.fit(module, Data())
    assert [callback.torn_down for callback in callbacks] == [1, 1]
    assert [note.partition(" ")[0] for note in info.value.__notes__] == ["Failing.teardown", "Data.teardown"]
    trainer.callbacks = []
    trainer.fit(Logistic(), loader(8))  # not "fit inside a call of the same trainer"


def test_an_error_that_is_being_handled_is_not_of_the_run():
    """A program that tries again, in an except block."""

    def again():
        try:
            {}["of the program"]
        except KeyError:
            fit(Logistic(), [Odd("teardown")])

    with pytest.raises(RuntimeError, match="closed already"):
        again()

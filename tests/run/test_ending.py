"""What fails at the end of a run hides nothing: the first error is raised, others are its notes."""

from __future__ import annotations

import pytest
import torch

from distmetrics.train import Callback, DataModule, ModelCheckpoint
from tests.run.models import Logistic, loader
from tests.run.threads import TrainerThreads, trainer


class Failing(Logistic):
    """Fails in some hooks; in a step on the rank that is said alone."""

    def __init__(self, *where, bad=None):
        super().__init__()
        self.where, self.bad = where, bad

    def on_train_batch_end(self, outputs, batch, batch_idx):
        at = (self.global_rank, self.current_epoch, batch_idx)
        if ("step" in self.where and self.bad is None) or at == (self.bad, 1, 1):
            raise ValueError("a bad batch")

    def on_save_checkpoint(self, checkpoint):
        if "save" in self.where:
            raise KeyError("odd")

    def teardown(self, stage):
        if "teardown" in self.where:
            raise KeyError("nothing to tear down")


class Odd(Callback):
    def __init__(self, *where):
        self.where = where
        self.torn_down = 0

    def on_exception(self, run, module, exception):
        if "again" in self.where:
            raise exception
        if "on_exception" in self.where:
            raise OSError("no disk")

    def teardown(self, run, module, stage):
        self.torn_down += 1
        if "teardown" in self.where:
            raise RuntimeError("closed already")


def test_the_first_error_is_raised_and_all_others_are_noted():
    run = trainer(2, callbacks=[Odd("on_exception"), Odd("teardown"), Odd("again")])
    with pytest.raises(ValueError, match="a bad batch") as info:
        run.fit(Failing("step", "teardown"), loader(8))
    notes = "\n".join(info.value.__notes__)
    texts = ["Odd.on_exception failed as well, after this:", "OSError: no disk"]
    texts += ["Odd.teardown failed as well", "RuntimeError: closed already"]
    texts += ["Failing.teardown failed as well", "KeyError: 'nothing to tear down'"]
    places = [notes.index(text) for text in texts]
    assert places == sorted(places)
    assert "test_ending.py" in notes
    assert notes.count("Odd.on_exception failed") == 1  # one that is raised again is no other


class Data(DataModule):
    def train_dataloader(self):
        return loader(8)

    def teardown(self, stage):
        raise ArithmeticError("data")


def test_after_a_run_that_went_well_all_is_torn_down_and_the_trainer_is_free():
    callbacks = [Odd("teardown"), Odd()]
    run = trainer(callbacks=callbacks)
    try:
        {}["of the program"]
    except KeyError:  # an error that is being handled is not of the run
        with pytest.raises(RuntimeError, match="closed already") as info:
            run.fit(Failing("teardown"), Data())
    assert [callback.torn_down for callback in callbacks] == [1, 1]
    first = [note.partition(" ")[0] for note in info.value.__notes__]
    assert first == ["Failing.teardown", "Data.teardown"]
    run.callbacks = []
    run.fit(Logistic(), loader(8))  # not "fit inside a call of the same trainer"


class Split(TrainerThreads):
    """A strategy that says it splits the model."""

    whole_on_each_rank = False


def fails(folder, bad, *where, **flags):
    keeper = ModelCheckpoint(dirpath=folder, save_top_k=0)
    run = trainer(2, max_epochs=3, **{"callbacks": [keeper]} | flags)
    with pytest.raises(ValueError, match="a bad batch") as caught:
        run.fit(Failing(*where, bad=bad), loader(24, shuffle=True))
    return "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("bad", [0, 1])
def test_the_lowest_rank_that_is_left_saves_and_a_new_fit_goes_on_from_it(tmp_path, bad):
    notes = fails(tmp_path, bad)
    content = torch.load(tmp_path / "rescued.ckpt")
    assert (content["epoch"], content["global_step"], len(content["ranks"])) == (1, 5, 1)
    assert f"raised on rank {bad}\n" in notes
    assert f"rank {1 - bad} raised PeerLostError" in notes
    run = trainer(2, max_epochs=3)
    run.fit(Logistic(), loader(24, shuffle=True), ckpt_path=tmp_path / "rescued.ckpt")
    assert (run.current_epoch, run.global_step) == (3, 5 + 2 * 3)  # the epoch has begun again


def test_nothing_is_saved_of_what_is_split_nor_without_a_keeper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(tmp_path, 1, strategy=Split())
    fails(tmp_path, 1, callbacks=[])
    with pytest.warns(UserWarning, match=r"no last checkpoint is saved: KeyError\('odd'\)"):
        fails(tmp_path, 1, "save")  # a hook that fails hides no error
    assert not list(tmp_path.iterdir())

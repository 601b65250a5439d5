"""A rank is lost in the midst of a fit: one that is left saves what there is, and a new fit goes on from it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from distmetrics import PeerLostError
from distmetrics.train import ModelCheckpoint, Trainer
from tests.programs import run_program
from tests.train.models import Logistic, loader
from tests.train.threads import Threads

ROOT = Path(__file__).parents[2]


class Fails(Logistic):
    """One rank raises, or is killed, in the second epoch."""

    def __init__(self, bad: int, *, kill: bool = False) -> None:
        super().__init__()
        self.bad, self.kill = bad, kill

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.trainer.global_rank, self.current_epoch, batch_idx) == (self.bad, 1, 1):
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a bad batch")


class Split(Threads):
    """A strategy that says it splits the model."""

    whole_on_each_rank = False


def fit(folder, module, *, strategy=None, callbacks=None, ckpt_path=None):
    keeper = ModelCheckpoint(dirpath=folder, save_top_k=0)
    trainer = Trainer(
        strategy=Threads() if strategy is None else strategy,
        devices=2,
        accelerator="cpu",
        max_epochs=3,
        callbacks=[keeper] if callbacks is None else callbacks,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(module, loader(24, shuffle=True), loader(7, seed=1), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("bad", [0, 1])
def test_the_lowest_rank_that_is_left_saves(tmp_path, bad):
    with pytest.raises(ValueError, match="a bad batch") as caught:
        fit(tmp_path, Fails(bad))
    content = torch.load(tmp_path / "rescued.ckpt")
    assert (content["epoch"], content["global_step"]) == (1, 5)
    assert content["position"]["batches"] == 0  # the epoch begins again
    assert len(content["ranks"]) == 1
    assert f"rank {1 - bad} raised PeerLostError" in "\n".join(caught.value.__notes__)


def test_a_new_fit_goes_on_from_it(tmp_path):
    with pytest.raises(ValueError, match="a bad batch"):
        fit(tmp_path, Fails(1))
    trainer = fit(tmp_path, Logistic(), ckpt_path=tmp_path / "rescued.ckpt")
    assert trainer.current_epoch == 3
    assert trainer.global_step == 5 + 2 * 3


def test_what_is_split_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="a bad batch"):
        fit(tmp_path, Fails(1), strategy=Split())
    assert not list(tmp_path.iterdir())


def test_no_keeper_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a bad batch"):
        fit(tmp_path, Fails(1), callbacks=[])
    assert not list(tmp_path.iterdir())


def test_a_hook_that_fails_hides_no_error(tmp_path):
    class Odd(Fails):
        def on_save_checkpoint(self, checkpoint):
            raise KeyError("odd")

    with (
        pytest.warns(UserWarning, match=r"no last checkpoint is saved: KeyError\('odd'\)"),
        pytest.raises(ValueError, match="a bad batch"),
    ):
        fit(tmp_path, Odd(1))


@pytest.mark.gloo
@pytest.mark.timeout(240)
def test_a_rank_is_killed(tmp_path):
    """In processes, under DDP: whoever notices first, the error names the rank and the file is there."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = run_program(["-m", "tests.train.test_rescue", tmp_path], cwd=ROOT, env=environ, timeout=200)
    assert done.returncode == 1, done.stderr
    assert "rank 1  was killed by SIGKILL" in done.stdout + done.stderr
    assert torch.load(tmp_path / "rescued.ckpt")["epoch"] == 1


if __name__ == "__main__":
    try:
        fit(Path(sys.argv[1]), Fails(1, kill=True), strategy="ddp")
    except PeerLostError as error:
        print(error)
        raise

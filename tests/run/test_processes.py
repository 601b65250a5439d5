"""Real processes over gloo: started for the call, by the script itself, and by a launcher."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics import PeerLostError, Runner
from distmetrics.strategies import FSDP
from distmetrics.train import EarlyStopping, ModelCheckpoint, Trainer
from tests.acceptance import free_port
from tests.machines import torchrun, two_machines
from tests.programs import Program, run_program
from tests.run import loops
from tests.run.models import Logistic, Plain, loader, samples
from tests.run.threads import trainer
from tests.strategies.common import in_ranks

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
HELD = loader(5, 2, seed=1)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


class Normed(Logistic):
    """With running statistics, which every rank gathers from its own batches."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return super().forward(self.norm(x))


def two_models(runner):
    """One model learns from another's answers."""
    models = loops.model(), nn.Linear(1, 1)
    nn.init.ones_(models[1].weight)
    nn.init.zeros_(models[1].bias)
    pairs = [runner.setup(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in models]
    (first, _), (second, _) = pairs
    data = DataLoader(samples(24), 12 // runner.world_size)
    for x, y in runner.setup_dataloaders(data, train=True):
        for _, optimizer in pairs:
            optimizer.zero_grad()
        runner.backward(loops.loss_of(second(first(x)[:, None])[:, 0], y))
        for _, optimizer in pairs:
            optimizer.step()
    return [value.clone() for model, _ in pairs for value in model.state_dict().values()]


def launched(strategy, fn, *args):
    devices = 1 if strategy == "single" else 2
    return Runner(strategy=strategy, devices=devices, accelerator="cpu").launch(fn, *args)


def in_one_world(folder):
    module, run = Normed(), trainer(strategy="ddp", devices=2)
    run.fit(module, loader(24, 6), HELD)
    values = {name: float(value) for name, value in run.callback_metrics.items()}
    sharded = "ddp_sharded", FSDP(wrap=[nn.Linear])
    saved = [launched(each, loops.checkpoint, folder / "saved.pt") for each in sharded]
    return launched("fsdp", two_models), values, trainer().validate(module, HELD)[0], saved


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_ranks_that_are_there_already(tmp_path):
    alone = launched("single", two_models)
    expected = launched("single", loops.checkpoint, tmp_path / "single.pt")
    for models, values, again, saved in in_ranks(2, in_one_world, tmp_path):
        close(models, alone)
        # One model is evaluated though running statistics drift.
        assert again == pytest.approx({name: values[name] for name in again}, rel=1e-6)
        for found in saved:
            close(found, expected)


@pytest.mark.spawn
def test_everything_comes_home_from_processes_that_are_spawned(tmp_path):
    def fit(ranks, **flags):
        keeper = ModelCheckpoint("val_loss", save_top_k=2, dirpath=tmp_path / str(ranks))
        stop = EarlyStopping("val_loss", mode="max", patience=1)
        run, module = trainer(max_epochs=4, callbacks=[keeper, stop], **flags), Plain()
        run.fit(module, loader(24, 12 // ranks), HELD)
        assert (module.trainer, module.current_epoch) == (run, run.current_epoch)
        values = {name: float(value) for name, value in run.callback_metrics.items()}
        values["train_loss_step"] = keeper.best_model_score  # which is each rank's own
        paths = [Path(path).name for path in keeper.best_k_models]
        stopped = stop.stopped_epoch, run.current_epoch, run.global_step, run.should_stop, paths
        return module.state_dict(), values, stopped

    found, expected = fit(2, strategy="ddp_spawn", devices=2), fit(1)
    close(found[0], expected[0])
    assert found[1] == pytest.approx(expected[1], rel=1e-6)
    assert found[2] == expected[2]


@pytest.mark.parametrize(
    ("world_size", "where", "strategy"),
    [
        (2, "backward", "ddp_spawn"),
        (3, "call", "ddp_spawn"),  # where DistributedDataParallel makes buffers alike
        (2, "step", "ddp_sharded_spawn"),  # where owners hand out what they have stepped
    ],
)
def test_a_lost_rank_is_named_in_the_loop_itself(world_size, where, strategy, tmp_path):
    runner = Runner(strategy=strategy, devices=world_size, accelerator="cpu")
    with pytest.raises(PeerLostError):
        runner.launch(loops.loses, where, str(tmp_path))
    for rank in range(world_size - 1):
        what, again, peers, by_gloo, function = told(tmp_path, rank)
        assert what == again
        assert "failed and will never answer" in what
        assert world_size - 1 in peers  # perhaps with another one that it has let down
        assert (by_gloo, function) == (True, "loses")


def told(folder, rank):
    return json.loads((folder / f"rank{rank}.json").read_text())


def environ(folder, **variables):
    plain = {name: value for name, value in os.environ.items() if name not in OURS}
    return plain | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)} | variables


def test_a_lost_rank_is_named_in_a_process_group_of_the_scripts_own(tmp_path):
    """Nobody tells there how the rank ended; its process, which is gone, does."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = ["-m", "tests.run.script", tmp_path, "backward"]
    ranks = [Program(command, cwd=ROOT, env=environ(tmp_path, RANK=str(rank), **place)) for rank in range(2)]
    assert [rank.end(timeout=150).returncode for rank in ranks] == [1, -9]
    what, again, peers, by_gloo, function = told(tmp_path, 0)
    assert what == again == "the connection to rank 1 broke"
    assert (peers, by_gloo, function) == ([1], True, "loses")


def script(folder, *arguments):
    """Run the script to its end; nothing stays behind, neither processes nor files."""
    scratch = folder / "tmp"
    scratch.mkdir()
    command = ["-m", "tests.run.script", folder, *arguments]
    done = run_program(command, cwd=ROOT, env=environ(scratch), timeout=150)
    processes = psutil.process_iter(["cmdline"])
    left = [each for each in processes if str(folder) in " ".join(each.info["cmdline"] or [])]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert (alive, [*scratch.glob("distmetrics-*")]) == ([], [])
    return done


def check(folder):
    best = ModelCheckpoint("val_loss", dirpath=folder / "single")
    module, run = Plain(), trainer(max_epochs=2, callbacks=[best])
    expected = {"before": run.validate(module, HELD)[0]}
    run.fit(module, loader(24, 12), HELD)
    expected["validated"] = expected["tested"] = run.validate(module, HELD)[0]
    found = told(folder, 0)
    assert told(folder, 1) == found
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6)
    assert found["best"] == pytest.approx(best.best_model_score, rel=1e-6)
    close([torch.tensor(value) for value in found["weights"]], [*module.state_dict().values()])


@pytest.mark.parametrize(
    ("where", "rank", "how", "message"),
    [
        ("step", 1, "kill", "rank 1  was killed by SIGKILL"),
        pytest.param("step", 0, "kill", "", marks=pytest.mark.long),
        ("start", 1, "raise", "rank 1 failed before the world was complete: ended with exit code 1"),
        ("end", 1, "raise", "distmetrics: the job failed\nrank 1 ended with exit code 1"),
    ],
)
def test_a_rank_that_fails(tmp_path, where, rank, how, message):
    done = script(tmp_path, where, str(rank), how)
    assert done.returncode != 0
    assert message in done.stderr
    if (where, rank) == ("step", 1):  # the one that is left has saved what there was
        assert torch.load(tmp_path / "rescued.ckpt")["epoch"] == 0
    if where == "end":  # the script has started its other rank
        check(tmp_path)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs an mpirun")
def test_under_mpirun(tmp_path):
    names = [f"{name}_ALLOW_RUN_AS_ROOT{end}" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]
    variables = environ(tmp_path, MASTER_PORT=str(free_port()), **dict.fromkeys(names, "1"))
    command = ["mpirun", "-n", "2", sys.executable, "-m", "tests.run.script", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, env=variables, timeout=150)
    check(tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        pytest.param("ddp", 2, marks=pytest.mark.long),
        pytest.param("ddp2", 1, marks=pytest.mark.long),
        ("hsdp", 2),
    ],
)
def test_the_numbers_of_two_machines_are_those_of_one_process(strategy, ranks, tmp_path):
    with two_machines() as names:
        torchrun(names, "tests.run.script", str(tmp_path), "on machines", strategy, ranks=ranks)
    module, run = Logistic(), trainer(max_epochs=2)
    run.fit(module, loader(24, 12), HELD)
    (expected,) = run.validate(module, HELD)
    for rank in range(2 * ranks):
        found = told(tmp_path, rank)
        assert found["world_size"] == 2 * ranks
        assert found["validated"] == pytest.approx(expected, rel=1e-6)
        close([torch.tensor(value) for value in found["weights"]], [*module.state_dict().values()])


class SlowToLearn(Plain):
    """Rank 0 needs longer for a backward pass than the guard needs to be sure; nobody waits elsewhere for it."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("ours", loss, sync_dist=True)
        if self.global_rank == 0 and batch_idx == 1:
            loss.register_hook(lambda grad: time.sleep(4))
        return loss


def test_a_slow_backward_pass_is_no_fault():
    spawning = Trainer(strategy="ddp_spawn", devices=2, accelerator="cpu", max_epochs=1)
    spawning.fit(SlowToLearn(), loader(24))
    assert spawning.global_step == 3

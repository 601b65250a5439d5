"""A script that starts its other ranks itself, or that torchrun starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from distmetrics.train import ModelCheckpoint, Trainer
from tests.programs import run_program
from tests.train.models import Logistic, loader

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
MODULE = ["-m", "tests.train.script"]


def real(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def forked(command, **options):
    """Run a program that need not import once more what tests have imported; what it starts does."""
    return run_program(command[1:], **options)


def launch(command, tmp_path, start=real):
    """Run a script to its end; check that nothing stays behind, neither processes nor files."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environ = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    environ = {name: value for name, value in environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = start(command, cwd=ROOT, env=environ, timeout=150)
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    psutil.wait_procs(left, timeout=5)
    assert [p for p in left if p.is_running()] == []
    return done, sorted(path.name for path in scratch.iterdir() if path.name.startswith("distmetrics-"))


def expected(tmp_path):
    module, best = Logistic(), ModelCheckpoint("val_loss", dirpath=tmp_path / "single")
    trainer = Trainer(strategy="single", accelerator="cpu", max_epochs=2, callbacks=[best])
    before = trainer.validate(module, loader(5, 2, seed=1))[0]
    trainer.fit(module, loader(24, 12), loader(5, 2, seed=1))
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    return weights, before, trainer.validate(module, loader(5, 2, seed=1))[0], best.best_model_score


def check(tmp_path):
    weights, before, values, best = expected(tmp_path)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert (first.pop("rank"), second.pop("rank")) == (0, 1)
    assert first == second
    torch.testing.assert_close(torch.tensor(first["weights"]), weights, rtol=1e-6, atol=1e-7)
    assert first["before"] == pytest.approx(before, rel=1e-6)
    assert first["validate"] == first["test"] == pytest.approx(values, rel=1e-6)
    assert first["validate"]["val_count"] == 5
    assert first["best"] == pytest.approx(best, rel=1e-6)


def test_by_itself(tmp_path):
    done, files = launch([sys.executable, "-W", "error", *MODULE, str(tmp_path)], tmp_path)
    assert (done.returncode, done.stdout, done.stderr, files) == (0, "", "", [])
    check(tmp_path)


def torchrun(*arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", *where, *MODULE, *arguments]


def test_under_torchrun(tmp_path):
    done, files = launch(torchrun(str(tmp_path)), tmp_path)
    assert (done.returncode, files) == (0, []), done.stderr
    check(tmp_path)


def test_a_rank_that_fails_under_torchrun(tmp_path):
    done, files = launch(torchrun(str(tmp_path), "step", "1", "raise"), tmp_path, forked)
    assert (done.returncode, files) == (1, [])
    assert "ValueError: bad pixel" in done.stderr


@pytest.mark.parametrize(
    ("where", "rank", "how", "messages"),
    [
        ("step", 1, "raise", ["ValueError: bad pixel", "rank 1  raised ValueError: bad pixel", "in training_step"]),
        ("step", 1, "kill", ["PeerLostError: rank 1", "rank 1  was killed by SIGKILL"]),
        pytest.param("step", 0, "kill", [], marks=pytest.mark.long),
        ("start", 1, "raise", ["rank 1 failed before the world was complete: ended with exit code 1"]),
        pytest.param("between", 0, "raise", ["ValueError: bad pixel"], marks=pytest.mark.long),
        ("end", 1, "raise", ["distmetrics: the job failed\nrank 1 ended with exit code 1"]),
    ],
)
def test_a_rank_that_fails(tmp_path, where, rank, how, messages):
    done, files = launch([sys.executable, *MODULE, str(tmp_path), where, str(rank), how], tmp_path, forked)
    assert done.returncode != 0
    for message in messages:
        assert message in done.stderr
    assert files == []


def test_where_there_is_no_script(tmp_path):
    code = "from distmetrics.launch.script import command_line; command_line()"
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "ConfigurationError: strategy='ddp' runs the script again" in done.stderr
    assert "say strategy='ddp_spawn'" in done.stderr
    assert done.returncode == 1


ALONE_THEN_FORKED = """
from distmetrics import Runner
from distmetrics.train import Callback, Trainer
from tests.train.models import Logistic, loader

class Fails(Callback):
    def on_train_start(self, trainer, module):
        raise ValueError("a try that failed")

def fit(strategy, devices, **flags):
    Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=1, **flags).fit(Logistic(), loader(8))

fit("ddp2", 1)
print(Runner(strategy="ddp_fork", devices=2, accelerator="cpu").launch(lambda runner: runner.world_size))
fit("ddp", 1)
fit("ddp_fork", 2)
try:
    fit("ddp", 1, callbacks=[Fails()])
except ValueError:
    fit("ddp_fork", 2)
"""


def test_forks_after_a_world_of_one_process(tmp_path):
    done, files = launch([sys.executable, "-c", ALONE_THEN_FORKED], tmp_path)
    assert (done.returncode, done.stdout, done.stderr, files) == (0, "2\n", "", [])

"""Joining a script's world: the sizes must agree, and a group that the user has made is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distmetrics.errors import ConfigurationError
from distmetrics.launch.script import join
from distmetrics.launch.siblings import _command_line

ROOT = Path(__file__).parents[2]


def python(code, *options):
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=100)


def test_devices_must_be_what_the_launcher_started(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="devices=3, but torchrun runs 2 processes on this machine"):
        join(3)


def test_the_command_line_is_the_whole_one(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # pytest-xdist's has none
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-X", "dev", "-m", "package.train", "--lr", "0.1"])
    monkeypatch.setattr(sys, "argv", ["changed"])
    assert _command_line() == [sys.executable, "-X", "dev", "-m", "package.train", "--lr", "0.1"]


def test_a_group_of_the_users_own_is_used_and_left_open():
    done = python(
        "import torch.distributed as dist\n"
        "from distmetrics.train import Trainer\n"
        "from tests.train.models import Logistic, loader\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "trainer = Trainer(strategy='ddp', devices=1, accelerator='cpu', max_epochs=1)\n"
        "trainer.fit(Logistic(), loader(4))\n"
        "assert dist.is_initialized() and trainer.global_step == 1\n"
        "dist.barrier()\n"
        # torch itself keeps a group that DDP has used alive past destroy_process_group, and may abort in the way out
        # while gloo's threads still run; that is no part of what is tested.
        "import os; os._exit(0)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gloo
def test_a_one_liner_is_a_script_too_and_one_world_serves_all_calls():
    done = python(
        "from distmetrics.launch.script import join\n"
        "from distmetrics import all_gather_object\n"
        "for _ in range(2):\n"
        "    with join(2).running():\n"
        "        ranks = all_gather_object(join(2).environment.rank)\n"
        "assert ranks == [0, 1]\n"
        "try:\n"
        "    join(3)\n"
        "except ValueError as error:\n"
        "    print(str(error).partition('\\n')[0])\n"
    )
    line = "devices=3, but distmetrics runs 2 processes on this machine"
    # Two processes write to one pipe: their line ends may change places.
    assert (done.returncode, done.stdout.replace("\n", ""), done.stderr) == (0, line * 2, "")

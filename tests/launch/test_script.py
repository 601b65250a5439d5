"""Joining a script's world: the sizes must agree, and a group that the user has made is used."""

from __future__ import annotations

import os
import sys

import pytest

from distmetrics.errors import ConfigurationError
from distmetrics.launch.script import command_line, join
from tests import warm


def python(code):
    return warm.run("-W", "error", "-c", code, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_devices_must_be_what_the_launcher_started(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="devices=3, but torchrun runs 2 processes on this machine"):
        join(3)


def test_thecommand_line_is_the_whole_one(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # pytest-xdist's has none
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-X", "dev", "-m", "package.train", "--lr", "0.1"])
    monkeypatch.setattr(sys, "argv", ["changed"])
    assert command_line() == [sys.executable, "-X", "dev", "-m", "package.train", "--lr", "0.1"]


def test_a_group_of_the_users_own_is_used_and_left_open():
    done = python(
        "import torch.distributed as dist\n"
        "from distmetrics.train import Trainer\n"
        "from tests.train.models import Logistic, loader\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "trainer = Trainer(strategy='ddp', devices=1, accelerator='cpu', max_epochs=1)\n"
        "trainer.fit(Logistic(), loader(4))\n"
        "assert dist.is_initialized() and trainer.global_step == 1\n"
        "dist.destroy_process_group()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_may_end_right_after_its_last_collective():
    """gloo's threads may hold tensors of Python's yet, and would abort in an interpreter that is ending."""
    done = python(
        "import torch, torch.distributed as dist\n"
        "from distmetrics import all_gather\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"  # holds the group
        "all_gather(torch.ones(3))\n"
        "for _ in range(100):\n"
        "    dist.all_reduce(torch.ones(3), async_op=True)\n"
        "dist.destroy_process_group()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads' names in /proc")
def test_a_group_that_ddp_has_used_ends_its_threads_when_destroyed():
    done = python(
        "import gc, pathlib, torch, torch.distributed as dist\n"
        "from distmetrics.comm.process_group import GroupCommunicator\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "GroupCommunicator.of(dist.group.WORLD).barrier()\n"
        "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "gc.collect()\n"
        "dist.destroy_process_group()\n"
        "names = [task.joinpath('comm').read_text() for task in pathlib.Path('/proc/self/task').iterdir()]\n"
        "print([name for name in names if 'gloo' in name])\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_world_is_made_by_torch_2_6_too():
    done = python(
        "import torch.distributed as dist\n"
        "vars(dist.Store).get('clone') and delattr(dist.Store, 'clone')\n"  # which came with 2.8
        "from distmetrics.launch.script import join\n"
        "print(join(1).comm.world_size)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_world_of_this_process_alone_ends_whatever_was_raised_at_a_prompt_before():
    done = python(
        "import sys\n"
        "from distmetrics.launch.script import end_if_alone, join\n"
        "join(1)\n"
        "sys.last_value = ValueError('of an earlier cell')\n"
        "end_if_alone()\n"
        "del sys.last_value\n"
        "print('goes on')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


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

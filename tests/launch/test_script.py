"""Joining a script's world: the sizes must agree, and a group that the user has made is used."""

from __future__ import annotations

import os
import sys

import pytest

from distmetrics.errors import ConfigurationError
from distmetrics.launch.script import command_line
from tests.acceptance import ROOT
from tests.programs import run_program


def python(code):
    """Run a program, which must succeed and write nothing to stderr; return what it prints."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    done = run_program(["-c", code], cwd=ROOT, env=environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_command_line_is_the_whole_one(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", __file__, raising=False)  # pytest-xdist's has none
    command = ["-X", "dev", "-m", "package.train", "--lr", "0.1"]
    monkeypatch.setattr(sys, "orig_argv", ["python3", *command])
    monkeypatch.setattr(sys, "argv", ["changed"])
    assert command_line() == [sys.executable, *command]
    monkeypatch.delattr(main, "__file__")  # as in a notebook
    text = r"strategy='ddp' runs the script again(.|\n)*say strategy='ddp_spawn'"
    with pytest.raises(ConfigurationError, match=text):
        command_line()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads' names in /proc")
def test_a_group_of_the_users_own_is_used_and_left_open_and_ends_its_threads():
    printed = python(
        "import gc, pathlib, torch.distributed as dist\n"
        "from distmetrics.train import Trainer\n"
        "from tests.run.models import Plain, loader\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "trainer = Trainer(strategy='ddp', devices=1, accelerator='cpu', max_epochs=1)\n"
        "trainer.fit(Plain(), loader(4))\n"
        "assert dist.is_initialized() and trainer.global_step == 1\n"
        "gc.collect()\n"
        "dist.destroy_process_group()\n"
        "tasks = pathlib.Path('/proc/self/task').iterdir()\n"
        "names = [task.joinpath('comm').read_text() for task in tasks]\n"
        "print([name for name in names if 'gloo' in name])\n"
    )
    assert printed == "[]\n"


def test_a_script_may_end_right_after_its_last_collective():
    """gloo's threads may hold Python's tensors yet, and would abort an interpreter that ends."""
    python(
        "import torch, torch.distributed as dist\n"
        "from distmetrics import all_gather\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "net = torch.nn.Linear(2, 2)\n"
        "wrapped = torch.nn.parallel.DistributedDataParallel(net)\n"  # holds the group
        "all_gather(torch.ones(3))\n"
        "for _ in range(100):\n"
        "    dist.all_reduce(torch.ones(3), async_op=True)\n"
        "dist.destroy_process_group()\n"
    )


@pytest.mark.gloo
def test_a_world_of_this_process_alone_ends_before_forks_whatever_was_raised_before():
    printed = python(
        "import sys, torch.distributed as dist\n"
        "from distmetrics import Runner\n"
        "def launch(strategy, devices, fn):\n"
        "    return Runner(strategy=strategy, devices=devices, accelerator='cpu').launch(fn)\n"
        "clone = vars(dist.Store).get('clone')\n"
        "if clone:\n"  # torch 2.6 has none
        "    del dist.Store.clone\n"
        "print(launch('ddp', 1, lambda runner: runner.world_size))\n"
        "if clone:\n"
        "    dist.Store.clone = clone\n"
        "for fn in (lambda runner: runner.world_size, lambda runner: 1 / 0):\n"
        "    try:\n"
        "        print(launch('ddp', 1, fn))\n"
        "    except ZeroDivisionError as error:\n"
        "        sys.last_value = error\n"  # as at a prompt
        "    print(launch('ddp_fork', 2, lambda runner: runner.world_size))\n"
        "del sys.last_value\n"
        "print(dist.is_initialized())\n"
    )
    assert printed == "1\n1\n2\n2\nFalse\n"


@pytest.mark.gloo
def test_a_one_liner_is_a_script_too_and_one_world_serves_all_calls():
    printed = python(
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
    assert printed.replace("\n", "") == line * 2

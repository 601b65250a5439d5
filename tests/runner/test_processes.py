"""Real processes over gloo: started for the call, by the script itself, and by torchrun."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from distmetrics import ConfigurationError, DivergedError, InputTypeError, PeerLostError, Runner
from tests.runner import loops
from tests.runner.loops import Fit, plain
from tests.runner.test_runner import assert_same
from tests.train.test_ddp import launch, torchrun
from tests.train.test_ddp_spawn import no_process_is_left

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
__all__ = ["no_process_is_left"]


def spawned(fn, *args, world_size=2):
    return Runner(strategy="ddp_spawn", devices=world_size, accelerator="cpu").launch(fn, *args)


@pytest.mark.parametrize("options", [{"clip": 0.3, "steps": 2}, {"val": 2}])
def test_the_loop_of_one_process(options):
    found = Fit(strategy="ddp_spawn", devices=2, accelerator="cpu").run(**options)
    assert_same(found, plain(**{name: value for name, value in options.items() if name != "steps"}))


def test_methods_go_through_the_strategy():
    expected = Runner(strategy="single", accelerator="cpu").launch(loops.by_method)
    for found, wanted in zip(spawned(loops.by_method), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(ConfigurationError, match=r"Method\.loss computes with gradients past the strategy 'ddp_spawn'"):
        spawned(loops.past)


def test_uneven_evaluation_with_running_statistics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, net = spawned(loops.normed)
    assert (first, second) == (2, 3)
    assert type(net) is nn.Sequential  # the user's own model comes home
    saved = torch.load("normed.pt")["model"]
    assert torch.equal(net[0].running_mean, saved["0.running_mean"])


def test_what_can_not_come_home_is_named():
    with pytest.raises(InputTypeError, match=r"rank 0 returned a dict that can't be sent") as info:
        spawned(loops.returns_a_lambda)
    assert "result['fn'][0] is a lambda defined at" in str(info.value)


def test_what_can_not_be_sent_is_named():
    with pytest.raises(InputTypeError, match=r"args\[0\]\['x'\] cannot be sent to the processes of .*'ddp_spawn'"):
        spawned(loops.fails, {"x": (n for n in ())})


def test_a_rank_that_leaves_or_fails_ends_the_others():
    with pytest.raises(DivergedError, match="rank 1 has returned, and others still wait for it"):
        spawned(loops.fails, "leaves")
    with pytest.raises(ValueError, match="bad pixel"):
        spawned(loops.fails, "raises")


@pytest.mark.parametrize(
    ("world_size", "where", "strategy"),
    [
        (2, "backward", "ddp_spawn"),
        (3, "call", "ddp_spawn"),  # where DistributedDataParallel makes buffers alike
        (3, "step", "ddp_sharded_spawn"),  # where owners hand out what they have stepped
        (2, "all_reduce", "ddp_spawn"),
    ],
)
def test_a_lost_rank_is_named_in_the_loop_itself(world_size, where, strategy, tmp_path):
    runner = Runner(strategy=strategy, devices=world_size, accelerator="cpu")
    with pytest.raises(PeerLostError):
        runner.launch(loops.loses, where, str(tmp_path))
    for rank in range(world_size - 1):
        what, again, peers, by_gloo, function = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert what == again
        assert "failed and will never answer" in what
        assert world_size - 1 in peers  # perhaps with another one that it has let down
        assert (by_gloo, function) == (True, "loses")


def check(tmp_path):
    expected = plain(clip=0.3)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found.pop("who") == [2, rank, rank, 0]
        weights = {name: torch.tensor(value) for name, value in found["weights"].items()}
        assert_same((found["values"], weights), expected)


SCRIPT = ["-m", "tests.runner.script"]


def test_a_script_that_starts_its_other_ranks(tmp_path):
    done, files = launch([sys.executable, "-W", "error", *SCRIPT, str(tmp_path)], tmp_path)
    assert (done.returncode, done.stderr, files) == (0, "", [])
    assert done.stdout == "2 ranks\n"
    check(tmp_path)


@pytest.mark.long  # it comes to what the script does that starts its other ranks
def test_a_script_under_torchrun(tmp_path):
    command = [SCRIPT[1] if part == "tests.train.script" else part for part in torchrun(str(tmp_path))]
    done, files = launch(command, tmp_path)
    assert (done.returncode, files) == (0, []), done.stderr
    assert done.stdout == "2 ranks\n"
    check(tmp_path)


ADOPTED = ["-m", "tests.runner.adopted"]


def test_a_lost_rank_is_named_in_a_process_group_of_the_scripts_own_under_torchrun(tmp_path):
    """Nobody tells there how the rank ended; its process, which is gone, does."""
    command = [ADOPTED[1] if part == "tests.train.script" else part for part in torchrun(str(tmp_path))]
    launch(command, tmp_path)
    what, again, peers, by_gloo, function = json.loads((tmp_path / "rank0.json").read_text())
    assert what == again == "the connection to rank 1 broke"
    assert (peers, by_gloo, function) == ([1], True, "loses")

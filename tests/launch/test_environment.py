"""Who a process is, by the variables that launchers set."""

from __future__ import annotations

import pytest

from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import OWN_STORE, Environment, detect

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_nothing_is_found_in_an_ordinary_process():
    assert detect({"HOME": "somewhere"}) is None


def test_torchrun():
    found = detect(TORCHRUN)
    assert found == Environment(
        launcher="torchrun",
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        node_rank=1,
        main_address="node0",
        main_port=29500,
    )


def test_ray_says_node_rank():
    variables = {name: value for name, value in TORCHRUN.items() if name != "GROUP_RANK"} | {"NODE_RANK": "1"}
    assert detect(variables).node_rank == 1


def test_a_shell_script_may_set_the_least():
    found = detect({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    assert (found.local_rank, found.local_world_size, found.node_rank) == (1, 2, 0)


def test_our_own_launch_needs_no_address():
    found = detect({"RANK": "1", "WORLD_SIZE": "2", OWN_STORE: "/somewhere"})
    assert (found.launcher, found.rank, found.main_address) == ("distmetrics", 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "rank 8 in a world of 8"),
        ({"RANK": "-1"}, "rank -1 in a world of 8"),
        ({"LOCAL_RANK": "4"}, "local rank 4 in a world of 4"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many', which is no number"),
        ({"RANK": ""}, "RANK='', which is no number"),
    ],
)
def test_nonsense_is_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        detect(TORCHRUN | change)


def test_ranks_that_can_not_find_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="MASTER_ADDR is not"):
        detect({"RANK": "0", "WORLD_SIZE": "2"})


def test_variables_of_this_process_are_the_default(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect().rank == 5

"""The communicator of a process group that a script has set up by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import DistmetricsError, GroupCommunicator, all_reduce, current
from distmetrics.comm.process_group import _transport_device
from distmetrics.errors import ConfigurationError, PeerLostError

pytestmark = [pytest.mark.gloo, pytest.mark.usefixtures("job")]


@pytest.fixture
def job(tmp_path: Any) -> Iterator[None]:
    """A world of one under ``torch.distributed``, as torchrun would make it."""
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_job_of_torch_distributed_is_the_default() -> None:
    """A script under torchrun needs no ``comm=``; there is one communicator a group, which counts all calls."""
    comm = current()
    assert isinstance(comm, GroupCommunicator)
    assert current() is comm
    comm.barrier()
    assert all_reduce(torch.tensor(2)) == 2
    assert GroupCommunicator.of(dist.group.WORLD).calls == 1  # a world of one sends nothing
    # gloo moves CPU tensors: the trip to a GPU is spared.
    assert _transport_device(dist.new_group([0], timeout=timedelta(seconds=5))) == torch.device("cpu")


def test_a_communicator_needs_a_process_group() -> None:
    dist.destroy_process_group()
    try:
        with pytest.raises(ConfigurationError, match=r"no process group[\s\S]*init_process_group first"):
            GroupCommunicator()
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_broken_connection_without_a_board_says_what_the_backend_said() -> None:
    """Nobody can name the peer then; the text must not pretend to, and the group is closed for good."""
    comm = GroupCommunicator()
    for error in (ValueError("gloo"), RuntimeError("shape"), DistmetricsError("gloo"), RuntimeError("Broken pipe")):
        assert comm.blame(error) is None  # only a connection error may be put down to a peer, and somebody must know

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("first\nConnection closed by peer")

    with pytest.raises(PeerLostError, match="the connection to another rank broke") as caught:
        comm.run("all_gather", fails)
    assert "The backend says: Connection closed by peer" in str(caught.value)
    with pytest.raises(PeerLostError, match="the connection to another rank broke"):
        comm.barrier()


class _Syncs(torch.utils.data.Dataset[Any]):
    """Whose worker makes a call of the job's communicator, which its parent may have made or not."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> None:
        current().barrier()


@pytest.mark.parametrize("made_before", [True, False])
def test_a_fork_of_a_rank_is_no_rank(made_before: bool) -> None:
    """Its connections are its parent's: gloo says "Bad file descriptor", or waits."""
    if made_before:
        current().barrier()
    loader = torch.utils.data.DataLoader(_Syncs(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ConfigurationError, match="this process is a fork of rank 0 and is no rank"):
        next(iter(loader))
    current().barrier()  # the rank itself goes on

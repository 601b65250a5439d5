"""Where the ranks of ``doctor`` meet: each signs in at a store, and who never came is named.

Torch's own rendezvous waits for minutes and then says how many came, not who. Here the first rank
whose patience ends writes down who is missing, in one step that no other rank can contradict, and
all who came read the same.
"""

import json
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.errors import ConfigurationError, PeerLostError, first_line, who
from distmetrics.launch.environment import Environment

_POLL, _KNOCK = 0.02, 0.2  # seconds between looks into the store, and between tries to reach rank 0


def sign_in(store: Any, place: Environment, timeout: float) -> None:
    """Sign in at the store, and return once all ranks have.

    Raises:
        PeerLostError: ranks are missing after ``timeout`` seconds.
        ConfigurationError: another process is the same rank.
    """
    rank = place.rank
    if store.add(f"here/{rank}", 1) > 1:
        raise ConfigurationError(
            f"two processes say that they are rank {rank}; one is on {socket.gethostname()}",
            likely="RANK is exported for all processes of the job, or a process of an earlier job "
            "is still there.",
            do="give each process a RANK of its own, or start the job by torchrun.",
            rank=rank,
        )
    deadline = time.monotonic() + timeout
    while missing := _missing(store, place.world_size):
        if store.check(["verdict"]) or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    # The first verdict counts, also for those who see more by now.
    missing = json.loads(store.compare_set("verdict", "", json.dumps(missing)))
    if missing:
        where = f"{place.main_address}:{place.main_port}"
        raise PeerLostError(
            f"{who(missing)} of {place.world_size} never came to {where} within {timeout:g} s",
            likely="the process did not start or failed before it came here, or can't reach that "
            "address (a firewall), or has another MASTER_ADDR, MASTER_PORT or WORLD_SIZE.",
            do=f"read the log of {who(missing)}; if it is just slow to start, give all ranks a "
            "longer --timeout.",
            rank=rank,
            peers=missing,
        )


def _missing(store: Any, world_size: int) -> list[int]:
    keys = [f"here/{rank}" for rank in range(world_size)]
    if store.check(keys):
        return []
    return [rank for rank, key in enumerate(keys) if not store.check([key])]


def open_store(place: Environment, environ: Mapping[str, str], timeout: float) -> Any:
    """Open or reach the store of the job at rank 0's address.

    Raises:
        PeerLostError: nothing answers there within the time-out, or rank 0 can't listen there.
    """
    # A restarted job has the same store of torchrun's agent, in which the first one's ranks signed.
    # Ranks that disagree on how many they are do not meet.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    host, port = place.main_address, place.main_port
    hosting = place.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if not hosting:
            _knock(host, port, timeout)
        seconds = timedelta(seconds=timeout)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, None, hosting, seconds, wait_for_workers=False
        )
    except (OSError, OverflowError, UnicodeError, RuntimeError) as error:
        raise PeerLostError(
            f"rank {place.rank} can't open rank 0's store at {host}:{port} within {timeout:g} s; "
            f"the last answer: {first_line(error)}",
            likely="rank 0 did not start or failed early, another program has its port, a firewall "
            "is between them, or MASTER_ADDR and MASTER_PORT are not those of rank 0.",
            do="read rank 0's log; set MASTER_ADDR to its machine and MASTER_PORT to a free port "
            "of it, the same on all ranks; if it is just slow, give a longer --timeout.",
            rank=place.rank,
            peers=[0],
        ) from error
    return PrefixStore(f"distmetrics doctor {attempt} of {place.world_size}", store)


def _knock(host: str, port: int, timeout: float) -> None:
    """Wait until something listens at an address: torch's own waiting writes pages of stacks."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
            return
        except OSError:
            if time.monotonic() + _KNOCK > deadline:
                raise
            time.sleep(_KNOCK)

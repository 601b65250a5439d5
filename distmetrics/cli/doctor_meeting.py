"""Where the ranks of ``doctor`` meet: each signs in at a store, and who never came is named.

Torch's own rendezvous waits for minutes and then says how many came, not who. Here the first rank
whose patience ends writes down who is missing, in one step that no other rank can contradict, and
all who came read the same.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.cli.console import first_line
from distmetrics.errors import ConfigurationError, PeerLostError, who
from distmetrics.launch.environment import Environment

_POLL, _KNOCK = 0.02, 0.2  # seconds between looks into the store, and between tries to reach rank 0
_ROLL_CALL = 5.0  # seconds in which a rank answers, besides those that it waits for a lost one
_PARTING = 3.0  # seconds for the others to read the last word, before the store's process ends


@dataclass(frozen=True, slots=True)
class Meeting:
    """One rank's end of the store at which the ranks sign in.

    Attributes:
        store: of ``torch.distributed``, the same for all ranks.
        place: who this process is.
        timeout: seconds that all ranks have to come.
    """

    store: Any
    place: Environment
    timeout: float

    def sign_in(self) -> None:
        """Sign in, and return once all others have.

        Raises:
            PeerLostError: ranks are missing when the time is over.
            ConfigurationError: two processes are the same rank, or ranks disagree on their number.
        """
        started, rank = time.monotonic(), self.place.rank
        if trouble := self._trouble():
            self._decide(trouble)
            raise ConfigurationError(**trouble, rank=rank)  # also where the others are complete
        self.store.set(f"here/{rank}", "")
        while not self.store.check(["verdict"]):
            if not self._missing("here"):
                self._decide({})
            elif time.monotonic() - started >= self.timeout:
                self._decide(self._absence())
            else:
                time.sleep(_POLL)
        if verdict := json.loads(self.store.get("verdict")):
            verdict["per_rank"] = {int(each): line for each, line in verdict["per_rank"].items()}
            raise (PeerLostError if verdict["peers"] else ConfigurationError)(**verdict, rank=rank)

    def _decide(self, verdict: Mapping[str, Any]) -> None:
        """Write the parts of an error, or {} if all is well, unless another rank has."""
        self.store.compare_set("verdict", "", json.dumps(verdict))

    def _trouble(self) -> dict[str, Any]:
        """Return why this process can't be one of those that have signed in so far."""
        rank, size = self.place.rank, str(self.place.world_size)
        first = self.store.compare_set("size", "", size).decode()
        if size != first:
            what = f"ranks disagree on how many they are: rank {rank} says {size}, others {first}"
            return _error(what, do="give all processes the same WORLD_SIZE.")
        if self.store.add(f"signed/{rank}", 1) > 1:
            what = f"two processes say that they are rank {rank}; one of them is on "
            likely = "RANK is exported for all processes of the job, or a process of an earlier "
            return _error(
                what + socket.gethostname(),
                likely=likely + "job is still there.",
                do="give each process a RANK of its own, or start the job by torchrun.",
            )
        return {}

    def _absence(self) -> dict[str, Any]:
        missing, size = self._missing("here"), self.place.world_size
        where = f"{self.place.main_address}:{self.place.main_port}"
        lines = dict.fromkeys(range(size), "signed in") | dict.fromkeys(missing, "never signed in")
        return _error(
            f"{who(missing)} of {size} never came to {where} within {self.timeout:g} s",
            lines,
            missing,
            likely="the process did not start or failed before it came here, or can't reach that "
            "address: a firewall, or another MASTER_ADDR or MASTER_PORT.",
            do=f"read the log of {who(missing)}; if it is just slow to start, give all ranks a "
            "longer --timeout.",
        )

    def _missing(self, key: str) -> list[int]:
        keys = {rank: f"{key}/{rank}" for rank in range(self.place.world_size)}
        if self.store.check([*keys.values()]):
            return []
        return [rank for rank in keys if not self.store.check([keys[rank]])]

    def lost(self) -> list[int]:
        """After a failure, return the ranks that do not answer, once all have heard of it."""
        self.store.set(f"answers/{self.place.rank}", "")
        _wait(lambda: not self._missing("answers"), self.timeout + _ROLL_CALL)
        return self._missing("answers")

    def part(self) -> None:
        """Leave once rank 0 has shown the findings; rank 0, who may host the store, leaves last.

        Launchers end a job's other processes when one fails: rank 0 would be ended before it has
        said why. Who has parted asks nothing of the store any more.
        """
        with contextlib.suppress(RuntimeError):  # rank 0, and the store with it, may be gone
            if self.place.rank > 0:
                _wait(lambda: self.store.check(["shown"]) or 0 in self._missing("here"), _PARTING)
                self.store.add("parted", 1)
            else:
                self.store.set("shown", "")
                others = self.place.world_size - len(self._missing("here")) - 1
                _wait(lambda: self.store.add("parted", 0) >= others, _PARTING)


def _error(
    what: str,
    per_rank: Mapping[int, str] | None = None,
    peers: Sequence[int] = (),
    *,
    likely: str = "",
    do: str,
) -> dict[str, Any]:
    """Return the parts of an error, for the store."""
    lines = per_rank or {}
    return {"what": what, "per_rank": lines, "peers": peers, "likely": likely, "do": do}


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Return once a condition holds, or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL)


def open_store(place: Environment, environ: Mapping[str, str], timeout: float) -> Any:
    """Open or reach the store of the job at rank 0's address.

    Raises:
        PeerLostError: nothing answers there within the time-out, or rank 0 can't listen there.
    """
    host, port = place.main_address, place.main_port
    hosting = place.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    seconds = timedelta(seconds=max(1.0, timeout))
    try:
        if hosting:
            socket.getaddrinfo(host, None)  # torch would listen, and wait for itself
        else:
            _knock(host, port, timeout)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, None, hosting, seconds, wait_for_workers=False
        )
    except (OSError, OverflowError, UnicodeError, RuntimeError) as error:
        what = f"rank 0 was not at {host}:{port} within {timeout:g} s"
        raise PeerLostError(
            f"rank 0 can't open the store at {host}:{port}" if hosting else what,
            per_rank={place.rank: f"the last answer: {first_line(error)}"},
            likely="rank 0 did not start or failed early, another program has its port, a firewall "
            "is between them, or MASTER_ADDR and MASTER_PORT are not those of rank 0.",
            do="read rank 0's log; set MASTER_ADDR to its machine and MASTER_PORT to a free port "
            "of it, the same on all ranks; if it is just slow, give a longer --timeout.",
            rank=place.rank,
            peers=[0],
        ) from error
    # A restarted job has the same store of torchrun's agent, in which the first one's ranks signed.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"distmetrics doctor {attempt}", store)


def _knock(host: str, port: int, timeout: float) -> None:
    """Wait until something listens at an address: torch's own waiting writes pages of stacks."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
        except OSError:
            if time.monotonic() + _KNOCK > deadline:
                raise
            time.sleep(_KNOCK)
        else:
            return

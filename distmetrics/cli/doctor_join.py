"""How the ranks of ``doctor`` find each other: each signs in at the store, and who never came is
named in time.

Torch's own rendezvous waits for minutes and then says how many came, not who. Here the first rank
whose patience ends writes down who is missing, in one step that no other rank can contradict, and
all who came read the same.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist

from distmetrics.cli.doctor_environ import uses_agent
from distmetrics.errors import ConfigurationError, PeerLostError, compose, who
from distmetrics.launch.place import Environment
from distmetrics.liveness.departures import Departure, Departures

_POLL = 0.02
_KNOCK = 0.2  # seconds between two tries to reach rank 0
_ALL_IN = "all in"
_ROLL_CALL = 5.0  # seconds in which the ranks that are left answer, once one has failed
_PARTING = 3.0  # seconds for the others to read the last word, before the process that hosts the store ends


class Meeting:
    """One rank's end of the store at which the ranks sign in.

    Args:
        store: of ``torch.distributed``, the same for all ranks.
        environment: who this process is.
        where: the address of the store, for messages.
        timeout: seconds that all ranks have to come.

    Attributes:
        store: the same.
        departures: where a rank that fails says so.
    """

    def __init__(self, store: Any, environment: Environment, where: str, timeout: float) -> None:
        self.store = store
        self.departures = Departures(dist.PrefixStore("board", store))  # type: ignore[attr-defined]
        self._rank, self._size = environment.rank, environment.world_size
        self._where, self._timeout = where, timeout
        self._host = socket.gethostname()

    def sign_in(self, deadline: float) -> float:
        """Sign in and wait for the others; return how many seconds this rank waited.

        Args:
            deadline: by ``time.monotonic()``.

        Raises:
            PeerLostError: ranks are missing at the deadline.
            ConfigurationError: two processes are the same rank, or ranks disagree on their number.
        """
        started = time.monotonic()
        if strange := self._strange():
            self._decide(strange)
            raise self._refusal(strange)  # also where the others are complete without this process
        self.store.set(f"here/{self._rank}", self._host)
        everyone = [f"here/{rank}" for rank in range(self._size)]
        while not (verdict := self._verdict()):
            if self.store.check(everyone):
                self._decide(_ALL_IN)
            elif time.monotonic() >= deadline:
                self._decide(f"missing {json.dumps(self._missing('here'))}")
            else:
                time.sleep(_POLL)
        if verdict != _ALL_IN:
            raise self._refusal(verdict)
        return time.monotonic() - started

    def _strange(self) -> str:
        """Say why this process can't be one of those that have signed in so far."""
        size = self.store.compare_set("size", "", str(self._size)).decode()
        if size != str(self._size):
            return f"size {self._rank} {self._size} {size}"
        return (
            f"twice {self._rank} {self._host}"
            if self.store.add(f"signed/{self._rank}", 1) > 1
            else ""
        )

    def _verdict(self) -> str:
        return str(self.store.get("verdict").decode()) if self.store.check(["verdict"]) else ""

    def _decide(self, verdict: str) -> None:
        """Write the verdict, unless another rank has."""
        self.store.compare_set("verdict", "", verdict)

    def _missing(self, key: str) -> list[int]:
        return [rank for rank in range(self._size) if not self.store.check([f"{key}/{rank}"])]

    def _refusal(self, verdict: str) -> Exception:
        kind, _, rest = verdict.partition(" ")
        if kind == "size":
            rank, theirs, first = rest.split(" ")
            text = compose(
                f"ranks disagree on how many they are: rank {rank} says {theirs}, others {first}",
                {},
                do="give all processes the same WORLD_SIZE.",
            )
            return ConfigurationError(text, rank=self._rank)
        if kind == "twice":
            rank, host = rest.split(" ")
            text = compose(
                f"two processes say that they are rank {rank}; one of them is on {host}",
                {},
                likely="RANK is exported for all processes of the job, or a process of an "
                "earlier job is still there.",
                do="give each process a RANK of its own, or start the job by torchrun.",
            )
            return ConfigurationError(text, rank=self._rank)
        missing = json.loads(rest)
        here = dict.fromkeys(range(self._size), "signed in")
        text = compose(
            f"{who(missing)} of {self._size} never came to {self._where} within "
            f"{self._timeout:g} s",
            here | dict.fromkeys(missing, "never signed in"),
            likely="the process did not start or failed before it came here, or can't reach that "
            "address: a firewall, "
            "or another MASTER_ADDR or MASTER_PORT.",
            do=f"read the log of {who(missing)}; if it is just slow to start, give all ranks a "
            "longer --timeout.",
        )
        return PeerLostError(text, rank=self._rank, peers=missing)

    def roll_call(self, why: str, patience: float = 0.0) -> list[int]:
        """After a failure: tell the others, sign once more, and return the ranks that do not within
        a few seconds.

        Args:
            why: what failed; ends the others' waits for this rank.
            patience: more seconds, where others may not have heard of the failure and still wait
                for what is lost.
        """
        self.departures.leave(Departure(self._rank, why, failed=True))
        self.store.set(f"left over/{self._rank}", "")
        until = time.monotonic() + _ROLL_CALL + patience
        while (missing := self._missing("left over")) and time.monotonic() < until:
            time.sleep(_POLL)
        return missing

    def part(self) -> None:
        """Leave once rank 0 has shown what was found, and, for who may host the store, once the
        others know.

        Launchers end a job's other processes when one fails: rank 0 would be ended before it has
        said why.
        """
        until = time.monotonic() + _PARTING
        with contextlib.suppress(RuntimeError):  # rank 0, and the store with it, may be gone
            if self._rank == 0:
                self.store.set("shown", "")
                here = self._size - len(self._missing("here"))
                while self.store.add("parted", 0) < here - 1 and time.monotonic() < until:
                    time.sleep(_POLL)
                return
            while (
                not self.store.check(["shown"])
                and self.store.check(["here/0"])
                and time.monotonic() < until
            ):
                time.sleep(_POLL)
            self.store.add("parted", 1)


def found_store(environment: Environment, environ: Mapping[str, str], deadline: float) -> Any:
    """Open or reach the store of the job at rank 0's address.

    Raises:
        PeerLostError: nothing answers there before the deadline.
        ConfigurationError: rank 0 can't listen there.
    """
    host, port = environment.main_address, environment.main_port
    hosting = environment.rank == 0 and not uses_agent(environ)
    if hosting:
        _resolve(host)
    else:
        _knock(environment, deadline)
    left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=hosting, timeout=left, wait_for_workers=False
        )
    except RuntimeError as error:
        said = str(error).strip().partition("\n")[0]
        text = compose(
            f"rank {environment.rank} can't {'open' if hosting else 'use'} the store at "
            f"{host}:{port}",
            {environment.rank: said},
            likely="another program has that port"
            + (", or rank 0 is not on that machine." if hosting else "."),
            do="set MASTER_PORT to a free port, the same on all ranks; or start the job by "
            "torchrun.",
        )
        raise ConfigurationError(text, rank=environment.rank) from error
    # A restarted job has the same store of torchrun's agent, in which the first one's ranks have
    # signed.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"distmetrics doctor {attempt}", store)  # type: ignore[attr-defined]


def _resolve(host: str) -> None:
    """Refuse an address that is none: torch would listen, and then wait for itself until the time
    is over.
    """
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        text = compose(
            f"rank 0 can't open the store at {host}, which does not resolve",
            {0: str(error)},
            do="set MASTER_ADDR to a name or address of rank 0's machine that all of them know.",
        )
        raise ConfigurationError(text, rank=0) from error


def _knock(environment: Environment, deadline: float) -> None:
    """Wait until something listens at rank 0's address: torch's own waiting writes pages of stacks."""
    host, port = environment.main_address, environment.main_port
    started, said = time.monotonic(), "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left).close()
        except (OSError, OverflowError) as error:
            said = str(error)
            time.sleep(max(0.0, min(_KNOCK, deadline - time.monotonic())))
        else:
            return
    text = compose(
        f"rank 0 was not at {host}:{port} within {time.monotonic() - started:.0f} s",
        {
            0: "never came, or is not reached",
            environment.rank: f"waited for it; the last answer: {said}",
        },
        likely="rank 0 did not start or failed early, a firewall is between them, or MASTER_ADDR "
        "and MASTER_PORT are "
        "not those of rank 0.",
        do="read rank 0's log, and try that address from this machine; if it is just slow, give "
        "a longer --timeout.",
    )
    raise PeerLostError(text, rank=environment.rank, peers=[0])


class Watchdog:
    """Ends this process if one step takes too long: a call that never returns can't be ended
    otherwise.

    Args:
        limit: seconds for each step.
        end: called with the step that took too long and its limit, in a thread of its own; it
            should end the process.
    """

    def __init__(self, limit: float, end: Callable[[str, float], None]) -> None:
        self._limit = limit
        self._end = end
        self._change = threading.Condition()
        self._step, self._deadline, self._over = "", 0.0, False

    def step(self, what: str) -> None:
        """Begin a step."""
        with self._change:
            self._step, self._deadline = what, time.monotonic() + self._limit
            self._change.notify()

    def __enter__(self) -> Watchdog:
        self.step("the start")
        threading.Thread(target=self._watch, name="distmetrics doctor", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._change:
            self._over = True
            self._change.notify()

    def _watch(self) -> None:
        with self._change:
            while not self._over:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    break
                self._change.wait(left)
        if not self._over:
            self._end(self._step, self._limit)

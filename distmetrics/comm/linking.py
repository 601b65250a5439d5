"""Connect the ranks of a group that are all on one machine: each finds that it can, and all do or
none does.

Large data, other machines and other operations stay with the backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distmetrics.comm.links import Links
from distmetrics.errors import ConfigurationError

LINKS = "DISTMETRICS_LINKS"
_MOST = 64  # ranks: each holds a socket for every other
_SET_UP = 5.0  # seconds for what is there already, when it is asked for
_TOKEN = 16  # bytes by which a rank knows another
_RECORD = struct.Struct(
    f"32s{_TOKEN}s"
)  # the machine, and the rank's token; zeros from a rank that wants no links
_NAMESPACES = ("net", "pid", "user")  # in which two processes may differ on one machine

_Gather = Callable[[bytes], Sequence[bytes]]  # every rank's bytes, as many on each


def links_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this rank may have links: on Linux, unless ``DISTMETRICS_LINKS`` is "off".

    Raises:
        ConfigurationError: it is anything but "on", "off" or empty.

    >>> links_wanted({"DISTMETRICS_LINKS": "off"})
    False
    """
    said = (os.environ if environ is None else environ).get(LINKS, "").strip().lower() or "on"
    if said not in ("on", "off"):
        raise ConfigurationError(f"{LINKS}: neither on nor off: {said!r}", do="say on or off.")
    return said == "on" and sys.platform.startswith("linux")


def link(
    gather: _Gather,
    rank: int,
    world_size: int,
    *,
    wanted: bool,
    timeout: float | None = None,
    names: Sequence[int] = (),
) -> Links | None:
    """Connect the ranks of a group, if all are on one machine and want it; every rank gets links,
    or none does.

    Args:
        gather: gives every rank's bytes, by another way: one to three times, as often on every
            rank.
        rank: of this process in the group.
        world_size: number of its ranks.
        wanted: whether this rank may have links.
        timeout: seconds that an exchange may last.
        names: the job's numbers of the group's ranks.
    """
    with contextlib.ExitStack() as at_failure:
        listener, token = _listen(at_failure) if wanted and 1 < world_size <= _MOST else (None, b"")
        mine = _RECORD.pack(_machine(), token) if listener is not None else bytes(_RECORD.size)
        records = [_RECORD.unpack(record) for record in gather(mine)]
        tokens = [record[1] for record in records]
        if listener is None or any(
            machine != records[0][0] or not any(machine) for machine, _ in records
        ):
            return None
        found = _connect(tokens[:rank], token, at_failure)
        if not all(map(any, gather(bytes([found is not None])))):
            return None
        assert found is not None
        came = _accept(listener, tokens, rank, at_failure)
        if not all(map(any, gather(bytes([came is not None])))):
            return None
        assert came is not None
        at_failure.pop_all()
        listener.close()
        return Links({**dict(enumerate(found)), **came}, timeout, names, rank)


def _listen(at_failure: contextlib.ExitStack) -> tuple[socket.socket | None, bytes]:
    """Open a socket that the others find by a token which only they get; None where there are to be
    no links.
    """
    token = secrets.token_bytes(_TOKEN)
    try:
        listener = at_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.settimeout(_SET_UP)
        listener.bind(
            _address(token)
        )  # in Linux's abstract namespace: no file, and none in another network namespace
        listener.listen(_MOST)
    except OSError:  # a sandbox that has no such sockets: told to all by an empty record
        return None, b""
    return listener, token


def _address(token: bytes) -> bytes:
    """Name a rank's socket; the machine's other users see it, and must not learn the token by which
    it knows ranks.
    """
    return b"\0distmetrics-" + hashlib.sha256(token).hexdigest()[: 2 * _TOKEN].encode()


def _connect(
    tokens: Sequence[bytes], mine: bytes, at_failure: contextlib.ExitStack
) -> list[socket.socket] | None:
    """Connect to the ranks below, and say who this is; None where one can't be reached."""
    sockets = []
    try:
        for token in tokens:
            sock = at_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_SET_UP)
            sock.connect(_address(token))
            sock.sendall(mine)
            sockets.append(sock)
    except OSError:  # told to all ranks in the round that follows
        return None
    return sockets


def _accept(
    listener: socket.socket, tokens: Sequence[bytes], rank: int, at_failure: contextlib.ExitStack
) -> dict[int, socket.socket] | None:
    """Take the connections of the ranks above, which have been made; None where one is not of
    theirs.
    """
    sockets: dict[int, socket.socket] = {}
    above = {token: peer for peer, token in enumerate(tokens) if peer > rank}
    try:
        for _ in range(len(above)):
            sock = at_failure.enter_context(listener.accept()[0])
            sock.settimeout(_SET_UP)
            peer = above.pop(sock.recv(_TOKEN, socket.MSG_WAITALL), None)
            if peer is None:
                return None
            sockets[peer] = sock
    except OSError:  # told to all ranks in the round that follows
        return None
    return sockets


def _machine() -> bytes:
    """Return what is the same for processes that can reach each other by the names of this machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        spaces = [Path(f"/proc/self/ns/{name}").stat().st_ino for name in _NAMESPACES]
    except OSError:  # no /proc: nothing is known of where this is
        return bytes(32)
    return hashlib.sha256(repr((boot, spaces)).encode()).digest()

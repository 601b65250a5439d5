"""The checks of ``doctor`` that each process makes: its launcher, names and interfaces."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from distmetrics.errors import ConfigurationError, DistmetricsError, compose, who
from distmetrics.launch.clusters import detect
from distmetrics.launch.environment import Environment

Status = Literal["ok", "warn", "fail"]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SLOW_LOOKUP = 1.0  # seconds; a name server that works takes milliseconds


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the check.
        status: "ok", "warn" for what is slow or will bite later, "fail" for what stops a job or
            makes it wrong.
        found: what was found.
        do: what to do about it; nothing where all is well.
        ranks: who found it; empty where it is about the job as a whole.
        numbers: what was measured, for machines.
    """

    name: str
    status: Status
    found: str
    do: str = ""
    ranks: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Who found what, and what to do."""
        text = f"{who(self.ranks)}: {self.found}" if self.ranks else self.found
        return f"{text}\nDo: {self.do}" if self.do else text


def of_error(name: str, error: BaseException) -> Finding:
    """Return an error as a failed check, whose advice stands apart."""
    if not isinstance(error, DistmetricsError):
        return Finding(name, "fail", f"{type(error).__name__}: {error}")
    text = compose(error.what, error.per_rank, notes=error.notes, likely=error.likely)
    return Finding(name, "fail", text, error.do)


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return each check's findings: one where all ranks agree, else one for each that differs.

    Ranks on which a check is fine are told together, in the words of the first of them.

    >>> ok, bad = Finding("names", "ok", "fine"), Finding("names", "fail", "no address", "mend it")
    >>> [(finding.status, finding.ranks) for finding in merged([[ok], [bad], [ok]])]
    [('ok', (0, 2)), ('fail', (1,))]
    """
    findings = []
    for of_check in zip(*by_rank, strict=True):
        alike: dict[str, list[int]] = {}
        for rank, finding in enumerate(of_check):
            text = "" if finding.status == "ok" else finding.found
            alike.setdefault(text, []).append(rank)
        for ranks in alike.values():
            who_found = tuple(ranks) if len(alike) > 1 else ()
            findings.append(replace(of_check[ranks[0]], ranks=who_found))
    return findings


def launcher(environ: Mapping[str, str]) -> tuple[Environment | None, Finding]:
    """Return who this process is; None where nobody launched it, or the variables contradict."""
    try:
        place = detect(environ)
    except ConfigurationError as error:
        return None, of_error("launcher", error)
    if place is not None:
        where = f"rank 0 at {place.main_address}:{place.main_port}"
        here = f"{place.local_world_size} on this machine, {where}"
        text = f"{place.launcher} says {place.world_size} ranks, {here}"
        return place, Finding("launcher", "ok", text)
    half = [name for name in TORCHRUN[:3] if name in environ]  # an address alone is no job
    if not half:
        return None, Finding("launcher", "ok", "no launcher: this process is on its own")
    missing = [name for name in TORCHRUN[:2] if name not in environ]
    text = f"set: {', '.join(half)}; not set: {', '.join(missing)}: who started this process?"
    do = f"start the job by torchrun, or set all of {', '.join(TORCHRUN)}, or unset them."
    return None, Finding("launcher", "fail", text, do)


def own_checks(environ: Mapping[str, str], place: Environment | None) -> list[Finding]:
    """Return the findings of the checks that need no other rank."""
    several = place is not None and place.local_world_size < place.world_size
    told = bool(environ.get("GLOO_SOCKET_IFNAME"))
    there = [name for _, name in socket.if_nameindex()]
    findings = [
        host_name(socket.gethostname(), several=several, told=told),
        interfaces(there, environ, several=several),
    ]
    if place is not None and place.main_address:  # else ranks tell it through MPI
        findings.append(main_address(place.main_address, several=several))
    return findings


def main_address(address: str, *, several: bool) -> Finding:
    """Look up where rank 0 is reached; ``several``: by other machines too."""
    do = "set MASTER_ADDR to a name or address of rank 0's machine that all of them reach."
    return _resolved("main address", f"rank 0's address {address}", address, do, "fail", several)


def host_name(name: str, *, several: bool, told: bool) -> Finding:
    """Look up this machine's own name, as gloo does for each group unless told an interface."""
    do = f"put {name} with the address of its network into /etc/hosts, or set GLOO_SOCKET_IFNAME."
    bad: Status = "fail" if several and not told else "warn"
    return _resolved("names", f"the host name {name}", name, do, bad, several)


def _resolved(check: str, what: str, name: str, do: str, bad: Status, several: bool) -> Finding:
    started = time.perf_counter()
    try:
        addresses = lookup(name)
    except (OSError, UnicodeError) as error:
        return Finding(check, bad, f"{what} does not resolve: {error}", do)
    seconds = time.perf_counter() - started
    text = f"{what} resolves to {', '.join(addresses)}"
    if several and all(map(is_loopback, addresses)):
        return Finding(check, bad, f"{text}, where other machines can't reach it", do)
    if seconds >= _SLOW_LOOKUP:
        text += f", after {seconds:.1f} s: each connection waits for that"
        return Finding(check, "warn", text, f"mend the name server (/etc/resolv.conf), or {do}")
    return Finding(check, "ok", text, numbers={"seconds": seconds})


def lookup(name: str) -> list[str]:
    """Return the addresses of a name."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_loopback(address: str) -> bool:
    """Return True if only this machine reaches an address.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # no address
        return False


def interfaces(there: Sequence[str], environ: Mapping[str, str], *, several: bool) -> Finding:
    """Refuse interfaces that gloo or NCCL are told to take and that are not there, or not reached.

    Args:
        there: the interfaces of this machine.
        environ: the variables of this process.
        several: the job is on several machines.
    """
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = environ.get(variable, "")
        taken = matching(variable, value, there) if value else ["any"]
        local = all(name.startswith("lo") for name in taken)
        if not taken or (several and local):
            problem = "is not reached from other machines" if taken else "is not there"
            text = f"{variable}={value} {problem}; there are: {', '.join(there)}"
            do = f"unset {variable}, or set it to the interface of the job's network."
            return Finding("interfaces", "fail", text, do)
    return Finding("interfaces", "ok", ", ".join(there))


def matching(variable: str, value: str, there: Sequence[str]) -> list[str]:
    """Return the interfaces that a variable asks for; [] where gloo does not get all of its own.

    NCCL takes prefixes, exact names after ``=``, and all others after ``^``.

    >>> there = ["lo", "eth0"]
    >>> matching("GLOO_SOCKET_IFNAME", "eth", there), matching("NCCL_SOCKET_IFNAME", "eth", there)
    ([], ['eth0'])
    """
    names = tuple(name.strip() for name in value.lstrip("^=").split(","))
    exactly = [name for name in there if name in names]
    if variable == "GLOO_SOCKET_IFNAME":
        return exactly if len(exactly) == len(names) else []
    taken = exactly if "=" in value[:2] else [name for name in there if name.startswith(names)]
    return [name for name in there if name not in taken] if value.startswith("^") else taken

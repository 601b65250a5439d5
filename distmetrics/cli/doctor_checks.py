"""The checks of ``doctor`` that each process makes: its launcher, names and interfaces."""

import ipaddress
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from distmetrics.errors import ConfigurationError, DistmetricsError, compose, who
from distmetrics.launch.environment import Environment, detect

Status = Literal["ok", "warn", "fail"]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NOT_REACHED = (
    "see the other checks, and that no firewall is between the ranks; if they are just slow, give "
    "a longer --timeout."
)
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
        return Finding(name, "fail", f"{type(error).__name__}: {error}", _NOT_REACHED)
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
        texts = ["" if finding.status == "ok" else finding.found for finding in of_check]
        for text in dict.fromkeys(texts):
            ranks = [rank for rank, other in enumerate(texts) if other == text]
            finding = of_check[ranks[0]]
            if len(ranks) < len(texts):
                finding = replace(finding, ranks=tuple(ranks))
            findings.append(finding)
    return findings


def launcher(environ: Mapping[str, str]) -> tuple[Environment | None, Finding]:
    """Return who this process is; None where nobody launched it, or the variables contradict."""
    try:
        place = detect(environ)
    except ConfigurationError as error:
        return None, of_error("launcher", error)
    if place is not None:
        where = f"rank 0 at {place.main_address}:{place.main_port}"
        here = f"{place.local_world_size} on this machine"
        text = f"{place.launcher} says {place.world_size} ranks, {here}, {where}"
        return place, Finding("launcher", "ok", text)
    # An address alone is no job.
    present = [name for name in TORCHRUN[:3] if name in environ]
    if not present:
        return None, Finding("launcher", "ok", "no launcher: this process is on its own")
    text = f"{', '.join(present)} set, but not all of {', '.join(TORCHRUN)}: who started this?"
    do = "start the job by torchrun, or set all of them, or unset them."
    return None, Finding("launcher", "fail", text, do)


def own_checks(environ: Mapping[str, str], place: Environment | None) -> list[Finding]:
    """Return the findings of the checks that need no other rank."""
    several = place is not None and place.local_world_size < place.world_size
    there = [name for _, name in socket.if_nameindex()]
    findings = [
        # As gloo does for each group, unless it is told an interface.
        host_name(socket.gethostname(), remote=several and "GLOO_SOCKET_IFNAME" not in environ),
        interfaces(there, environ, several=several),
    ]
    # Without an address, ranks tell it to each other through MPI.
    if place is not None and place.main_address:
        findings.append(main_address(place.main_address, remote=several))
    return findings


def main_address(address: str, *, remote: bool) -> Finding:
    """Look up where rank 0 is reached; ``remote``: by other machines too."""
    do = "set MASTER_ADDR to a name or address of rank 0's machine that all of them reach."
    problem = Finding("main address", "fail", f"rank 0's address {address}", do)
    return _resolved(problem, address, remote)


def host_name(name: str, *, remote: bool) -> Finding:
    """Look up this machine's own name; ``remote``: other machines use what it resolves to."""
    do = f"put {name} with the address of its network into /etc/hosts, or set GLOO_SOCKET_IFNAME."
    problem = Finding("names", "fail" if remote else "warn", f"the host name {name}", do)
    return _resolved(problem, name, remote)


def _resolved(problem: Finding, name: str, remote: bool) -> Finding:
    """Look up a name; return the problem, with what is wrong, or that all is well."""
    started = time.perf_counter()
    try:
        addresses = lookup(name)
    except (OSError, UnicodeError) as error:
        return replace(problem, found=f"{problem.found} does not resolve: {error}")
    seconds = time.perf_counter() - started
    text = f"{problem.found} resolves to {', '.join(addresses)}"
    if remote and all(ipaddress.ip_address(each).is_loopback for each in addresses):
        return replace(problem, found=f"{text}, where other machines can't reach it")
    if seconds >= _SLOW_LOOKUP:
        text += f", after {seconds:.1f} s: each connection waits for that"
        do = f"mend the name server (/etc/resolv.conf), or {problem.do}"
        return Finding(problem.name, "warn", text, do)
    return Finding(problem.name, "ok", text)


def lookup(name: str) -> list[str]:
    """Return the addresses of a name."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def interfaces(there: Sequence[str], environ: Mapping[str, str], *, several: bool) -> Finding:
    """Refuse interfaces that gloo or NCCL are told to take and that are not there, or not reached.

    Args:
        there: the interfaces of this machine.
        environ: the variables of this process.
        several: the job is on several machines.
    """
    listed = ", ".join(there)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = environ.get(variable, "")
        # NCCL takes exact names after =, and all others after ^.
        if not value or value[0] in "=^":
            continue
        taken = matching(variable, value, there)
        if not taken:
            problem = "is not there"
        elif several and all(name.startswith("lo") for name in taken):
            problem = "is not reached from other machines"
        else:
            continue
        text = f"{variable}={value} {problem}; there are: {listed}"
        do = f"unset {variable}, or set it to the interface of the job's network."
        return Finding("interfaces", "fail", text, do)
    return Finding("interfaces", "ok", listed)


def matching(variable: str, value: str, there: Sequence[str]) -> list[str]:
    """Return the interfaces that a variable asks for; [] where gloo does not get all of its own.

    NCCL takes prefixes.

    >>> there = ["lo", "eth0"]
    >>> matching("GLOO_SOCKET_IFNAME", "eth", there), matching("NCCL_SOCKET_IFNAME", "eth", there)
    ([], ['eth0'])
    """
    names = tuple(value.split(","))
    if variable == "NCCL_SOCKET_IFNAME":
        return [name for name in there if name.startswith(names)]
    return [*names] if set(names) <= {*there} else []

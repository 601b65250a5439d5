"""The checks of ``doctor`` that look at one machine: versions, names, interfaces, memory, files."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from distmetrics.cli.doctor_finding import Finding, Status
from distmetrics.cli.doctor_machine import Machine

SLOW_LOOKUP = 1.0  # seconds; a name server that works takes milliseconds
_OLDEST_TORCH = (2, 6)
_ENOUGH_SHARED = 1 << 30  # Docker gives 64 MiB, which a few batches fill
_ENOUGH_FILES = 4096
_SHARED = "/dev/shm"  # noqa: S108  (not a temporary file: the memory that processes share)


def machine_checks(machine: Machine, environ: Mapping[str, str], *, several: bool) -> list[Finding]:
    """Run them all; ``several``: whether the job spans machines."""
    return [
        versions(machine),
        names(machine, environ, several=several),
        interfaces(machine, environ, several=several),
        shared_memory(machine),
        open_files(machine),
    ]


def versions(machine: Machine) -> Finding:
    """Tell the versions; refuse a torch that is too old, or that has no gloo, which the rest of the
    checks needs.
    """
    said = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    said = f"{said}; backends: {', '.join(machine.backends) or 'none'}"
    if "gloo" not in machine.backends:
        return Finding(
            "versions",
            "fail",
            f"{said}: gloo is not there",
            "install a build of torch that has gloo.",
        )
    torch = machine.versions.get("torch", "")
    if _release(torch) < _OLDEST_TORCH:
        return Finding("versions", "fail", f"{said}: torch is too old", "pip install 'torch>=2.6'.")
    return Finding("versions", "ok", said)


def _release(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def names(machine: Machine, environ: Mapping[str, str], *, several: bool) -> Finding:
    """Look up this machine's own name, as gloo does for each group unless it is told an interface."""
    told = bool(environ.get("GLOO_SOCKET_IFNAME"))
    answer = machine.lookup(machine.host)
    do = f"put {machine.host} with the address of its network interface into /etc/hosts, or set GLOO_SOCKET_IFNAME."
    bad: Status = "fail" if several and not told else "warn"
    if answer.problem:
        return Finding(
            "names", bad, f"the host name {machine.host} does not resolve: {answer.problem}", do
        )
    to = ", ".join(answer.addresses)
    said = f"the host name {machine.host} resolves to {to}"
    if several and all(map(is_loopback, answer.addresses)):
        return Finding("names", bad, f"{said}, where other machines can't reach it", do)
    if answer.seconds >= SLOW_LOOKUP:
        slow = f"{said}, after {answer.seconds:.1f} s: each group of gloo waits for that"
        return Finding("names", "warn", slow, f"mend the name server (/etc/resolv.conf), or {do}")
    return Finding("names", "ok", said, numbers={"seconds": answer.seconds})


def interfaces(machine: Machine, environ: Mapping[str, str], *, several: bool) -> Finding:
    """List interfaces, say which gloo takes, and refuse those that are asked for and not there."""
    there = (
        ", ".join(
            f"{name} {address or '(no IPv4)'}" for name, address in machine.interfaces.items()
        )
        or "none"
    )
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        asked = environ.get(variable, "")
        said = f"{variable}={asked}"
        if missing := unmatched(variable, asked, machine.interfaces):
            what = f"{said}, but there is no interface {', '.join(missing)}; there are: {there}"
            return Finding(
                "interfaces", "fail", what, f"unset {variable}, or name an interface that is there."
            )
        addresses = _addresses(variable, asked, machine.interfaces)
        if several and addresses and all(map(is_loopback, addresses)):
            what = f"{said} is not reached from the job's other machines; there are: {there}"
            return Finding(
                "interfaces", "fail", what, f"set {variable} to the interface of their network."
            )
    return Finding("interfaces", "ok", f"{there}; gloo takes {taken_by_gloo(machine, environ)}")


def unmatched(variable: str, asked: str, interfaces: Iterable[str]) -> list[str]:
    """Return the names in a variable that match no interface; NCCL takes prefixes, ``=`` exact ones
    and ``^`` others.

    >>> unmatched("GLOO_SOCKET_IFNAME", "eth", ["eth0"]), unmatched("NCCL_SOCKET_IFNAME", "eth", ["eth0"])
    (['eth'], [])
    """
    there = list(interfaces)
    parts = [part.strip() for part in asked.lstrip("^=").split(",") if part.strip()]
    if variable == "NCCL_SOCKET_IFNAME" and not asked.startswith("="):
        if asked.startswith("^"):
            left = [name for name in there if not name.startswith(tuple(parts))]
            return [] if left or not there else [f"but {', '.join(parts)}"]
        return [] if any(name.startswith(tuple(parts)) for name in there) else parts
    return [part for part in parts if part not in there]


def _addresses(variable: str, asked: str, interfaces: Mapping[str, str]) -> list[str]:
    """Return the addresses of the interfaces that a variable asks for."""
    if not asked or asked.startswith("^"):
        return []
    parts = tuple(part.strip() for part in asked.lstrip("=").split(","))
    prefix = variable == "NCCL_SOCKET_IFNAME" and not asked.startswith("=")
    return [
        address
        for name, address in interfaces.items()
        if name in parts or (prefix and name.startswith(parts))
    ]


def taken_by_gloo(machine: Machine, environ: Mapping[str, str]) -> str:
    """Say which address gloo listens on: the interface it is told, else the host name's, else the
    loopback.
    """
    if told := environ.get("GLOO_SOCKET_IFNAME"):
        return f"{told}, as GLOO_SOCKET_IFNAME says"
    by_address = {address: name for name, address in machine.interfaces.items() if address}
    for address in machine.lookup(machine.host).addresses:
        if not machine.listen(address, 0):
            name = by_address.get(address) or (
                "loopback" if is_loopback(address) else "an interface"
            )
            return f"{address} ({name}), to which the host name resolves"
    return "the loopback, as the host name is no address of this machine"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.1"), is_loopback("")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # no address at all: an interface may have none
        return False


def shared_memory(machine: Machine) -> Finding:
    """Look at /dev/shm, through which DataLoader's workers and NCCL hand over data."""
    if machine.shared is None:
        return Finding("shared memory", "ok", "no /dev/shm on this system")
    total, free = machine.shared
    said = f"{_SHARED} has {_size(total)}, {_size(free)} free"
    if min(total, free) < _ENOUGH_SHARED:
        why = "DataLoader workers and NCCL put data there, and die with a bus error when it is full"
        do = "start the container with --shm-size=8g (or --ipc=host); on a machine of your own, remove old files there."
        return Finding("shared memory", "warn", f"{said}: {why}", do)
    return Finding("shared memory", "ok", f"{_SHARED} has {_size(total)}")


def open_files(machine: Machine) -> Finding:
    """Look at the limit of open files: each peer is a socket, and each tensor of a DataLoader's
    worker a file.
    """
    limit = machine.open_files
    if limit is None:
        return Finding("open files", "ok", "no limit")
    if limit < _ENOUGH_FILES:
        why = "each peer is a socket, and each tensor that a DataLoader worker sends an open file"
        do = f"ulimit -n {16 * _ENOUGH_FILES} in the shell that starts the job, or LimitNOFILE= of its service."
        return Finding("open files", "warn", f"a process may open {limit} files: {why}", do)
    return Finding("open files", "ok", f"a process may open {limit} files")


def _size(count: int) -> str:
    """Write bytes.

    >>> _size(64 << 20), _size(3 << 29)
    ('64 MiB', '1.5 GiB')
    """
    return f"{count / (1 << 20):.0f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"

"""What ``doctor`` finds of a machine: facts as plain data, and the two questions that it asks of
the network.

The checks take a :class:`Machine` and judge it; they open nothing themselves. So each can be tested
by examples.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist

from distmetrics._version import __version__

_SHARED = Path("/dev/shm")  # noqa: S108  (not a temporary file: the memory that DataLoader's workers share)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a name server said, after how many seconds; ``problem`` where it gave no address."""

    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that this process can see."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as this process sees it.

    Attributes:
        host: its name.
        boot: tells machines of the same name apart; empty where the system has no such thing.
        cores: processor cores that this process may use.
        interfaces: IPv4 address of each network interface; empty where it has none.
        versions: of Python and of the packages that matter.
        backends: of ``torch.distributed`` that this build of torch has.
        gpus: those that this process can see.
        shared: size of /dev/shm in bytes, and what of it is free; None where there is none.
        open_files: how many files a process may have open; None where there is no limit.
        lookup: asks for the addresses of a name.
        listen: tries to listen on an address and port; why it can't, or nothing.
    """

    host: str = "localhost"
    boot: str = ""
    cores: int = 1
    interfaces: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ("gloo",)
    gpus: tuple[Gpu, ...] = ()
    shared: tuple[int, int] | None = None
    open_files: int | None = None
    lookup: Callable[[str], Lookup]
    listen: Callable[[str, int], str]


def this_machine(patience: float) -> Machine:
    """Look at the machine of this process; a name server that does not answer is given up on after
    ``patience`` s.
    """
    return Machine(
        host=socket.gethostname(),
        boot=_BOOT.read_text().strip() if _BOOT.is_file() else "",
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        interfaces={name: _address(name) for _, name in socket.if_nameindex()},
        versions=_versions(),
        backends=_backends(),
        gpus=_gpus(),
        shared=_shared(),
        open_files=_open_files(),
        lookup=functools.cache(functools.partial(_lookup, patience=patience)),
        listen=_listen,
    )


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "distmetrics": __version__,
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["torchmetrics"] = metadata.version("torchmetrics")
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _backends() -> tuple[str, ...]:
    there = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }
    return tuple(name for name, available in there.items() if available)


def _gpus() -> tuple[Gpu, ...]:
    seen = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(Gpu(str(properties.uuid), properties.name) for properties in seen)


def _shared() -> tuple[int, int] | None:
    if not _SHARED.is_dir():
        return None
    usage = shutil.disk_usage(_SHARED)
    return usage.total, usage.free


def _open_files() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _address(interface: str) -> str:
    """Ask Linux for an interface's IPv4 address; elsewhere nothing in the standard library tells."""
    if sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(
                probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15])
            )
        except OSError:  # it has none
            return ""
    return socket.inet_ntoa(found[20:24])


def _lookup(name: str, patience: float) -> Lookup:
    """Ask for a name's addresses in a thread of its own: a name server that is gone can hold it for
    minutes.
    """
    answers: list[Lookup] = []
    started = time.perf_counter()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.append(Lookup((), time.perf_counter() - started, str(error)))
        else:
            addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
            answers.append(Lookup(addresses, time.perf_counter() - started))

    thread = threading.Thread(target=ask, name=f"lookup of {name}", daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else Lookup((), patience, f"no answer within {patience:g} s")


def _listen(address: str, port: int) -> str:
    """Try to listen there, as a store would; say why that can't be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return ""

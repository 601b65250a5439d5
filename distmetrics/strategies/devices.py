"""What the trainer's flags ``devices`` and ``accelerator`` mean on this machine."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from distmetrics.arguments import POSITIVE, Takes, one_of
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment

Devices = int | str | Sequence[int] | Literal["auto"] | None
_WANTED = "a positive number, -1, a list or 'auto'"


def _may_be_devices(value: Any) -> bool:
    return isinstance(value, int | str | Sequence | None) and not isinstance(value, bool)


_DEVICES = Takes(_may_be_devices, _WANTED)
FLAGS = {
    "devices": _DEVICES,
    "gpus": _DEVICES,
    "tpu_cores": _DEVICES,
    "accelerator": one_of("auto", "cpu", "gpu", "cuda", "tpu"),
    "num_nodes": POSITIVE,
}


def device_kind(accelerator: str) -> str:
    """Return torch's type of device, "cpu" or "cuda", that a strategy for both runs on.

    Raises:
        ConfigurationError: there is no such accelerator here.

    >>> device_kind("cpu")
    'cpu'
    """
    if accelerator == "tpu":
        raise ConfigurationError(
            "accelerator='tpu' runs by strategy='xla' alone",
            do="say strategy='xla', or leave strategy='auto'.",
        )
    has_cuda = torch.cuda.is_available()
    if accelerator in ("gpu", "cuda") and not has_cuda:
        raise ConfigurationError(f"accelerator={accelerator!r}, but torch sees no GPU here")
    return "cuda" if has_cuda and accelerator != "cpu" else "cpu"


def device_list(devices: Devices, device_type: str, environment: Environment | None) -> list[int]:
    """Return the numbers of the devices that ``devices`` asks for on this machine.

    Args:
        devices: how many; or which, as a list or such as "1, 4"; -1 for all; "auto" and None for
            what the launcher started, else every GPU, else one process on CPU.
        device_type: "cpu" or "cuda".
        environment: who this process is, if something launched it.

    Raises:
        ConfigurationError: there are no such devices.

    >>> device_list("2", "cpu", None)
    [0, 1]
    """
    gpus = torch.cuda.device_count() if device_type == "cuda" else None
    if devices in ("auto", None) and environment is not None:
        return list(range(environment.local_world_size))
    wanted = -1 if devices in ("auto", None) else _parsed(devices)
    if wanted == -1:
        return list(range(gpus or 1))
    if isinstance(wanted, list):
        _check_numbers(wanted, devices, gpus)
        return wanted
    if wanted < 1:
        cpu = wanted == 0
        raise ConfigurationError(
            f"devices must be {_WANTED}, got {devices!r}",
            likely="no GPU is meant." if cpu else "",
            do="say accelerator='cpu', and devices= for the number of processes." if cpu else "",
        )
    if gpus is not None and wanted > gpus:
        raise ConfigurationError(f"devices={devices!r}, but this machine has {_count(gpus)}")
    return list(range(wanted))


def _check_numbers(wanted: list[int], devices: Devices, gpus: int | None) -> None:
    if not wanted or min(wanted) < 0 or len(set(wanted)) < len(wanted):
        raise ConfigurationError(
            f"a list of devices has each one's number once, got devices={devices!r}"
        )
    if gpus is None:
        raise ConfigurationError(
            f"devices={devices!r} names devices by number, and a CPU has none",
            do=f"say how many processes: devices={len(wanted)}.",
        )
    missing = [str(index) for index in wanted if index >= gpus]
    if missing:
        raise ConfigurationError(
            f"devices={devices!r}: there is no GPU {', '.join(missing)}; this machine has "
            f"{_count(gpus)}"
        )


def _count(gpus: int) -> str:
    return f"{gpus} GPUs, 0 to {gpus - 1}" if gpus > 1 else f"{gpus} GPU"


def _parsed(devices: Devices) -> int | list[int]:
    """Read a number, or a list of them, also from a string."""
    if type(devices) is int:
        return devices
    try:
        if isinstance(devices, str):
            numbers = [int(part) for part in devices.split(",") if part.strip()]
            return numbers[0] if len(numbers) == 1 and "," not in devices else numbers
        if isinstance(devices, Sequence) and all(type(item) is int for item in devices):
            return [int(item) for item in devices]
    except ValueError:
        pass  # not numbers: refused below like everything else
    raise ConfigurationError(f"devices must be {_WANTED}, got {devices!r}")


def one_flag(
    devices: Devices,
    accelerator: str,
    *,
    gpus: Devices = None,
    tpu_cores: Devices = None,
) -> tuple[Devices, str]:
    """Return ``devices`` and ``accelerator``, with the short ``gpus=`` and ``tpu_cores=`` taken in.

    Raises:
        ConfigurationError: two flags that say different things.

    >>> one_flag("auto", "auto", gpus=2)
    (2, 'gpu')
    """
    flags = {"gpus": gpus, "tpu_cores": tpu_cores}
    short = {name: value for name, value in flags.items() if value not in (None, 0, "0")}
    if not short:
        return devices, accelerator
    name, value = next(iter(short.items()))
    if len(short) > 1 or devices not in ("auto", None) or accelerator not in _SHORT[name]:
        texts = ", ".join(f"{name}={value!r}" for name, value in short.items())
        raise ConfigurationError(
            f"{texts} together with devices={devices!r} and accelerator={accelerator!r}",
            do="say devices= and accelerator= alone.",
        )
    return value, _SHORT[name][-1]


_SHORT = {"gpus": ("auto", "cuda", "gpu"), "tpu_cores": ("auto", "tpu")}

"""What the trainer's flags ``devices`` and ``accelerator`` mean on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment

Devices = int | str | Sequence[int] | Literal["auto"] | None
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "tpu")


def device_kind(accelerator: str) -> str:
    """Return torch's type of device, "cpu" or "cuda", that a strategy for both runs on.

    Raises:
        ConfigurationError: there is no such accelerator, or not here.

    >>> device_kind("cpu")
    'cpu'
    """
    if accelerator not in ACCELERATORS:
        known = ", ".join(map(repr, ACCELERATORS))
        raise ConfigurationError(f"accelerator must be one of {known}, got {accelerator!r}")
    if accelerator == "tpu":
        raise ConfigurationError(
            "accelerator='tpu' runs by strategy='xla' alone",
            do="say strategy='xla', or leave strategy='auto'.",
        )
    has_cuda = torch.cuda.is_available()
    if accelerator == "auto":
        return "cuda" if has_cuda else "cpu"
    if accelerator == "cpu":
        return "cpu"
    if not has_cuda:
        raise ConfigurationError(f"accelerator={accelerator!r}, but torch sees no GPU here")
    return "cuda"


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
    here = torch.cuda.device_count() if device_type == "cuda" else None
    if devices in ("auto", None):
        count = environment.local_world_size if environment is not None else (here or 1)
        return list(range(count))
    wanted = _parsed(devices)
    if wanted == -1:
        return list(range(here or 1))
    if isinstance(wanted, int):
        if wanted < 1:
            raise ConfigurationError(
                f"devices {_WANTED}, got {devices!r}{_ON_CPU if wanted == 0 else ''}"
            )
        if here is not None and wanted > here:
            raise ConfigurationError(f"devices={devices!r}, but this machine has {_gpus(here)}")
        return list(range(wanted))
    return _checked(wanted, devices, here)


def _checked(wanted: list[int], devices: Devices, here: int | None) -> list[int]:
    if not wanted or min(wanted) < 0 or len(set(wanted)) < len(wanted):
        raise ConfigurationError(
            f"a list of devices has each one's number once, got devices={devices!r}"
        )
    if here is None:
        raise ConfigurationError(
            f"devices={devices!r} names devices by number, and a CPU has none",
            do=f"say how many processes: devices={len(wanted)}.",
        )
    missing = [index for index in wanted if index >= here]
    if missing:
        raise ConfigurationError(
            f"devices={devices!r}: there is no GPU {', '.join(map(str, missing))}; this machine "
            f"has {_gpus(here)}"
        )
    return wanted


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}" + (f", 0 to {count - 1}" if count > 1 else "")


def _parsed(devices: Devices) -> int | list[int]:
    """Read a number, or a list of them, also from a string."""
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices
    try:
        if isinstance(devices, str):
            numbers = [int(part) for part in devices.split(",") if part.strip()]
            return numbers[0] if len(numbers) == 1 and "," not in devices else numbers
        if isinstance(devices, Sequence) and all(type(item) is int for item in devices):
            return [int(item) for item in devices]
    except ValueError:
        pass  # not numbers: refused below like everything else
    raise ConfigurationError(f"devices {_WANTED}, got {devices!r}")


_WANTED = "must be a positive number, -1, a list or 'auto'"
_ON_CPU = "\nLikely: no GPU is meant.\nDo:     say accelerator='cpu', and devices= for the number of processes."


def one_flag(
    devices: Devices, accelerator: str, *, gpus: Devices = None, tpu_cores: Devices = None
) -> tuple[Devices, str]:
    """Return ``devices`` and ``accelerator`` with the shorthands ``gpus=`` and ``tpu_cores=`` taken
    in.

    Raises:
        ConfigurationError: two flags that say different things.

    >>> one_flag("auto", "auto", gpus=2)
    (2, 'gpu')
    """
    for name, value in (("devices", devices), ("gpus", gpus), ("tpu_cores", tpu_cores)):
        if isinstance(value, bool) or not (
            value is None or isinstance(value, int | str | Sequence)
        ):
            raise ConfigurationError(f"{name} {_WANTED}, got {value!r}")
    given = {
        name: value
        for name, value in (("gpus", gpus), ("tpu_cores", tpu_cores))
        if value not in (None, 0, "0")
    }
    if not given:
        return devices, accelerator
    if (
        len(given) > 1
        or devices not in ("auto", None)
        or accelerator not in _SHORT[next(iter(given))]
    ):
        said = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigurationError(
            f"{said} together with devices={devices!r} and accelerator={accelerator!r}",
            do="say devices= and accelerator= alone.",
        )
    name, value = next(iter(given.items()))
    return value, _SHORT[name][-1]


_SHORT = {"gpus": ("auto", "cuda", "gpu"), "tpu_cores": ("auto", "tpu")}

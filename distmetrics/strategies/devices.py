"""What the trainer's flags ``devices`` and ``accelerator`` mean on this machine."""

import ast
import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import torch

from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment

Devices = int | str | Sequence[int] | Literal["auto"] | None


def device_kind(accelerator: str) -> str:
    """Return torch's type of device, "cpu" or "cuda", that a strategy for both runs on.

    >>> device_kind("cpu")
    'cpu'
    """
    kind = "cuda" if torch.cuda.is_available() and accelerator != "cpu" else "cpu"
    if {"auto": kind, "cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}.get(accelerator) != kind:
        raise ConfigurationError(
            f"accelerator={accelerator!r}: there is none here that this strategy can use",
            do="say accelerator='auto'; a TPU is used by strategy='xla' alone.",
        )
    return kind


def device_list(devices: Devices, device_type: str, environment: Environment | None) -> list[int]:
    """Return the numbers of the devices that ``devices`` asks for on this machine.

    "auto" and None are what the launcher has started, else every GPU, else one process on CPU.

    >>> device_list("2", "cpu", None)
    [0, 1]
    """
    gpus = torch.cuda.device_count() if device_type == "cuda" else 0
    wanted: Any = devices
    if devices in ("auto", None):
        wanted = -1 if environment is None else environment.local_world_size
    elif isinstance(devices, str):
        with contextlib.suppress(ValueError, SyntaxError):
            wanted = ast.literal_eval(devices)
    counted = type(wanted) is int
    numbers = [*range((gpus or 1) if wanted == -1 else wanted)] if counted else wanted
    listed = isinstance(numbers, Sequence) and all(type(each) is int for each in numbers)
    if not listed or not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ConfigurationError(
            "devices must be a positive number, -1, 'auto', or a list with each device's number "
            f"once, got {devices!r}"
        )
    if (gpus or not counted) and max(numbers) >= gpus:
        raise ConfigurationError(
            f"devices={devices!r}, but the GPUs that can be used are {[*range(gpus)]}",
            do=f"say how many processes there are: devices={len(numbers)}." if not gpus else "",
        )
    return list(numbers)


def one_flag(
    devices: Devices, accelerator: str, *, gpus: Devices = None, tpu_cores: Devices = None
) -> tuple[Devices, str]:
    """Return ``devices`` and ``accelerator``, with the short ``gpus=`` and ``tpu_cores=`` taken in.

    >>> one_flag("auto", "auto", gpus=2)
    (2, 'gpu')
    """
    for name, value, kinds in (("gpus", gpus, ("gpu", "cuda")), ("tpu_cores", tpu_cores, ("tpu",))):
        if value is None or str(value) == "0":
            continue
        if devices not in ("auto", None) or accelerator not in ("auto", *kinds):
            raise ConfigurationError(
                f"{name}={value!r} together with devices={devices!r} and "
                f"accelerator={accelerator!r}",
                do="say devices= and accelerator= alone.",
            )
        devices, accelerator = value, kinds[0]
    return devices, accelerator

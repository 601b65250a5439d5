"""Strategies by their names, and what the trainer's flags make of them."""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from distmetrics.arguments import check, describe
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import ClusterEnvironment, Environment, detect
from distmetrics.strategies.base import Layout, Strategy
from distmetrics.strategies.devices import (
    FLAGS,
    Devices,
    device_kind,
    device_list,
    one_flag,
)
from distmetrics.strategies.layouts import check_layout

# Names to factories, or to the name of a class of this package, imported when it is asked.
_REGISTRY: dict[str, str | Callable[[], Strategy]] = {
    "single": "Single",
    "dp": "DP",
    "ddp": "DDP",
    "ddp2": "DDP2",
    "ddp_spawn": "DDPSpawn",
    "ddp_fork": "DDPFork",
    "ddp_notebook": "DDPFork",
    "ddp_sharded": "ShardedDDP",
    "ddp_sharded_spawn": "ShardedDDPSpawn",
    "fsdp": "FSDP",
    "fsdp_spawn": "FSDPSpawn",
    "deepspeed": "DeepSpeed",
    "xla": "XLA",
    "tpu_spawn": "XLA",
}


def register(name: str, factory: Callable[[], Strategy]) -> None:
    """Make ``Trainer(strategy=name)`` use what ``factory()`` returns."""
    _REGISTRY[name] = factory


def available() -> list[str]:
    """Return the names that ``Trainer(strategy=...)`` knows.

    >>> "ddp" in available()
    True
    """
    return ["auto", *sorted(_REGISTRY)]


def resolve(
    strategy: str | Strategy | type[Strategy],
    *,
    devices: Devices = 1,
    accelerator: str = "auto",
    num_nodes: int = 1,
    precision: Any = None,
    plugins: ClusterEnvironment | Sequence[ClusterEnvironment] = (),
    gpus: Devices = None,
    tpu_cores: Devices = None,
    layout: Layout = None,
) -> Strategy:
    """Return the strategy that the trainer's flags ask for, bound to them.

    ``"auto"`` is "ddp" where a launcher such as torchrun started this process, else "single" on one
    device and "ddp_spawn" on several.

    Args:
        strategy: a name, a strategy with its options, or the class of one.
        devices: a number, a list of devices' numbers or such as "1, 4", -1 for all, or "auto".
        accelerator: "cpu", "gpu", "cuda", "tpu" or "auto".
        num_nodes: number of machines.
        precision: 64, 32, 16, "bf16" and the like; None leaves it as it is.
        plugins: at most one environment of one's own.
        gpus: short for ``devices=gpus, accelerator="gpu"``.
        tpu_cores: short for ``devices=tpu_cores, accelerator="tpu"``.
        layout: what the ranks hold along the axes of a mesh.

    Raises:
        ConfigurationError: an unknown name, or flags that contradict each other.

    >>> resolve("auto").name
    'single'
    """
    check("the strategy's flags", locals(), FLAGS)
    devices, accelerator = one_flag(devices, accelerator, gpus=gpus, tpu_cores=tpu_cores)
    plugin = _plugin(plugins if isinstance(plugins, Sequence) else [plugins])
    if strategy == "auto":
        strategy = _automatic(devices, accelerator, num_nodes, plugin)
    if isinstance(strategy, str):
        strategy = _by_name(strategy)
    elif isinstance(strategy, type) and issubclass(strategy, Strategy):
        strategy = strategy()
    if not isinstance(strategy, Strategy):
        raise ConfigurationError(f"strategy must be a name or a Strategy, got {describe(strategy)}")
    check_layout(layout)
    strategy.layout = layout
    strategy.configure(num_nodes=num_nodes, precision=precision, plugin=plugin)
    strategy.bind(devices, accelerator)
    return strategy


def _automatic(
    devices: Devices,
    accelerator: str,
    num_nodes: int,
    plugin: Environment | None,
) -> str:
    if accelerator == "tpu":
        return "xla"
    if num_nodes != 1 or (plugin or detect()) is not None:
        return "ddp"
    count = len(device_list(devices, device_kind(accelerator), None))
    return "single" if count == 1 else "ddp_spawn"


def _plugin(plugins: Sequence[ClusterEnvironment]) -> Environment | None:
    for plugin in plugins:
        if not isinstance(plugin, ClusterEnvironment):
            raise ConfigurationError(
                f"plugins must be cluster environments, got {describe(plugin)}",
                do="subclass distmetrics.launch.ClusterEnvironment; "
                "precision and strategy have flags of their own.",
            )
    if len(plugins) > 1:
        raise ConfigurationError(
            f"there can be one cluster environment, and plugins has {len(plugins)}"
        )
    return Environment.of(plugins[0]) if plugins else None


def _by_name(name: str) -> Strategy:
    if name not in _REGISTRY:
        tried = name.lower().replace("-", "_")
        near = difflib.get_close_matches(tried, available(), n=3, cutoff=0.5)
        raise ConfigurationError(
            f"there is no strategy {name!r}; there are {', '.join(available())}",
            likely=" or ".join(map(repr, near)),
        )
    factory = _REGISTRY[name]
    if isinstance(factory, str):
        factory = getattr(importlib.import_module("distmetrics.strategies"), factory)
    return factory()

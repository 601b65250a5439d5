"""Strategies by their names, and what the trainer's flags make of them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.launch.clusters import detect
from distmetrics.launch.environment import ClusterEnvironment, Environment
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.devices import Devices, device_kind, device_list

_HERE = "distmetrics.strategies."
_REGISTRY: dict[str, str | Callable[[], Strategy]] = {
    "single": f"{_HERE}single:Single",
    "dp": f"{_HERE}dp:DP",
    "ddp": f"{_HERE}ddp:DDP",
    "ddp2": f"{_HERE}ddp2:DDP2",
    "ddp_spawn": f"{_HERE}ddp_spawn:DDPSpawn",
    "ddp_fork": f"{_HERE}ddp_fork:DDPFork",
    "ddp_notebook": f"{_HERE}ddp_fork:DDPFork",
    "ddp_sharded": f"{_HERE}ddp_sharded:ShardedDDP",
    "ddp_sharded_spawn": f"{_HERE}ddp_sharded:ShardedDDPSpawn",
    "fsdp": f"{_HERE}fsdp:FSDP",
    "fsdp_spawn": f"{_HERE}fsdp:FSDPSpawn",
    "deepspeed": f"{_HERE}deepspeed:DeepSpeed",
    "xla": f"{_HERE}xla:XLA",
    "tpu_spawn": f"{_HERE}xla:XLA",
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

    Raises:
        ConfigurationError: an unknown name, or flags that contradict each other.

    >>> resolve("auto").name
    'single'
    """
    plugin = _plugin(plugins)
    if strategy == "auto":
        strategy = _automatic(devices, accelerator, num_nodes, plugin)
    if isinstance(strategy, str):
        strategy = _make(strategy)
    elif isinstance(strategy, type) and issubclass(strategy, Strategy):
        strategy = strategy()
    if not isinstance(strategy, Strategy):
        raise ConfigurationError(f"strategy must be a name or a Strategy, got {describe(strategy)}")
    strategy.configure(num_nodes=num_nodes, precision=precision, plugin=plugin)
    strategy.bind(devices, accelerator)
    return strategy


def _automatic(
    devices: Devices, accelerator: str, num_nodes: int, plugin: Environment | None
) -> str:
    if accelerator == "tpu":
        return "xla"
    environment = detect() if plugin is None else plugin
    if environment is not None or num_nodes != 1:
        return "ddp"
    return (
        "single" if len(device_list(devices, device_kind(accelerator), None)) == 1 else "ddp_spawn"
    )


def _plugin(plugins: ClusterEnvironment | Sequence[ClusterEnvironment]) -> Environment | None:
    if not isinstance(plugins, Sequence):
        plugins = [plugins]
    for plugin in plugins:
        if not isinstance(plugin, ClusterEnvironment):
            raise ConfigurationError(
                f"plugins must be cluster environments, got {describe(plugin)}",
                do="subclass distmetrics.launch.environment.ClusterEnvironment; "
                "precision and strategy have flags of their own.",
            )
    if len(plugins) > 1:
        raise ConfigurationError(
            f"there can be one cluster environment, and plugins has {len(plugins)}"
        )
    return Environment.of(plugins[0]) if plugins else None


def _make(name: str) -> Strategy:
    if name not in _REGISTRY:
        near = difflib.get_close_matches(
            name.lower().replace("-", "_"), available(), n=3, cutoff=0.5
        )
        hint = f"\nLikely: {' or '.join(map(repr, near))}" if near else ""
        raise ConfigurationError(
            f"there is no strategy {name!r}; there are {', '.join(available())}{hint}"
        )
    factory = _REGISTRY[name]
    if callable(factory):
        return factory()
    module, _, attribute = factory.partition(":")
    made: Strategy = getattr(importlib.import_module(module), attribute)()
    return made

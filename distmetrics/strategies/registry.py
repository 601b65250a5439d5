"""Strategies by their names, and what the trainer's flags make of them."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distmetrics.arguments import POSITIVE, Takes, check, describe, one_of
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import ClusterEnvironment, Environment, detect
from distmetrics.strategies.base import Layout, Strategy
from distmetrics.strategies.devices import Devices, device_kind, device_list, one_flag
from distmetrics.strategies.precision import Precision

_TAKES = {
    "accelerator": one_of("auto", "cpu", "gpu", "cuda", "tpu"),
    "num_nodes": POSITIVE,
    "plugins": Takes(
        lambda values: (
            len(values) < 2 and all(isinstance(each, ClusterEnvironment) for each in values)
        ),
        "one cluster environment, an object of a subclass of ClusterEnvironment",
    ),
    "layout": Takes(
        lambda value: value is None or isinstance(value, Mapping) or callable(value),
        "sizes or roles of axes, or a function that returns a layout, which every rank calls",
    ),
}
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
    """Make ``Trainer(strategy=name)`` use what ``factory()`` returns.

    A name that is known gets the new factory. Every process must register the same.

    Args:
        name: of the strategy.
        factory: returns a new :class:`Strategy`, such as its class.

    >>> from distmetrics import Runner
    >>> from distmetrics.strategies import DDP
    >>> register("ddp_unused", lambda: DDP(find_unused_parameters=True))
    >>> Runner(strategy="ddp_unused", devices=2, accelerator="cpu").strategy.options
    {'find_unused_parameters': True}
    """
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
    """Return the strategy that the trainer's flags ask for, configured by them.

    Raises:
        ConfigurationError: an unknown name, or flags that contradict each other.

    >>> resolve("auto").name
    'single'
    """
    plugins = plugins if isinstance(plugins, Sequence) else [plugins]
    check("the strategy's flags", locals(), _TAKES)
    devices, accelerator = one_flag(devices, accelerator, gpus=gpus, tpu_cores=tpu_cores)
    plugin = Environment.of(plugins[0]) if plugins else None
    if strategy == "auto":
        if accelerator == "tpu":
            strategy = "xla"
        elif num_nodes != 1 or (plugin or detect()) is not None:
            strategy = "ddp"
        else:
            count = len(device_list(devices, device_kind(accelerator), None))
            strategy = "single" if count == 1 else "ddp_spawn"
    made: Any = _factory(strategy) if isinstance(strategy, str) else strategy
    if isinstance(strategy, str) or (isinstance(made, type) and issubclass(made, Strategy)):
        made = made()
    if not isinstance(made, Strategy):
        raise ConfigurationError(f"strategy must be a name or a Strategy, got {describe(strategy)}")
    made.num_nodes, made.plugin, made.layout = num_nodes, plugin, layout
    made.bind(devices, accelerator)
    made.precision = Precision(precision, made.device_type)
    made.check()
    return made


def _factory(name: str) -> Any:
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name.lower(), available(), cutoff=0.5)
        raise ConfigurationError(
            f"there is no strategy {name!r}; there are {', '.join(available())}",
            likely=" or ".join(map(repr, near)),
        )
    factory = _REGISTRY[name]
    if isinstance(factory, str):
        return getattr(importlib.import_module("distmetrics.strategies"), factory)
    return factory

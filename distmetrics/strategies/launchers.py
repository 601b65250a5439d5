"""How a strategy's processes come about: as runs of the script, spawned, or forked."""

import gc
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.comm.verdict import settle
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.launch.environment import Environment
from distmetrics.launch.preflight import find_unpicklable
from distmetrics.launch.script import end_if_alone, join, watch_rank_zero
from distmetrics.launch.spawn import launch
from distmetrics.strategies.base import Launcher, Strategy


class Script(Launcher):
    """Every rank is a run of the whole script.

    Under torchrun (or whatever else we know, see :mod:`distmetrics.launch.environment`) every
    process joins. Otherwise this process is rank 0 and runs its own command line again for the
    other ranks; they come to the same call and join. The process group stays open until the script
    ends; that of one process alone until a ``ddp_fork`` begins.
    """

    joins = True

    def join(self, environment: Environment) -> None:
        """Watch rank 0 as early as we can: it may end before this rank comes to a call."""
        if environment.launcher == "distmetrics":
            watch_rank_zero()

    def launch(self, strategy: Strategy, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Join this script's world, which the first call makes, and call ``fn(*args)`` there."""
        world = join(
            strategy.processes,
            strategy.backend,
            environment=strategy.plugin,
            connect=strategy.init_process_group,
        )
        with world.running():
            return fn(*args)


class Spawn(Launcher):
    """The ranks are processes that start with a call of the trainer and end with it."""

    isolated = True
    start_method = "spawn"

    def launch(self, strategy: Strategy, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` in new processes; return rank 0's result."""
        try:
            outcomes = launch(
                _rank,
                strategy.devices,
                fn,
                args,
                start_method=self.start_method,
                backend=strategy.backend,
                connect=strategy.init_process_group,
            )
        except (InputTypeError, pickle.PicklingError, TypeError, AttributeError) as error:
            parts = []
            for name, value in inspect.signature(fn).bind(*args).arguments.items():
                parts += find_unpicklable(value, name)
            if not parts:
                raise
            raise InputTypeError(
                f"{parts[0].path} cannot be sent to the processes of strategy={strategy.name!r}",
                notes=[f"  {part}" for part in parts],
                do="that, or use strategy='ddp', which runs the script once a rank and pickles "
                "nothing.",
            ) from error
        return settle(outcomes)[0]


class Fork(Spawn):
    """The ranks are forks of this process: they have a notebook's classes and import nothing."""

    start_method = "fork"

    def launch(self, strategy: Strategy, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` in forks of this process; return rank 0's result."""
        end_if_alone()
        if dist.is_initialized():
            raise ConfigurationError(
                f"strategy={strategy.name!r}: this process is rank {dist.get_rank()} of "
                f"{dist.get_world_size()} of a process group that is open, and its forks would "
                "begin inside of it",
                do="say strategy='ddp', which uses the ranks that are there; end a group of your "
                "own by torch.distributed.destroy_process_group() before.",
                rank=dist.get_rank(),
            )
        # A fork that frees an old group would wait for threads that it does not have, and abort.
        gc.collect()
        return super().launch(strategy, fn, args)


def _rank(comm: GroupCommunicator, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    value = fn(*args)
    return value if comm.rank == 0 else None

"""How a strategy's ranks come to be: as runs of the script, or as processes that a call starts."""

import inspect
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.comm.verdict import settle
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.launch.preflight import find_unpicklable
from distmetrics.launch.script import join, watch_rank_zero
from distmetrics.launch.spawn import launch
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.devices import Devices

T = TypeVar("T")


class ProcessStrategy(Strategy):
    """One process a device, in a process group of ``torch.distributed``."""

    @property
    def local_rank(self) -> int:
        """This rank on its machine; ranks of one machine are numbered in a row."""
        return self.comm().rank % self.devices

    def init_process_group(self, backend: str, **options: Any) -> None:
        """Make the job's process group; override it for other options or another backend.

        Args:
            backend: what suits the device: "gloo" or "nccl".
            options: store, rank and world size, for ``torch.distributed.init_process_group``.
        """
        if backend == "nccl":
            local_rank = options["rank"] if self.isolated else self.local_rank
            torch.cuda.set_device(self.device_ids[local_rank])
        dist.init_process_group(backend, **options)


class ScriptLaunch(ProcessStrategy):
    """Every rank is a run of the whole script.

    Under torchrun (or whatever else we know, see :mod:`distmetrics.launch.environment`) every
    process joins. Otherwise this process is rank 0 and runs its own command line again for the
    other ranks; they come to the same call and join. The process group stays open until the script
    ends; that of one process alone until a ``ddp_fork`` begins.
    """

    joins = True

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; a launcher has started ``devices`` local processes."""
        super().bind(devices, accelerator)
        environment = self.environment()
        if environment is None:
            if self.num_nodes > 1:
                raise ConfigurationError(
                    f"num_nodes={self.num_nodes}, and nothing has launched this process as a part "
                    "of a job",
                    do=f"start the script on every machine: torchrun --nnodes={self.num_nodes} "
                    f"--nproc-per-node={self.devices} ..., or pass your own ClusterEnvironment in "
                    "plugins=[...].",
                )
            return
        machines = -(-environment.world_size // environment.local_world_size)
        if self.num_nodes not in (1, machines):
            raise ConfigurationError(
                f"num_nodes={self.num_nodes}, but {environment.launcher} runs "
                f"{environment.world_size} processes, {environment.local_world_size} on this "
                f"machine: {machines} machines"
            )
        if environment.launcher == "distmetrics":
            watch_rank_zero()  # as early as we can: rank 0 may end before this rank comes to a call

    @property
    def processes(self) -> int:
        """Number of ranks on this machine."""
        return self.devices

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job, over all machines."""
        environment = self.environment()
        return self.processes if environment is None else environment.world_size

    @property
    def local_rank(self) -> int:
        """This rank on its machine, as the launcher says."""
        environment = self.environment()
        return 0 if environment is None else environment.local_rank

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Join this script's world, which the first call makes, and call ``fn(*args)`` there.

        Afterwards modules are plain again; not after a failure, since that takes all ranks.
        """
        self.forget()
        world = join(
            self.processes, self.backend, environment=self.plugin, connect=self.init_process_group
        )
        with world.running():
            result = fn(*args)
            self.release()
            return result


class SpawnLaunch(ProcessStrategy):
    """The ranks are processes that start with a call of the trainer and end with it.

    They work on pickled copies: module, data, callbacks and trainer must be picklable, and what
    comes back is rank 0's weights and the trainer's and callbacks' state, not other attributes that
    a step has set.
    """

    isolated = True
    start_method = "spawn"

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` in ``devices`` new processes; return rank 0's result.

        Raises:
            InputTypeError: something can't be pickled; the text says which attribute.
            Exception: the error of the rank that failed first.
        """
        try:
            outcomes = launch(
                _rank,
                self.devices,
                fn,
                args,
                start_method=self.start_method,
                backend=self.backend,
                connect=self.init_process_group,
            )
        except (InputTypeError, pickle.PicklingError, TypeError, AttributeError) as error:
            parts = []
            for name, value in inspect.signature(fn).bind(*args).arguments.items():
                parts += find_unpicklable(value, name)
            if not parts:
                raise
            raise InputTypeError(
                f"{parts[0].path} cannot be sent to the processes of strategy={self.name!r}",
                notes=[f"  {part}" for part in parts],
                do="that, or use strategy='ddp', which runs the script once a rank and pickles "
                "nothing.",
            ) from error
        result: T = settle(outcomes)[0]
        return result


def _rank(comm: GroupCommunicator, fn: Callable[..., T], args: tuple[Any, ...]) -> T | None:
    value = fn(*args)
    return value if comm.rank == 0 else None

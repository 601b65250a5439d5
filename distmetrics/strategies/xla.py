"""TPUs and other devices of XLA, by torch_xla: in one process, or in a process for each.

Run with one device, with SPMD over four virtual CPU devices, and with one started process, by
``python -m tests.strategies.xla_script`` in an environment that has torch_xla. It has not been run
on a TPU, nor with several processes, which torch_xla does not start on CPUs.
"""

import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, check
from distmetrics.comm.communicator import use
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies.base import Closure, Entry, Launcher, Strategy, TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.tensors import StateDict, map_tensors, to_host

T = TypeVar("T")


class Processes(Launcher):
    """The ranks are processes that torch_xla starts, one for each device of this machine."""

    isolated = True

    def launch(self, strategy: Strategy, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` in a process for each device; return rank 0's result."""
        with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
            job = pickle.dumps((fn, args))
            _library().launch(_rank, args=(folder, strategy.devices, job))
            # From a folder that only this user can write to, as to its processes.
            return torch.load(Path(folder) / "result", weights_only=False)


class XLA(Strategy):
    """TPUs and other devices of XLA; not yet run on TPUs, nor with several processes.

    With ``devices=1`` this process uses one device. Otherwise torch_xla starts a process for each
    device of this machine. They average gradients through XLA; all else is sent through gloo, on
    the host. With ``spmd=True`` this process uses all devices as one: each batch is cut along its
    first dimension, and nothing else changes.

    Args:
        spmd: whether one process uses all devices.

    Raises:
        MissingDependencyError: torch_xla is not installed; raised by the trainer or the runner.
        ConfigurationError: ``devices`` is neither one nor all, or ``spmd`` is not a bool.

    >>> strategy = XLA(spmd=True)  # Trainer(strategy=strategy)
    >>> strategy.name, strategy.spmd
    ('xla', True)
    """

    name = "xla"
    whole_on_each_rank = False
    scales_loss = False
    device_type = "xla"

    def __init__(self, *, spmd: bool = False) -> None:
        check("XLA", locals(), {"spmd": FLAG})
        self.spmd = spmd
        self._reduced: set[int] = set()  # optimizers whose gradients are averaged already

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; torch_xla runs on one device or on all."""
        _library()
        if accelerator != "auto":
            kind = "CUDA" if accelerator == "gpu" else accelerator.upper()
            os.environ.setdefault("PJRT_DEVICE", kind)
        self.alone = self.spmd or devices in (1, "1")
        self.launcher = Launcher() if self.alone else Processes()
        self.devices = 1 if self.alone else _count(devices)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        device: torch.device = _library().device()
        return device

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` here, or in a process for each device; return rank 0's result."""
        if self.spmd:
            import torch_xla.runtime

            torch_xla.runtime.use_spmd()
        return super().launch(fn, *args)

    def convert(self, batch: T) -> T:
        """Return the batch in the precision's dtype; under SPMD, laid out over the devices."""
        batch = super().convert(batch)
        if not self.spmd:
            return batch
        import torch_xla.distributed.spmd as spmd

        mesh = spmd.get_1d_mesh("data")

        def lay_out(tensor: Tensor) -> Tensor:
            """Cut along the first dimension; copy to all devices if that does not divide."""
            axes: list[str | None] = [None] * tensor.ndim
            if axes and tensor.shape[0] % mesh.size() == 0:
                axes[0] = "data"
            spmd.mark_sharding(tensor, mesh, tuple(axes))
            return tensor

        return map_tensors(lay_out, batch)

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Return the call itself: gradients are averaged before a step."""
        return entry

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Clip the gradients, averaged over the processes."""
        self._reduce(optimizer)
        return super().clip(module, optimizer, **limits)

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Step by gradients averaged over the processes; then let XLA run what was asked for."""
        self._reduce(optimizer)
        self._reduced.discard(id(optimizer))
        result = super().step(module, optimizer, closure)
        _library().sync()
        return result

    def _reduce(self, optimizer: Optimizer) -> None:
        """Average an optimizer's gradients over the processes, once a step."""
        if self.isolated and id(optimizer) not in self._reduced:
            import torch_xla.core.xla_model as xm

            xm.reduce_gradients(optimizer)
            self._reduced.add(id(optimizer))

    def evaluation_call(self, entry: Entry) -> Callable[..., Any]:
        """Call, and let XLA run what was asked for."""

        def run(*args: Any) -> Any:
            output = entry(*args)
            _library().sync()
            return output

        return run

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the module's state dict, on the host."""
        return to_host(dict(module.state_dict()))

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state dict, on the host."""
        return to_host(optimizer.state_dict())

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a state dict into the module, on its device."""
        module.load_state_dict(weights)
        _library().sync()


def _rank(index: int, folder: str, world_size: int, job: bytes) -> None:
    """Be the process of one device: join a group on the host, run the job, leave its result."""
    import torch_xla.runtime as xr

    rank, count = xr.global_ordinal(), xr.world_size()
    if world_size not in (0, count):
        raise ConfigurationError(
            f"devices={world_size}, but torch_xla runs a process on each of {count} devices",
            do="say devices=-1 or 1.",
        )
    store = dist.FileStore(str(Path(folder) / "store"), count)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    fn, args = pickle.loads(job)  # noqa: S301  (our own parent's bytes)
    with use(GroupCommunicator.of(dist.group.WORLD)):
        value = fn(*args)
    if rank == 0:
        torch.save(value, Path(folder) / "result")
    dist.barrier()
    dist.destroy_process_group()


def _count(devices: Devices) -> int:
    """Return how many devices there must be; 0 for all: asking for their number would take them."""
    if devices in ("auto", None, -1, "-1"):
        return 0
    if str(devices).isdigit() and int(str(devices)) > 1:
        return int(str(devices))
    raise ConfigurationError(
        f"torch_xla runs on one device of a machine or on all, got devices={devices!r}",
        do="say devices=-1 or 1.",
    )


def _library() -> Any:
    try:
        import torch_xla
    except ImportError as error:
        raise MissingDependencyError(
            "strategy='xla' needs torch_xla, which is not installed.",
            do="pip install torch_xla, in an environment with the very torch that it names.",
        ) from error
    return torch_xla

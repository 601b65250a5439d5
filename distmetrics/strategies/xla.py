"""TPUs and other devices of XLA, by torch_xla: one process, one process a device, or one process
over all devices.

Run with one device, with SPMD over four virtual CPU devices, and with one started process, by
``python -m tests.strategies.xla_script`` in an environment that has torch_xla. It has not been run
on a TPU, nor with several processes, which torch_xla does not start on CPUs.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, check
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import current, use
from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.single import SingleCommunicator
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies.base import Strategy, TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.parallel import StepModule, copy_from_rank_zero, same_on_all_ranks
from distmetrics.tree import map_leaves

T = TypeVar("T")
_ALONE = SingleCommunicator()


class XLA(Strategy):
    """Devices of XLA.

    With ``devices=1`` this process uses one. Otherwise torch_xla starts a process for each device
    of this machine, which average their gradients through XLA; what is logged and agreed travels
    through gloo, on the host. With ``spmd=True`` this process uses all devices, as one big one:
    each batch is cut along its first dimension, and nothing else changes.

    Args:
        spmd: one process over all devices.

    Raises:
        MissingDependencyError: torch_xla is not installed.
    """

    name: ClassVar[str] = "xla"
    whole_on_each_rank: ClassVar[bool] = False

    def __init__(self, *, spmd: bool = False) -> None:
        super().__init__()
        check("XLA", locals(), {"spmd": FLAG})
        self.spmd = spmd
        self.isolated = False
        self.device_type = "xla"
        self._reduced: set[int] = set()  # optimizers whose gradients are averaged already

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; torch_xla runs on one device or on all.

        Raises:
            ConfigurationError: some devices but not all, or an accelerator that XLA has not here.
        """
        _library()
        if accelerator not in ("auto", "tpu", "cpu", "cuda", "gpu"):
            raise ConfigurationError(
                f"accelerator must be 'tpu', 'cpu', 'gpu' or 'auto', got {accelerator!r}"
            )
        if self.num_nodes != 1:
            raise ConfigurationError(
                f"strategy='xla' runs on this machine alone, and num_nodes={self.num_nodes}"
            )
        if self.precision.scales:
            raise ConfigurationError(
                "strategy='xla' has no scaled loss", do="say precision='bf16-mixed'."
            )
        if accelerator != "auto":
            os.environ.setdefault(
                "PJRT_DEVICE", {"gpu": "CUDA"}.get(accelerator, accelerator.upper())
            )
        one = devices in (1, "1") and not self.spmd
        self.isolated = not (one or self.spmd)
        self.devices = 1 if one or self.spmd else _count(devices)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        found: torch.device = _library().device()
        return found

    def comm(self) -> Communicator:
        """Who this rank talks through."""
        return current() if self.isolated else _ALONE

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` here, or in a process for each device; return rank 0's result."""
        if self.spmd:
            import torch_xla.runtime

            torch_xla.runtime.use_spmd()
        if not self.isolated:
            with use(_ALONE):
                return fn(*args)
        with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
            _library().launch(_rank, args=(folder, self.devices, pickle.dumps((fn, args))))
            result: T = torch.load(Path(folder) / "result", weights_only=False)
            return result

    def place(self, module: nn.Module) -> None:
        """Move the module to this rank's device, with the same weights on every rank."""
        super().place(module)
        if self.isolated:
            same_on_all_ranks(module)

    def convert(self, batch: T) -> T:
        """Return the batch in the precision's dtype; under SPMD, laid out over the devices."""
        batch = super().convert(batch)
        if not self.spmd:
            return batch
        import torch_xla.distributed.spmd as spmd

        mesh = spmd.get_1d_mesh("data")
        return map_leaves(lambda leaf: _laid_out(leaf, mesh, spmd.mark_sharding), batch)

    def setup(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[TrainingStep, list[Optimizer]]:
        """Return the training step, which a rank without a batch can take too."""
        return StepModule(module), list(optimizers)

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Clip the gradients, averaged over the processes."""
        self._reduce(optimizer)
        return super().clip(module, optimizer, **limits)

    def step(
        self, module: nn.Module, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> Any:
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

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers."""
        if self.isolated:
            copy_from_rank_zero(dict(module.named_buffers()), "buffers")

    def evaluator(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """Run a step of an evaluation, and let XLA run what it asked for."""
        step = getattr(module, name)

        def run(*args: Any) -> Any:
            output = step(*args)
            _library().sync()
            return output

        return run

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the module's state dict, on the host."""
        return {name: _home(value) for name, value in module.state_dict().items()}

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state dict, on the host."""
        state: dict[str, Any] = map_leaves(_home, optimizer.state_dict())
        return state

    def load_weights(self, module: nn.Module, weights: Mapping[str, Any]) -> None:
        """Put a state dict into the module, on its device."""
        module.load_state_dict(weights)
        _library().sync()


def _rank(index: int, folder: str, world_size: int, job: bytes) -> None:
    """Be the process of one device: join a group on the host for what is agreed, run the job, send
    home its result.

    Raises:
        ConfigurationError: torch_xla has started another number of processes.
    """
    import torch_xla.runtime as xr

    rank, found = xr.global_ordinal(), xr.world_size()
    if world_size not in (0, found):
        raise ConfigurationError(
            f"devices={world_size}, but torch_xla runs a process on each of {found} devices",
            do="say devices=-1 or 1.",
        )
    store = dist.FileStore(str(Path(folder) / "store"), found)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=found)
    fn, args = pickle.loads(job)  # noqa: S301  (our own parent's bytes)
    with use(GroupCommunicator.of(dist.group.WORLD)):
        value = fn(*args)
    if rank == 0:
        torch.save(value, Path(folder) / "result")
    dist.barrier()
    dist.destroy_process_group()


def _laid_out(leaf: Any, mesh: Any, mark: Callable[..., Any]) -> Any:
    """Cut a tensor along its first dimension, or copy it to every device where that does not
    divide.
    """
    if isinstance(leaf, Tensor):
        count = mesh.size()
        cut = leaf.ndim > 0 and leaf.shape[0] % count == 0
        mark(leaf, mesh, ("data" if cut else None, *(None,) * (leaf.ndim - 1)) if leaf.ndim else ())
    return leaf


def _home(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf


def _count(devices: Devices) -> int:
    """Return the number that the processes must find; 0 is whatever there is: asking would take the
    devices.
    """
    if devices in ("auto", None, -1, "-1"):
        return 0
    if isinstance(devices, str) and devices.isdigit():
        devices = int(devices)
    if isinstance(devices, int) and not isinstance(devices, bool) and devices > 1:
        return devices
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

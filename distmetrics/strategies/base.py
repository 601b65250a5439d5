"""How a model is split over devices: the seam between a strategy and the trainer or a loop.

:class:`Strategy` is one process on one device. A subclass overrides what differs and nothing else.
The trainer and a loop of the user's own ask, in this order::

    launch(fn)                      on every rank: fn()
        place(module)               to this rank's device, the same weights on every rank
        training_call(entry, ...)   what to call in training in the place of the module
        loader(loader)              this rank's part of the data, of as many parts as shards()
        forward()                   around each step: precision
        accumulate(step)            around the steps of an update but its last: gradients stay here
        backward(loss)              gradients
        clip(...), step(...)        the gradients' norm; the optimizer's step
        align(module)               before an evaluation: one model on all ranks
        evaluation_call(entry)      what to call in an evaluation
        convert(batch)              a batch on the device, in the precision's dtype
        weights, optimizer_state    what a checkpoint holds; load_... puts it back
        release()                   at the end: the user's modules are plain again

**To add a strategy**, write a file with a subclass of the nearest strategy that says how the model
is split: mostly ``training_call``, or ``wrap`` of :class:`~distmetrics.strategies.ddp.DDP`. Its
``launcher`` says how its processes come about. Give it a line in the table of ``registry.py``, and
import its class in ``__init__.py``, where the table's classes are looked up.

**To add a launcher**, write a subclass of :class:`Launcher` with ``launch``, and say whether it is
``isolated`` and ``joins``. A strategy that uses it says ``launcher = Mine()``. Ranks that are
``isolated`` get ``fn`` and its arguments as plain pickles (those of ``torch.multiprocessing`` share
memory between ranks) inside of a process group, and rank 0's result is returned.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.collectives.ops import broadcast
from distmetrics.comm.communicator import Communicator, SingleCommunicator, current, use
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import Environment, detect
from distmetrics.strategies.devices import Devices, device_kind, device_list
from distmetrics.strategies.precision import Precision
from distmetrics.strategies.sampling import shard
from distmetrics.strategies.tensors import StateDict, parameters_of

T = TypeVar("T")
TrainingStep = Callable[..., Any]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any] | None
Layout = Mapping[str, int | str] | Callable[[], Communicator] | None
_ALONE = SingleCommunicator()


class Entry(nn.Module):
    """What a strategy wraps: the one call by which every method of the user's module is reached."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs | None = None, method: str = "__call__") -> Any:
        """Call a method; without inputs, return a loss of 0 that depends on every parameter."""
        if inputs is not None:
            args, kwargs = inputs
            return getattr(self.module, method)(*args, **kwargs)
        if not torch.is_grad_enabled():
            return None
        return sum((p * 0).sum() for p in self.module.parameters() if p.requires_grad)


class Launcher:
    """How a strategy's processes come about; this one calls in the process that is there.

    Attributes:
        isolated: ranks work on copies of the caller's objects; results must be brought home.
        joins: ranks are a launcher's, or runs of the script: what is there already is joined.
    """

    isolated = False
    joins = False

    def join(self, environment: Environment) -> None:
        """Take part in a job that is under way, before the first call."""

    def launch(self, strategy: "Strategy", fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` on every rank; return this rank's result, or rank 0's if isolated."""
        with use(strategy.comm()):
            return fn(*args)


class Strategy:
    """How a model is split over devices; this one doesn't split it.

    Attributes:
        name: what ``Trainer(strategy=...)`` calls it.
        launcher: how its processes come about.
        alone: this process is a world of one, whatever ``torch.distributed`` says.
        manual: whether a training step may do its own backward and step its own optimizers.
        whole_on_each_rank: whether every rank has all weights and all of the optimizers' state.
        scales_loss: whether float16 with a scaled loss is possible.
        weighs_gradients: whether gradients can be changed between the backward pass and clipping.
        devices: number of devices on this machine.
        device_ids: their numbers.
        device_type: "cpu", "cuda" or "xla".
        num_nodes: number of machines.
        precision: what numbers are computed in.
        plugin: the user's own environment, or None to detect it.
        layout: what the ranks hold along the axes of a mesh; None where each has its own samples.

    >>> class Capped(Strategy):
    ...     name = "capped"
    ...     def backward(self, loss):
    ...         super().backward(loss.clamp(max=10))
    >>> Runner(strategy=Capped(), devices=1).strategy.name
    'capped'
    """

    name = ""
    launcher = Launcher()
    alone = False
    manual = True
    whole_on_each_rank = True
    scales_loss = True
    weighs_gradients = True
    devices = 1
    device_ids: Sequence[int] = (0,)
    device_type = "cpu"
    num_nodes = 1
    precision = Precision()
    plugin: Environment | None = None
    layout: Layout = None

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags ``devices`` and ``accelerator``."""
        self.device_type = device_kind(accelerator)
        self.device_ids = device_list(devices, self.device_type, self.environment())
        self.devices = len(self.device_ids)

    def check(self) -> None:
        """Check the trainer's flags, which are attributes now.

        Raises:
            ConfigurationError: ``num_nodes`` is not what the launcher has started, or there is no
                scaled loss for ``precision="16-mixed"``.
        """
        joined = self._joined()
        machines = 1 if joined is None else -(-joined.world_size // joined.local_world_size)
        if self.num_nodes not in (1, machines):
            raise ConfigurationError(
                f"strategy={self.name!r}: num_nodes={self.num_nodes}, and this process is one of "
                f"{self.world_size}, on {machines} machines",
                do="start the script on every machine by a launcher such as torchrun "
                f"--nnodes={self.num_nodes}, under strategy='ddp', or 'ddp2' in the place of 'dp'.",
            )
        if self.precision.scales and not self.scales_loss:
            raise ConfigurationError(
                f"strategy={self.name!r} has no scaled loss for precision='16-mixed'",
                do="say precision='bf16-mixed'.",
            )
        if joined is not None:
            self.launcher.join(joined)

    def environment(self) -> Environment | None:
        """Return who this process is in a job that something else started, or None."""
        return detect() if self.plugin is None else self.plugin

    def _joined(self) -> Environment | None:
        """Return who this process is in the job that this strategy joins, or None."""
        return self.environment() if self.launcher.joins else None

    @property
    def isolated(self) -> bool:
        """True if ranks work on copies of the caller's objects."""
        return self.launcher.isolated

    @property
    def joins(self) -> bool:
        """True if ranks are there already, each a run of the script."""
        return self.launcher.joins

    @property
    def backend(self) -> str:
        """The backend of ``torch.distributed`` that suits the device."""
        return "nccl" if self.device_type == "cuda" else "gloo"

    @property
    def processes(self) -> int:
        """Number of ranks on this machine."""
        return 1 if self.alone else self.devices

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        joined = self._joined()
        return self.processes if joined is None else joined.world_size

    @property
    def local_rank(self) -> int:
        """This rank on its machine; ranks of one machine are numbered in a row."""
        joined = self._joined()
        return self.comm().rank % max(self.processes, 1) if joined is None else joined.local_rank

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        if self.device_type == "cpu":
            return torch.device("cpu")
        return torch.device(self.device_type, self.device_ids[self.local_rank])

    def comm(self) -> Communicator:
        """Return the communicator of all ranks, inside :meth:`launch`."""
        return self.shards().whole

    def shards(self) -> Communicator:
        """Return the communicator of data and values: the layout, if there is one."""
        return _ALONE if self.alone else current()

    def mesh_sizes(self) -> dict[str, int]:
        """Return the number of ranks along each axis of the strategy's mesh; {} without one."""
        return {}

    def init_process_group(self, backend: str, **options: Any) -> None:
        """Make the job's process group; override it for other options or another backend.

        ``options`` are store, rank and world size, for ``torch.distributed.init_process_group``.
        """
        if backend == "nccl":
            local_rank = options["rank"] if self.isolated else self.local_rank
            torch.cuda.set_device(self.device_ids[local_rank])
        dist.init_process_group(backend, **options)

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` on every rank; return this rank's result, or rank 0's if isolated."""
        result: T = self.launcher.launch(self, fn, args)
        return result

    def place(self, module: nn.Module) -> None:
        """Move the module to this rank's device, with the same weights on every rank."""
        module.to(self.device)
        self.precision.place(module)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._copy_from_rank_zero(tensors, "weights")

    def _copy_from_rank_zero(self, tensors: dict[str, Tensor], what: str) -> None:
        comm = self.comm()
        if comm.world_size == 1 or not tensors:
            return
        with torch.no_grad():
            for name, value in broadcast(tensors, name=what, comm=comm).items():
                tensors[name].copy_(value)

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Return what to call in training in the place of ``entry``, with the same arguments.

        Args:
            entry: calls the methods of the user's module.
            optimizers: those of its parameters.

        Raises:
            ConfigurationError: there are several ranks, and a subclass has not overridden this.
        """
        if self.comm().world_size > 1:
            raise ConfigurationError(
                f"strategy {self.name!r} has no training_call: nothing would average the "
                "gradients of several ranks"
            )
        return entry

    def release(self) -> None:
        """Make the user's modules plain again, at the end of a launch; called on every rank."""

    def loader(self, loader: Any, *, train: bool, seed: int = 0) -> Any:
        """Return a loader of this rank's part of the data."""
        comm = self.shards()
        if comm.world_size == 1:
            return loader
        return shard(loader, comm.world_size, comm.rank, train=train, seed=seed, comm=comm)

    def forward(self) -> AbstractContextManager[Any]:
        """Return what a step of the module runs in: the precision."""
        return self.precision.forward()

    def convert(self, batch: T) -> T:
        """Return a batch that is on the device, with its floating tensors in the module's dtype."""
        return self.precision.convert(batch)

    def accumulate(self, step: TrainingStep) -> AbstractContextManager[Any]:
        """Return a block for all steps of an update but the last, in which no gradient is sent.

        Args:
            step: what :meth:`training_call` returned.
        """
        return nullcontext()

    def check_averaged(self, step: TrainingStep) -> None:
        """Check, before an update, that gradients are those of all ranks."""

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, and add them to those that are there."""
        self.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def clip(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        max_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
    ) -> Tensor | None:
        """Clip the norm of gradients over all ranks' parts, and return it, or clip each value."""
        self.precision.unscale(optimizer)
        if max_norm is not None:
            return nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm, norm_type)
        if clip_value is not None:
            nn.utils.clip_grad_value_(parameters_of(optimizer), clip_value)
        return None

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Take the optimizer's step; return what it returns."""
        return self.precision.step(optimizer, closure)

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers: running statistics follow each rank's own data."""
        self._copy_from_rank_zero(dict(module.named_buffers()), "buffers")

    def evaluation_call(self, entry: Entry) -> Callable[..., Any]:
        """Return what to call in an evaluation in the place of ``entry``."""
        return entry

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the module's whole state dict; called on every rank."""
        return module.state_dict()

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module; called on every rank, after its set-up."""
        module.load_state_dict(weights)

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's whole state dict; called on every rank."""
        return optimizer.state_dict()

    def load_optimizer_state(
        self, module: nn.Module, optimizer: Optimizer, state: StateDict
    ) -> None:
        """Put a whole state dict into the optimizer; called on every rank, after its set-up."""
        optimizer.load_state_dict(dict(state))


class Single(Strategy):
    """One process on one device, also inside a job of many: it talks to nobody.

    >>> Single().comm().world_size
    1
    """

    name = "single"
    alone = True

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags.

        Raises:
            ConfigurationError: ``devices`` is neither one device nor "auto".
        """
        super().bind(1 if devices in ("auto", None) else devices, accelerator)
        if self.devices != 1:
            raise ConfigurationError(
                f"strategy='single' runs on one device, and devices={devices!r}",
                do="say strategy='auto', 'ddp' or 'ddp_spawn'.",
            )

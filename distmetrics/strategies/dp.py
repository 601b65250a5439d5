"""Data parallel in one process: replicas of the module share each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import replicate
from torch.optim import Optimizer

from distmetrics.comm.base import Communicator
from distmetrics.comm.single import SingleCommunicator
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import Strategy, TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.replica import replay, replicas
from distmetrics.strategies.threaded import in_threads
from distmetrics.tree import flatten, map_leaves


class DP(Strategy):
    """One process; each batch is cut into parts along its first dimension, and replicas work on
    them at a time.

    A replica lives for one step: attributes that a step sets are lost (with a warning).
    ``self.log`` and the ``update`` of a metric object are noted in the replicas and done on the
    module after the step; all else about metrics belongs into ``training_step_end``,
    ``validation_step_end`` or ``test_step_end``, which get the outputs of all replicas joined along
    the first dimension, numbers stacked. Where ``training_step_end`` is not overridden, the loss is
    the mean over all samples. On CPU replicas are threads over the same parameters.

    >>> DP().comm().world_size
    1
    """

    name: ClassVar[str] = "dp"
    manual: ClassVar[bool] = False

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; ``devices`` is the number of replicas, "auto" every GPU."""
        super().bind(-1 if devices in ("auto", None) else devices, accelerator)
        if self.num_nodes != 1:
            raise ConfigurationError(
                f"strategy='dp' is one process, and num_nodes={self.num_nodes}",
                do="say strategy='ddp2'.",
            )

    @property
    def world_size(self) -> int:
        """One rank, whatever the number of replicas."""
        return 1

    def comm(self) -> Communicator:
        """A world of one."""
        return _ALONE

    def setup(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[TrainingStep, list[Optimizer]]:
        """Run the training step on replicas."""
        return Replicated(module, "training_step", self), list(optimizers)

    def prepare(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[Callable[..., Any], list[Optimizer]]:
        """Run every call of the module on replicas; what they return is joined, numbers stacked."""
        return Replicated(module, "forward", self), list(optimizers)

    def evaluator(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """Run a step of an evaluation on replicas."""
        return Replicated(module, name, self)


_ALONE = SingleCommunicator()


class Replicated:
    """A step of a module, as a call that cuts the batch, runs the replicas and joins what they
    return.

    Args:
        module: the user's.
        name: of its step.
        strategy: whose devices to use; there is a replica on each.
    """

    def __init__(self, module: nn.Module, name: str, strategy: Strategy) -> None:
        self.module = module
        self.name = name
        self.devices = [torch.device(strategy.device_type, index) for index in strategy.device_ids]
        self.on_cpu = strategy.device_type == "cpu"

    def __call__(self, batch: Any, *args: Any) -> Any:
        """Run the step on the parts of a batch."""
        shares = parts(batch, len(self.devices))
        devices = self.devices[: len(shares)]
        if self.on_cpu:
            copies = [_shallow(self.module, first=index == 0) for index in range(len(shares))]
        else:
            shares = [
                map_leaves(partial(_moved, device), share)
                for share, device in zip(shares, devices, strict=True)
            ]
            copies = _on_gpus(self.module, devices)
        sizes = [_size(share) for share in shares]
        notes = replicas(self.module, copies, sizes)
        calls = [self._call(*each, args) for each in zip(copies, shares, devices, strict=True)]
        outputs = in_threads(calls)
        replay(self.module, notes)
        output = joined(outputs, None if self.on_cpu else devices[0])
        if self.name == "training_step" and not _overridden(self.module, "training_step_end"):
            return _with_one_loss(output, outputs, [1 if size is None else size for size in sizes])
        return output

    def _call(
        self, copied: nn.Module, share: Any, device: torch.device, args: tuple[Any, ...]
    ) -> Callable[[], Any]:
        def call() -> Any:
            with nullcontext() if self.on_cpu else torch.cuda.device(device):
                return getattr(copied, self.name)(share, *args)

        return call


def _overridden(module: nn.Module, name: str) -> bool:
    """Whether a class of the user's has the method; the trainer's own does nothing."""
    owner = next((cls for cls in type(module).__mro__ if name in vars(cls)), None)
    return owner is not None and not owner.__module__.startswith("distmetrics.train.")


def _with_one_loss(output: Any, outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Put the mean over all samples in the place of the replicas' losses."""

    def mean(losses: Sequence[Any]) -> Any:
        if not all(isinstance(loss, Tensor) and loss.numel() == 1 for loss in losses):
            return None
        device = losses[0].device
        total = sum(
            loss.to(device).reshape(()) * size for loss, size in zip(losses, sizes, strict=True)
        )
        return total / max(sum(sizes), 1)

    if isinstance(output, dict) and "loss" in output:
        loss = mean([each["loss"] for each in outputs])
        return output if loss is None else {**output, "loss": loss}
    loss = mean(outputs)
    return output if loss is None else loss


def parts(batch: Any, count: int) -> list[Any]:
    """Cut a batch along the first dimension of its tensors into at most ``count`` parts, as equal
    as torch's chunks.

    What has no first dimension goes into every part.

    Raises:
        InputError: tensors of different first dimensions.

    >>> parts({"x": torch.arange(5)}, 2)
    [{'x': tensor([0, 1, 2])}, {'x': tensor([3, 4])}]
    """
    leaves, spec = flatten(batch)
    cut = {
        index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.ndim
    }
    sizes = {spec.paths[index]: leaf.shape[0] for index, leaf in cut.items()}
    if len(set(sizes.values())) > 1:
        seen = ", ".join(f"batch{path} has {size}" for path, size in sizes.items())
        raise InputError(
            "strategy 'dp' cuts a batch along the first dimension of its tensors, and they "
            f"differ: {seen}",
            do="give all tensors of a batch the samples as the first dimension, or say "
            "strategy='ddp'.",
        )
    if not cut or count == 1:
        return [batch]
    chunks = {index: leaf.chunk(count) for index, leaf in cut.items()}
    number = max(len(chunk) for chunk in chunks.values())
    return [
        spec.unflatten([chunks[i][part] if i in chunks else leaf for i, leaf in enumerate(leaves)])
        for part in range(number)
    ]


def joined(outputs: Sequence[Any], device: torch.device | None = None) -> Any:
    """Join what replicas returned: tensors along their first dimension, numbers in tensors stacked.

    Other values that are equal in all replicas stay as they are, else they come as a list.

    Args:
        outputs: trees of one structure, one a replica.
        device: where to put tensors; default where they are.

    Raises:
        InputError: the trees differ.

    >>> joined([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
    {'loss': tensor([1., 2.])}
    """
    taken = [flatten(output) for output in outputs]
    if len({spec.text for _, spec in taken}) > 1:
        shapes = " and ".join(sorted({spec.text for _, spec in taken}))
        raise InputError(f"the replicas' steps returned different things: {shapes}")
    spec = taken[0][1]
    return spec.unflatten(
        [_join(column, device) for column in zip(*(leaves for leaves, _ in taken), strict=True)]
    )


def _join(column: Sequence[Any], device: torch.device | None) -> Any:
    if all(isinstance(leaf, Tensor) for leaf in column):
        moved = [leaf if device is None else leaf.to(device) for leaf in column]
        return torch.stack(moved) if moved[0].ndim == 0 else torch.cat(moved)
    return column[0] if all(leaf == column[0] for leaf in column[1:]) else list(column)


def _size(share: Any) -> int | None:
    leaves, _ = flatten(share)
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), None)


def _moved(device: torch.device, leaf: Any) -> Any:
    return leaf.to(device) if isinstance(leaf, Tensor) else leaf


def _shallow(module: nn.Module, *, first: bool) -> nn.Module:
    """Copy a module without its memory: parameters are the module's own, and so are their
    gradients.

    The first keeps the buffers too, so that running statistics live on; the others get copies.
    torch's own replicate refuses CPU.
    """
    done: dict[int, nn.Module] = {}
    clones: dict[int, Tensor] = {}
    for part in module.modules():
        copied = done[id(part)] = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copied._parameters = part._parameters.copy()
        for name, buffer in part._buffers.items():
            if buffer is not None and not first:
                copied._buffers[name] = clones.setdefault(id(buffer), buffer.clone())
    for part in module.modules():
        for name, child in part._modules.items():
            if child is not None:
                done[id(part)]._modules[name] = done[id(child)]
    return done[id(module)]


def _on_gpus(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """Copy a module to each device, by torch's replicate; ``parameters()`` of a copy are its own."""
    copies = list(replicate(module, devices, detach=not torch.is_grad_enabled()))
    for copied in copies:
        for part in copied.modules():
            part._parameters.update(getattr(part, "_former_parameters", {}))
    return copies

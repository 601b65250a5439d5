"""Data parallel in one process: replicas of the module share each batch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import replicate
from torch.optim import Optimizer

from distmetrics.errors import InputError
from distmetrics.strategies.base import Entry, Inputs, Strategy, TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.replica import in_threads, noted, replay
from distmetrics.strategies.tensors import map_tensors
from distmetrics.strategies.weighted_gradients import weight_number
from distmetrics.tree import flatten


class ReplicaStrategy(Strategy):
    """A replica of the module on each device of a process; they share each batch."""

    manual = False

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; ``devices`` is the number of replicas, "auto" all GPUs."""
        super().bind(-1 if devices in ("auto", None) else devices, accelerator)

    def evaluation_call(self, entry: Entry) -> Callable[..., Any]:
        """Call on replicas."""
        return Replicated(entry, self)


class DP(ReplicaStrategy):
    """One process; each batch is cut along its first dimension, and replicas work on the parts.

    A replica lives for one step: attributes that a step sets are lost (with a warning).
    ``self.log`` and the ``update`` of a metric object are noted in the replicas and done on the
    module after the step; all else about metrics belongs into ``training_step_end``,
    ``validation_step_end`` or ``test_step_end``, which get the outputs of all replicas joined along
    the first dimension, numbers stacked. Where ``training_step_end`` is not overridden, the loss is
    the mean over all samples. On CPU replicas are threads over the same parameters.

    >>> DP().comm().world_size
    1
    """

    name = "dp"
    alone = True

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Call on replicas; what they return is joined, numbers stacked."""
        return Replicated(entry, self)


class Replicated(nn.Module):
    """An entry that cuts its inputs, calls replicas with the parts and joins what they return.

    Args:
        entry: of the user's module.
        strategy: whose devices to use; there is a replica on each.
    """

    def __init__(self, entry: Entry, strategy: Strategy) -> None:
        super().__init__()
        self.module = entry
        self.on_cpu = strategy.device_type == "cpu"
        self.devices = [torch.device(strategy.device_type, each) for each in strategy.device_ids]

    def forward(self, inputs: Inputs | None = None, method: str = "__call__") -> Any:
        """Call a method of the replicas."""
        if inputs is None:
            return self.module()
        shares = parts(inputs, len(self.devices))
        devices = self.devices[: len(shares)]
        if self.on_cpu:
            copies = [_shallow(self.module, first=index == 0) for index in range(len(shares))]
        else:
            copies = _on_gpus(self.module, devices)
        notes = []
        calls = []
        module = self.module.module
        is_step = method.endswith("_step")  # of the trainer's module, which logs
        for copied, share, device in zip(copies, shares, devices, strict=True):
            inside: Any = copied.module
            notes.append(noted(module, inside, _size(share), is_step=is_step))
            calls.append(partial(self._run, copied, share, method, device))
        outputs = in_threads(calls)
        replay(module, notes)
        output = joined(outputs)
        if method == "training_step" and not _overrides_step_end(module):
            return _with_one_loss(output, outputs, [each.size for each in notes])
        return output

    def _run(self, copied: nn.Module, share: Inputs, method: str, device: torch.device) -> Any:
        if self.on_cpu:
            return copied(share, method)
        with torch.cuda.device(device):
            return copied(map_tensors(lambda tensor: tensor.to(device), share), method)


def _overrides_step_end(module: nn.Module) -> bool:
    """True if a class of the user's has ``training_step_end``; the trainer's own does nothing."""
    method = getattr(type(module), "training_step_end", None)
    return method is not None and not method.__module__.startswith("distmetrics.run.")


def _with_one_loss(output: Any, outputs: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    """Put the mean over all samples in the place of the replicas' losses.

    Where the step returns a weight, the mean over all that the weights count.
    """
    in_dict = isinstance(output, dict) and "loss" in output
    has_weight = in_dict and any(each.get("weight") is not None for each in outputs)
    losses = [each["loss"] for each in outputs] if in_dict else outputs
    weights: list[float] = [1 if size is None else size for size in sizes]
    if has_weight:
        weights = [weight_number(each["weight"]) for each in outputs]
    if not all(isinstance(loss, Tensor) and loss.numel() == 1 for loss in losses):
        return output
    count = sum(weights)
    mean = losses[0].reshape(())
    if count:
        mean = sum(
            loss.to(mean.device).reshape(()) * (weight / count)
            for loss, weight in zip(losses, weights, strict=True)
            if weight
        )
    if has_weight:
        return {**output, "loss": mean, "weight": count}
    return {**output, "loss": mean} if in_dict else mean


def parts(batch: Any, count: int) -> list[Any]:
    """Cut a batch along its tensors' first dimension into at most ``count`` parts, as torch.chunk.

    What has no first dimension goes into every part.

    Raises:
        InputError: tensors of different first dimensions.

    >>> parts({"x": torch.arange(5)}, 2)
    [{'x': tensor([0, 1, 2])}, {'x': tensor([3, 4])}]
    """
    leaves, spec = flatten(batch)
    sizes = {}
    for path, leaf in zip(spec.paths, leaves, strict=True):
        if _has_rows(leaf):
            sizes[path] = leaf.shape[0]
    if len(set(sizes.values())) > 1:
        texts = [f"batch{path} has {size}" for path, size in sizes.items()]
        raise InputError(
            "strategy 'dp' cuts a batch along the first dimension of its tensors, and they "
            f"differ: {', '.join(texts)}",
            do="give all tensors of a batch the samples as the first dimension, or say "
            "strategy='ddp'.",
        )
    if not sizes or count == 1:
        return [batch]
    (size,) = set(sizes.values())
    number = len(torch.empty(size).chunk(count))
    columns = [leaf.chunk(count) if _has_rows(leaf) else [leaf] * number for leaf in leaves]
    return [spec.unflatten(row) for row in zip(*columns, strict=True)]


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def joined(outputs: Sequence[Any]) -> Any:
    """Join what replicas returned: tensors along their first dimension, numbers in tensors stacked.

    Other values that are equal in all replicas stay as they are, else they come as a list.

    Args:
        outputs: trees of one structure, one a replica; tensors go where the first replica's are.

    Raises:
        InputError: the trees differ.

    >>> joined([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
    {'loss': tensor([1., 2.])}
    """
    leaves, specs = zip(*map(flatten, outputs), strict=True)
    texts = sorted({spec.text for spec in specs})
    if len(texts) > 1:
        different = " and ".join(texts)
        raise InputError(f"the replicas' steps returned different things: {different}")
    columns = zip(*leaves, strict=True)
    return specs[0].unflatten([_join(column) for column in columns])


def _join(column: Sequence[Any]) -> Any:
    if all(isinstance(leaf, Tensor) for leaf in column):
        moved = [leaf.to(column[0].device) for leaf in column]
        return torch.stack(moved) if moved[0].ndim == 0 else torch.cat(moved)
    first = column[0]
    return first if all(leaf == first for leaf in column) else list(column)


def _size(share: Any) -> int | None:
    """Return the number of samples of a part of a batch, or None where that can't be told."""
    leaves, _ = flatten(share)
    for leaf in leaves:
        if _has_rows(leaf):
            return int(leaf.shape[0])
    return None


def _shallow(module: nn.Module, *, first: bool) -> nn.Module:
    """Return a copy of a module with the module's own parameters, and so its gradients.

    The first keeps the buffers too, so that running statistics live on; the others get copies.
    torch's own replicate refuses CPU.
    """
    buffers = {}
    for buffer in module.buffers():
        buffers[id(buffer)] = buffer if first else buffer.clone()
    copies: dict[int, nn.Module] = {}
    for part in module.modules():
        copied = copies[id(part)] = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copied._parameters = part._parameters.copy()
        copied._buffers = _replaced(part._buffers, buffers)
    for copied in copies.values():
        copied._modules = _replaced(copied._modules, copies)
    return copies[id(module)]


def _replaced(named: Mapping[str, Any], by_id: Mapping[int, Any]) -> dict[str, Any]:
    return {name: by_id.get(id(old)) for name, old in named.items()}


def _on_gpus(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """Copy a module to each device by torch's replicate; ``parameters()`` of a copy are its own."""
    copies = list(replicate(module, devices, detach=not torch.is_grad_enabled()))
    for copied in copies:
        for part in copied.modules():
            part._parameters.update(getattr(part, "_former_parameters", {}))
    return copies

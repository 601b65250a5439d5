"""Data parallel in one process: replicas of the module share each batch.

A replica is a shallow copy that lives for one step. What a step changes on it is lost, so it notes
what the step logs and which metrics it updates, and the module does both after the step.
"""

import contextvars
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import replicate
from torch.optim import Optimizer

from distmetrics.arguments import is_metric
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import Entry, Inputs, Strategy, TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.tensors import map_tensors
from distmetrics.strategies.weighted_gradients import weight_number
from distmetrics.tree import flatten

_warned: set[str] = set()  # of attributes that are lost


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
    ``self.log`` and the ``update`` of a metric are done on the module after the step. Anything else
    with metrics belongs into ``training_step_end``, ``validation_step_end`` or ``test_step_end``,
    which get the outputs of all replicas joined along the first dimension, numbers stacked. Without
    ``training_step_end`` the loss is the mean over all samples. On CPU replicas are threads over
    the same parameters.

    >>> DP().comm().world_size
    1
    """

    name = "dp"
    alone = True

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Call on replicas; what they return is joined, numbers stacked."""
        return Replicated(entry, self)


class Replicated(nn.Module):
    """An entry that cuts its inputs, calls replicas with the parts and joins what they return."""

    def __init__(self, entry: Entry, strategy: Strategy) -> None:
        super().__init__()
        self.module = entry
        kind = strategy.device_type
        self.devices = [torch.device(kind, each) for each in strategy.device_ids]

    def forward(self, inputs: Inputs | None = None, method: str = "__call__") -> Any:
        """Call a method of the replicas; the module itself where there is nothing to cut."""
        if inputs is None:
            return self.module()
        shares, sizes = parts(inputs, len(self.devices))
        if len(shares) == 1:
            outputs = [self.module(inputs, method)]
        else:
            copies = _copies(self.module, self.devices[: len(shares)])
            pairs = zip(copies, sizes, strict=True)
            notes = [_Notes(self.module.module, copied.module, size) for copied, size in pairs]
            outputs = _in_threads(copies, self.devices, shares, method)
            _replay(self.module.module, notes)
        output = joined(outputs)
        if method == "training_step" and not hasattr(self.module.module, "training_step_end"):
            return _with_one_loss(output, outputs, sizes)
        return output


def _copies(entry: nn.Module, devices: Sequence[torch.device]) -> list[Any]:
    """Copy a module to each device; ``parameters()`` of a copy are its own."""
    if devices[0].type == "cpu":
        return [_shallow(entry, is_first=index == 0) for index in range(len(devices))]
    copies = list(replicate(entry, devices, detach=not torch.is_grad_enabled()))
    for copied in copies:
        for part in copied.modules():
            part._parameters.update(getattr(part, "_former_parameters", {}))
    return copies


def _shallow(module: nn.Module, *, is_first: bool) -> Any:
    """Copy a module on the CPU, which torch's replicate refuses; parameters are the module's own.

    The first keeps the buffers too, so that running statistics live on; the others get copies.
    """
    copies: dict[int, Any] = {}
    for buffer in module.buffers():
        copies[id(buffer)] = buffer if is_first else buffer.clone()
    for part in module.modules():
        copied = copies[id(part)] = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copied._parameters = part._parameters.copy()
    for part in module.modules():
        for named in (copies[id(part)]._buffers, copies[id(part)]._modules):
            named.update({name: copies.get(id(old)) for name, old in named.items()})
    return copies[id(module)]


def _in_threads(
    copies: Sequence[nn.Module],
    devices: Sequence[torch.device],
    shares: Sequence[Inputs],
    method: str,
) -> list[Any]:
    """Call replicas at a time, in threads with this one's modes (grad, autocast)."""
    kind = devices[0].type
    is_inference, has_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    is_lowered, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def call(copied: nn.Module, device: torch.device, share: Inputs) -> Any:
        # The cache is one for all threads: gradients of all would be added up in its low precision.
        autocast = torch.autocast(kind, dtype, is_lowered, cache_enabled=False)
        with torch.inference_mode(is_inference), torch.set_grad_enabled(has_grad), autocast:
            if kind == "cpu":
                return copied(share, method)
            with torch.cuda.device(device):
                return copied(map_tensors(lambda tensor: tensor.to(device), share), method)

    with ThreadPoolExecutor(len(copies), "replica") as pool:
        futures = [
            pool.submit(contextvars.copy_context().run, partial(call, *each))
            for each in zip(copies, devices, shares, strict=False)
        ]
    return [future.result() for future in futures]


class _Notes:
    """Makes ``copied``, a replica that sees so many samples, note what it logs and updates."""

    def __init__(self, module: nn.Module, copied: nn.Module, size: int) -> None:
        self.module: Any = module
        self.size = size
        # By name: values, the number of samples behind each, and the options.
        self.logged: dict[str, list[tuple[Any, Any, dict[str, Any]]]] = defaultdict(list)
        self.calls: list[Callable[[], Any]] = []  # of metric objects' methods
        self.metrics: dict[int, Any] = {}  # by the id of what stands for each in the replica
        # The trainer's module logs and gathers; another may have methods of its own by these names.
        if any(kind.__module__.startswith("distmetrics.run.") for kind in type(module).__mro__):
            refused = _refusal("self.all_gather")
            vars(copied).update(log=self.log, log_dict=self.log_dict, all_gather=refused)
        # Parts of the replica, and their attributes before the step.
        self.before: list[tuple[str, nn.Module, dict[str, Any]]] = []
        for (path, own), part in zip(module.named_modules(), copied.modules(), strict=True):
            if is_metric(own):
                self._stand_for(own, path, part)
            for name, value in vars(own).items():
                if not name.startswith("_") and is_metric(value):
                    stand_in = vars(part)[name] = SimpleNamespace()
                    self._stand_for(value, f"{path}.{name}".lstrip("."), stand_in)
            self.before.append((path, part, dict(vars(part))))

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Stand for ``self.log`` in the replica."""
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            size = options.pop("batch_size", None) or self.size
            self.logged[name].append((value, size, options))
        else:  # a metric object, or what the module's own log refuses
            self._later(self.module.log, name, self.metrics.get(id(value), value), **options)

    def log_dict(self, values: Any, **options: Any) -> None:
        """Stand for ``self.log_dict`` in the replica."""
        if id(values) in self.metrics:
            self._later(self.module.log_dict, self.metrics[id(values)], **options)
        else:
            for name, value in values.items():
                self.log(name, value, **options)

    def _later(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.calls.append(partial(call, *args, **kwargs))

    def _stand_for(self, metric: Any, path: str, holder: Any) -> None:
        """Give a metric's place in the replica methods that note updates, and refuse the rest."""
        self.metrics[id(holder)] = metric
        holder.update = partial(self._later, metric.update)
        holder.forward = _refusal(f"self.{path}(...)")
        holder.compute = _refusal(f"self.{path}.compute()")
        holder.reset = _refusal(f"self.{path}.reset()")

    def warn_of_lost(self) -> None:
        """Say which attributes the step has set on the replica."""
        for path, part, before in self.before:
            for name, value in vars(part).items():
                where = f"self.{path}.{name}".replace("..", ".")
                is_kept = name in before and before[name] is value
                if not is_kept and where not in _warned:
                    _warned.add(where)
                    warnings.warn(
                        f"a step has set {where} on a replica of strategy 'dp', which is thrown "
                        "away: the value is lost. Return it from the step: *_step_end gets it from "
                        "all replicas, joined.",
                        stacklevel=2,
                    )


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise ConfigurationError(
            f"{what} in a step under strategy 'dp': each replica sees its part of the batch "
            "alone, and is thrown away",
            do="return what it needs, and call it in training_step_end or validation_step_end; "
            "update(...) of a metric object and self.log(name, metric) are fine in a step.",
        )

    return refuse


def _replay(module: Any, all_notes: Sequence[_Notes]) -> None:
    """Do on the module what its replicas have noted, in their order; log each name once."""
    logged: dict[str, list[Any]] = defaultdict(list)
    for notes in all_notes:
        for call in notes.calls:
            call()
        notes.warn_of_lost()
        for name, entries in notes.logged.items():
            logged[name] += entries
    for name, entries in logged.items():
        _, _, options = entries[0]
        if any(each != options for _, _, each in entries):
            raise ConfigurationError(f"the replicas log {name!r} with different options")
        numbers = [torch.as_tensor(value).detach().double().reshape(()) for value, _, _ in entries]
        values = torch.stack([number.to(numbers[0].device) for number in numbers])
        sizes = torch.tensor([size for _, size, _ in entries]).to(values)
        reduce_fx = options.get("reduce_fx", "mean")
        if reduce_fx == "mean":
            values = values * sizes / sizes.sum()
        # The module's own log refuses what is not one of these.
        combine = {"max": torch.max, "min": torch.min}.get(reduce_fx, torch.sum)
        module.log(name, combine(values), batch_size=sizes.sum().item(), **options)


def _with_one_loss(output: Any, outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Put the mean over all samples, or all that steps' weights count, in the losses' place."""
    in_dict = isinstance(output, dict)
    has_weight = in_dict and output.get("weight") is not None
    losses = [each.get("loss") for each in outputs] if in_dict else outputs
    weights: Sequence[float] = sizes
    if has_weight:
        weights = [weight_number(each["weight"]) for each in outputs]
    if not all(isinstance(loss, Tensor) and loss.numel() == 1 for loss in losses):
        return output
    count = sum(weights)
    mean = losses[0].reshape(())
    if count:  # a loss of weight 0 may be NaN
        mean = sum(
            loss.to(mean.device).reshape(()) * (weight / count)
            for loss, weight in zip(losses, weights, strict=True)
            if weight
        )
    if not in_dict:
        return mean
    return {**output, "loss": mean, **({"weight": count} if has_weight else {})}


def parts(batch: Any, count: int) -> tuple[list[Any], list[int]]:
    """Cut a batch along its tensors' first dimension into at most ``count`` parts, as torch.chunk.

    What has no first dimension goes into every part.

    Returns:
        the parts, and the number of samples of each; 1 where nothing is cut.

    Raises:
        InputError: tensors of different first dimensions.

    >>> parts({"x": torch.arange(5)}, 2)
    ([{'x': tensor([0, 1, 2])}, {'x': tensor([3, 4])}], [3, 2])
    """
    leaves, spec = flatten(batch)
    rows = {leaf.shape[0] for leaf in leaves if _has_rows(leaf)}
    if len(rows) > 1:
        raise InputError(
            "strategy 'dp' cuts a batch along the first dimension of its tensors, and they "
            f"differ: {sorted(rows)}",
            do="give all tensors of a batch the samples as the first dimension, or say "
            "strategy='ddp'.",
        )
    if not rows or count == 1:
        return [batch], [1]
    sizes = [len(chunk) for chunk in torch.empty(rows.pop()).chunk(count)]
    columns = [leaf.chunk(count) if _has_rows(leaf) else [leaf] * len(sizes) for leaf in leaves]
    return [spec.unflatten(row) for row in zip(*columns, strict=True)], sizes


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def joined(outputs: Sequence[Any]) -> Any:
    """Join what replicas returned: tensors along their first dimension, numbers in tensors stacked.

    Other values that are equal in all replicas stay as they are, else they come as a list. Tensors
    go where the first replica's are.

    Raises:
        InputError: the replicas returned trees that differ.

    >>> joined([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
    {'loss': tensor([1., 2.])}
    """
    leaves, specs = zip(*map(flatten, outputs), strict=True)
    texts = sorted({spec.text for spec in specs})
    if len(texts) > 1:
        different = " and ".join(texts)
        raise InputError(f"the replicas' steps returned different things: {different}")
    return specs[0].unflatten([_join(column) for column in zip(*leaves, strict=True)])


def _join(column: Sequence[Any]) -> Any:
    first = column[0]
    if all(isinstance(leaf, Tensor) for leaf in column):
        moved = [leaf.to(first.device) for leaf in column]
        return torch.stack(moved) if first.ndim == 0 else torch.cat(moved)
    return first if all(leaf == first for leaf in column) else list(column)

"""What a loop gets for its own model, optimizers and loaders: the same names, and more is done."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, SequentialSampler

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.sharding import EvaluationSampler, set_epoch
from distmetrics.errors import ConfigurationError
from distmetrics.launch.joining import losses_named
from distmetrics.strategies.base import Entry, Inputs, Strategy
from distmetrics.strategies.tensors import map_tensors, parameters_of
from distmetrics.strategies.weighted_gradients import WeightedGradients
from distmetrics.tree import move

_LAST_OUTSIDE = (
    "no_backward_sync(model, enabled=not last) around each call and its backward, where last is "
    "the update's last, and step() after the block."
)
_OWN = ("_runner", "training", "_parameters", "_buffers", "_modules")


class RunnerModule(nn.Module):
    """A model as :meth:`~distmetrics.Runner.setup` returns it.

    Its call is the strategy's, in the runner's precision. Everything else is the user's own model:
    attributes, parameters and their names, ``state_dict``, ``train`` and ``eval``. A copy or a
    pickle of it is a copy or a pickle of the user's model.

    The gradients of a method other than ``forward`` would not be averaged: name such methods with
    :meth:`mark_forward_method`.

    Raises:
        ConfigurationError: a method that is not named computes with gradients on several ranks.

    >>> def names(runner):
    ...     model = runner.setup(torch.nn.Linear(2, 1))
    ...     return list(model.state_dict()), model(torch.ones(4, 2)).shape
    >>> Runner(strategy="single").launch(names)
    (['weight', 'bias'], torch.Size([4, 1]))
    """

    _runner: StrategyCalls

    def __init__(
        self, module: nn.Module, strategy: Strategy, optimizers: Sequence[Optimizer]
    ) -> None:
        super().__init__()
        # The same dicts, not copies: names and parameters are the user's, also where a strategy
        # replaces some.
        for name in ("_parameters", "_buffers", "_modules", "training"):
            object.__setattr__(self, name, getattr(module, name))
        object.__setattr__(self, "_runner", StrategyCalls(module, strategy, optimizers))

    @property
    def module(self) -> nn.Module:
        """The user's own model."""
        return self._runner.module

    def mark_forward_method(self, *methods: str) -> None:
        """Let the strategy call methods of the model as it calls ``forward``, with its precision.

        Args:
            methods: names, such as "loss" or "training_step".

        Raises:
            ConfigurationError: the model has no such method.
        """
        for method in methods:
            if not callable(getattr(self.module, method, None)):
                raise ConfigurationError(f"{type(self.module).__name__} has no method {method!r}")
        self._runner.methods.update(methods)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's model."""
        return self._runner.call("__call__", args, kwargs)

    def train(self, mode: bool = True) -> RunnerModule:
        """Set the mode, as torch does; every rank must call it.

        In the mode of evaluation, buffers such as running statistics become rank 0's on all ranks.
        """
        object.__setattr__(self, "training", mode)
        self.module.train(mode)
        if not mode:
            self._runner.strategy.align(self.module)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.module.zero_grad(set_to_none=set_to_none)
        self._runner.gradients.clear()

    def apply(self, fn: Callable[[nn.Module], None]) -> RunnerModule:
        """Apply ``fn`` to every part of the user's model, and to itself."""
        self.module.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the whole state dict, by the user's own names.

        With a sharded model every rank must call it.
        """
        if args or kwargs:
            return self.module.state_dict(*args, **kwargs)
        with losses_named(self._runner.strategy.comm()):
            return self._runner.strategy.weights(self.module)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a whole state dict; every rank must call it, with the same content."""
        if strict and not assign:
            return self._runner.strategy.load_weights(self.module, state_dict)
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def __getattr__(self, name: str) -> Any:
        if "_runner" not in self.__dict__:  # while it is being made
            return super().__getattr__(name)
        value = getattr(self.module, name)
        if isinstance(value, types.MethodType) and not hasattr(nn.Module, name):
            return self._runner.method(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or "_runner" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __repr__(self) -> str:
        return repr(self.module)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self.module,)


def _itself(value: Any) -> Any:
    """Return the value: the pickle of a wrapper calls it with the object inside."""
    return value


class StrategyCalls:
    """Calls a user's model the strategy's way, and knows whether its gradients are all ranks'.

    It is apart from :class:`RunnerModule`, whose names are the user's.

    Attributes:
        outer: what the strategy calls in training.
        methods: names of methods that the strategy calls.
        calls: how often the model has been called with gradients.
        gradients: of losses with a weight: a sum, or their mean.
        is_in_block: gradients stay on this rank, and are no mean yet.
        shares_by_hand: gradients are averaged after each backward, not by torch's wrapper.
    """

    def __init__(
        self, module: nn.Module, strategy: Strategy, optimizers: Sequence[Optimizer]
    ) -> None:
        self.module = module
        self.strategy = strategy
        self._entry = Entry(module)
        self.outer = strategy.training_call(self._entry, optimizers)
        self.methods: set[str] = set()
        self.calls = 0
        self.gradients = WeightedGradients(strategy, module, optimizers)
        self.is_in_block = False
        self.shares_by_hand = False
        self._was_in_block = False  # at the latest call with gradients
        self._is_unshared = False  # the gradients that are there are, in part, this rank's alone

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the model: the strategy's wrapper if there may be gradients."""
        return self.call_with(self.strategy.convert((args, kwargs)), method)

    def call_with(self, inputs: Inputs, method: str) -> Any:
        """Call a method of the model with what is converted already."""
        if not torch.is_grad_enabled():
            return self._called(self.strategy.evaluation_call(self._entry), inputs, method)
        self.calls += 1
        self._was_in_block = self.is_in_block
        return self._called(self.outer, inputs, method)

    def call_without_batch(self) -> Any:
        """Return a loss of 0 that depends on every parameter: other ranks have a batch."""
        self._was_in_block = self.is_in_block
        return self._called(self.outer, None, "")

    def _called(self, call: Callable[..., Any], inputs: Any, method: str) -> Any:
        with losses_named(self.strategy.comm()), self.strategy.forward():
            is_lowered = torch.is_autocast_enabled(self.strategy.device.type)
            output = call(inputs, method)
        # Whatever follows, the loss say, is computed in full precision.
        return map_tensors(_raised, output) if is_lowered else output

    def share_by_hand(self) -> None:
        """Call the model past torch's wrapper, which can't see a backward in its own forward."""
        if isinstance(self.outer, DistributedDataParallel):
            self.outer, self.shares_by_hand = self._entry, True

    @contextmanager
    def keeping_gradients(self) -> Iterator[None]:
        """Let gradients stay on this rank inside the block, where the strategy can."""
        learns = any(parameter.requires_grad for parameter in self.module.parameters())
        was_in_block, self.is_in_block = self.is_in_block, True
        try:
            with self.strategy.accumulate(self.outer) if learns else nullcontext():
                yield
        finally:
            self.is_in_block = was_in_block

    def note_backward(self) -> None:
        """Note whose the gradients are: this rank's if the call or the backward was in a block."""
        self._is_unshared = self.is_in_block or self._was_in_block

    def check_shared(self, optimizer: Optimizer) -> None:
        """Check that the gradients which an optimizer is about to step with are those of all ranks.

        Raises:
            ConfigurationError: some have stayed on their rank, or some parameters had none.
        """
        self.check_mean(optimizer)
        if not self._is_unshared:
            self.strategy.check_averaged(self.outer)
        elif self.strategy.comm().world_size > 1 and _has_gradients(optimizer):
            raise ConfigurationError(
                f"the {type(optimizer).__name__} of {type(self.module).__name__} steps with "
                "gradients of no_backward_sync: they are this rank's alone, and the ranks' weights "
                "would part",
                do=_LAST_OUTSIDE,
                rank=self.strategy.comm().rank,
            )

    def check_mean(self, optimizer: Optimizer) -> None:
        """Check that gradients of losses with a weight are divided by the sum of the weights.

        Raises:
            ConfigurationError: they are not.
        """
        if self.gradients.is_sum and _has_gradients(optimizer):
            raise ConfigurationError(
                f"the gradients of the {type(optimizer).__name__} of {type(self.module).__name__} "
                "are sums, and not divided by the sum of the weights",
                do=_LAST_OUTSIDE,
                rank=self.strategy.comm().rank,
            )

    def method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return how a method of the user's is called through the wrapper."""

        @functools.wraps(method)
        def through_wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in self.methods:
                return self.call(name, args, kwargs)
            if self.strategy.comm().world_size == 1 and self.outer is self._entry:
                return method(*args, **kwargs)
            with self._refusing_gradients(name):
                return method(*args, **kwargs)

        return through_wrapper

    @contextmanager
    def _refusing_gradients(self, name: str) -> Iterator[None]:
        """Refuse that a part of the model computes with gradients, which nobody would average."""

        def refuse(part: nn.Module, args: Any) -> None:
            if torch.is_grad_enabled() and any(p.requires_grad for p in part.parameters()):
                raise ConfigurationError(
                    f"{type(self.module).__name__}.{name} computes with gradients past the "
                    f"strategy {self.strategy.name!r}: they would not be averaged over the ranks",
                    do=f"model.mark_forward_method({name!r}) after setup, or call it under "
                    "torch.no_grad().",
                )

        hooks = [part.register_forward_pre_hook(refuse) for part in self.module.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for parameter in parameters_of(optimizer))


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class RunnerOptimizer(Optimizer):
    """An optimizer as :meth:`~distmetrics.Runner.setup` returns it.

    It is a ``torch.optim.Optimizer``, so schedulers take it; parameter groups, state and hooks are
    those of the optimizer inside. ``step`` is the strategy's: it knows of loss scales and of
    sharded state.

    Attributes:
        optimizer: the optimizer that is stepped: the user's own, or the one that the strategy has
            made of it.

    >>> def rate(runner):
    ...     layer = torch.nn.Linear(2, 1)
    ...     _, optimizer = runner.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.5))
    ...     return isinstance(optimizer, torch.optim.Optimizer), optimizer.param_groups[0]["lr"]
    >>> Runner(strategy="single").launch(rate)
    (True, 0.5)
    """

    def __init__(self, optimizer: Optimizer, model: RunnerModule, strategy: Strategy) -> None:
        # Without Optimizer's own __init__ there are no groups, state or defaults here: these are
        # the other's, by __getattr__.
        self.optimizer = optimizer
        self._model = model._runner
        self._strategy = strategy

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; ``closure`` calls ``runner.backward`` and returns the loss.

        Raises:
            ConfigurationError: gradients of ``no_backward_sync`` have stayed on their ranks.
        """
        module, optimizer = self._model.module, self.optimizer

        def checked() -> Any:
            assert closure is not None
            loss = closure()
            self._model.check_shared(optimizer)
            return loss

        with losses_named(self._strategy.comm()):
            if closure is None:
                self._model.check_shared(optimizer)
                result = self._strategy.step(module, optimizer)
            else:
                result = self._strategy.step(module, optimizer, checked)
        self._model.gradients.clear(self.optimizer)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self._model.gradients.clear(self.optimizer)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer inside."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state dict; with a sharded state every rank must call it."""
        with losses_named(self._strategy.comm()):
            return self._strategy.optimizer_state(self._model.module, self.optimizer)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a whole state dict; every rank must call it, with the same content."""
        self._strategy.load_optimizer_state(self._model.module, self.optimizer, state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is being made
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return repr(self.optimizer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self.optimizer,)


class RunnerLoader:
    """A loader as :meth:`~distmetrics.Runner.setup_dataloaders` returns it.

    Every pass is a new epoch, which shuffles differently. Other attributes are those of ``loader``.

    Attributes:
        loader: the loader inside, of this rank's part of the data.
        is_guess: True if nobody has said whether it is for training or for evaluation.

    >>> from torch.utils.data import DataLoader
    >>> def batches(runner):
    ...     loader = runner.setup_dataloaders(DataLoader(range(5), batch_size=2))
    ...     return len(loader), [batch.tolist() for batch in loader]
    >>> Runner(strategy="single").launch(batches)
    (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | None,
        open_loaders: list[RunnerLoader],
        *,
        is_guess: bool = False,
    ) -> None:
        self.loader = loader
        self.is_guess = is_guess
        self._device = device
        self._epoch = 0
        self._open_loaders = open_loaders  # the runner's: those that are being read

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass's epoch, from 0, for example after a resume."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        set_epoch(self.loader, self._epoch)
        self._epoch += 1
        self._open_loaders.append(self)
        try:
            for batch in self.loader:
                yield batch if self._device is None else move(batch, self._device)
        finally:
            self._open_loaders.remove(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def not_for_training(self) -> str:
        """Why steps on this rank's part would not be those of one process; ``""`` if they would.

        An evaluation loader that divides evenly may be read between steps of training, where
        somebody has said that it is one.
        """
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(self.loader, name, None)
            if isinstance(sampler, EvaluationSampler):
                items = f"{len(sampler.source)} items on {sampler.world_size} ranks"
                if len(sampler.source) % sampler.world_size:
                    return f"{items}: ranks would take different numbers of steps"
                if self.is_guess:
                    return f"{items}: their batches would together be none of one process's"
        return ""


def shuffles(loader: Any) -> bool:
    """Return True if a loader's sampler does more than go through the data in order.

    One of ``exact`` is for evaluation, whatever its sampler.

    >>> from torch.utils.data import DataLoader
    >>> shuffles(DataLoader([1, 2])), shuffles(DataLoader([1, 2], shuffle=True))
    (False, True)
    """
    if isinstance(loader, RankLoader):
        return False
    owner, batches = loader, getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches) is not BatchSampler:
        owner = batches
    return not isinstance(getattr(owner, "sampler", None), SequentialSampler)

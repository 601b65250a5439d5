"""The model that a loop calls in the place of its own: the same names, the strategy's part done."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.launch.joining import losses_named
from distmetrics.strategies.base import Entry, Strategy
from distmetrics.strategies.ddp import Averaged
from distmetrics.strategies.tensors import map_tensors, parameters_of
from distmetrics.strategies.weighted_gradients import WeightedSums

_LAST_OUTSIDE = (
    "no_backward_sync(model, enabled=not last) around each call and its backward, where last is "
    "the update's last, and step() after the block."
)
_OWN = ("_runner", "training", "_parameters", "_buffers", "_modules")


class RunnerModule(nn.Module):
    """A user's model as :meth:`Runner.setup` returns it.

    Calling it does what the strategy and the precision ask for. Everything else is the user's own
    model: attributes, parameters and their names, ``state_dict``, ``train`` and ``eval``. A copy or
    a pickle of it is a copy or a pickle of the user's model.

    A method other than ``forward`` that computes with gradients would pass the strategy by, and
    gradients would not be averaged. On several ranks that is an error; name such methods with
    :meth:`mark_forward_method`, and they work.
    """

    _runner: StrategyCalls

    def __init__(
        self,
        module: nn.Module,
        strategy: Strategy,
        optimizers: Sequence[Optimizer],
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
        """Set the mode, as torch does; going over to evaluation makes the model one on all ranks.

        What training lets drift, such as running statistics, becomes rank 0's. So every rank must
        call it.
        """
        object.__setattr__(self, "training", mode)
        self.module.train(mode)
        strategy = self._runner.strategy
        if not mode and strategy.comm().world_size > 1:
            strategy.align(self.module)
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
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
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
        return itself, (self.module,)


def itself(value: Any) -> Any:
    """Return the value: what the pickle of a wrapper calls with the object inside."""
    return value


class StrategyCalls:
    """Calls a user's model the strategy's way, and knows whether its gradients are all ranks'.

    It is apart from :class:`RunnerModule`, whose names are the user's.

    Attributes:
        outer: what the strategy has made of the entry.
        methods: names of methods that the strategy calls.
        calls: how often the model has been called with gradients.
        gradients: whether each optimizer's are a sum of weighted ones, or their mean.
        is_in_block: gradients stay on this rank, if the strategy can do so; they are no mean yet.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: Strategy,
        optimizers: Sequence[Optimizer],
    ) -> None:
        self.module = module
        self.strategy = strategy
        self._entry = Entry(module)
        self.outer = strategy.training_call(self._entry, optimizers)
        self.methods: set[str] = set()
        self.calls = 0
        self.gradients = WeightedSums(module, optimizers)
        self.is_in_block = False
        self._open_blocks = 0  # in which gradients stay on this rank
        self._was_in_block = False  # at the latest call with gradients
        self._is_unshared = False  # the gradients that are there are, in part, this rank's alone

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the model: the strategy's wrapper if there may be gradients."""
        strategy = self.strategy
        inputs = strategy.convert((args, kwargs))
        with losses_named(strategy.comm()), strategy.forward():
            is_lowered = torch.is_autocast_enabled(strategy.device.type)
            if torch.is_grad_enabled():
                self.calls += 1
                self._was_in_block = self._open_blocks > 0
                output = self.outer(inputs, method)
            else:
                output = strategy.evaluation_call(self._entry)(inputs, method)
        # Whatever follows, the loss say, is computed in full precision.
        return map_tensors(_raised, output) if is_lowered else output

    @contextmanager
    def keeping_gradients(self) -> Iterator[None]:
        """Let gradients stay on this rank inside the block, where the strategy can."""
        learns = any(parameter.requires_grad for parameter in self.module.parameters())
        block = self.strategy.accumulate(self.outer) if learns else nullcontext()
        keeps = not isinstance(block, nullcontext)
        self._open_blocks += keeps
        was_in_block, self.is_in_block = self.is_in_block, True
        try:
            with block:
                yield
        finally:
            self._open_blocks -= keeps
            self.is_in_block = was_in_block

    def note_backward(self) -> None:
        """Note whose the gradients are: this rank's if the call or the backward was in a block."""
        self._is_unshared = self._open_blocks > 0 or self._was_in_block

    def check_shared(self, optimizer: Optimizer) -> None:
        """Check that the gradients which an optimizer is about to step with are those of all ranks.

        Raises:
            ConfigurationError: some have stayed on their rank, or some parameters had none.
        """
        self.check_mean(optimizer)
        comm = self.strategy.comm()
        if not self._is_unshared:
            if isinstance(self.outer, Averaged):
                self.outer.check_averaged()
            return
        if comm.world_size > 1 and _has_gradients(optimizer):
            raise ConfigurationError(
                f"the {type(optimizer).__name__} of {type(self.module).__name__} steps with "
                "gradients of no_backward_sync: they are this rank's alone, and the ranks' weights "
                "would part",
                likely="step() inside the block, or the last call and backward before it were "
                "inside too.",
                do=_LAST_OUTSIDE,
                rank=comm.rank,
            )

    def check_mean(self, optimizer: Optimizer) -> None:
        """Check that gradients of losses with a weight are divided by the sum of the weights.

        Raises:
            ConfigurationError: they are not, or some are of a loss that counts for other models.
        """
        gradients = self.gradients.of(optimizer)
        if not (gradients.is_sum or gradients.is_foreign) or not _has_gradients(optimizer):
            return
        who = f"the gradients of the {type(optimizer).__name__} of {type(self.module).__name__}"
        rank = self.strategy.comm().rank
        if gradients.is_foreign:
            raise ConfigurationError(
                f"{who} are, in part, of a loss with a weight that counts for other models",
                likely="backward(loss, model=...) of a loss that depends on this one too.",
                do="zero_grad() before its own backward; without model= a loss counts for all "
                "models that it depends on.",
                rank=rank,
            )
        raise ConfigurationError(
            f"{who} are sums, and not divided by the sum of the weights",
            likely="step() or clip_gradients() inside of no_backward_sync, or the last call and "
            "backward before it were inside too.",
            do=_LAST_OUTSIDE,
            rank=rank,
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

"""The optimizer that a loop steps in the place of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.launch.joining import losses_named
from distmetrics.run.wrapped import RunnerModule, itself
from distmetrics.strategies.base import Strategy


class RunnerOptimizer(Optimizer):
    """A user's optimizer as :meth:`Runner.setup` returns it.

    It is a ``torch.optim.Optimizer``, so schedulers take it; parameter groups, state and hooks are
    those of the optimizer inside. ``step`` is the strategy's: it knows of loss scales and of
    sharded state.

    Attributes:
        optimizer: the optimizer that is stepped: the user's own, or the one that the strategy has
            made of it.
    """

    def __init__(self, optimizer: Optimizer, model: RunnerModule, strategy: Strategy) -> None:
        # Without Optimizer's own __init__ there are no groups, state or defaults here: these are
        # the other's, by __getattr__.
        self.optimizer = optimizer
        self._module = model.module
        self._model = model._runner
        self._strategy = strategy

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; ``closure`` calls ``runner.backward`` and returns the loss.

        Raises:
            ConfigurationError: gradients of ``no_backward_sync`` have stayed on their ranks.
        """
        with losses_named(self._strategy.comm()):
            if closure is None:
                self._model.check_shared(self.optimizer)
                result = self._strategy.step(self._module, self.optimizer)
            else:

                def checked() -> Any:
                    loss = closure()
                    self._model.check_shared(self.optimizer)
                    return loss

                result = self._strategy.step(self._module, self.optimizer, checked)
        self._model.gradients.note_cleared(self.optimizer)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self._model.gradients.note_cleared(self.optimizer)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer inside."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state dict; with a sharded state every rank must call it."""
        with losses_named(self._strategy.comm()):
            return self._strategy.optimizer_state(self._module, self.optimizer)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a whole state dict; every rank must call it, with the same content."""
        self._strategy.load_optimizer_state(self._module, self.optimizer, state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is being made
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return repr(self.optimizer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return itself, (self.optimizer,)


def follow_parameters(
    optimizers: Iterable[Optimizer],
    before: Sequence[nn.Parameter],
    after: Sequence[nn.Parameter],
) -> None:
    """Let optimizers step the parameters that have replaced others, as moving to XLA does."""
    new: dict[Tensor, Tensor] = dict(zip(before, after, strict=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(each, each) for each in group["params"]]
        states = dict(optimizer.state)
        optimizer.state.clear()
        for parameter, state in states.items():
            optimizer.state[new.get(parameter, parameter)] = state

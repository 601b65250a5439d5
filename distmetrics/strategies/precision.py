"""What numbers a model is computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.tensors import map_tensors

T = TypeVar("T")
_DTYPES = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}
_SHORT = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


class Precision:
    """What weights are kept in, and what the steps of a module compute in.

    ``"32-true"`` changes nothing, ``"64-true"``, ``"bf16-true"`` and ``"16-true"`` convert module
    and batches, ``"bf16-mixed"`` and ``"16-mixed"`` keep float32 weights and let torch's autocast
    choose; float16 also scales the loss, so that small gradients do not vanish.

    Args:
        name: one of those.

    Attributes:
        true: whether module and batches are converted.
        scales: whether the loss is scaled.

    >>> Precision.of(64).name, Precision.of("bf16").name
    ('64-true', 'bf16-mixed')
    """

    def __init__(self, name: str) -> None:
        if name not in _DTYPES:
            known = ", ".join(map(repr, _DTYPES))
            raise ConfigurationError(
                f"precision must be 64, 32, 16, 'bf16', or one of {known}, got {name!r}"
            )
        self.name = name
        self.dtype = _DTYPES[name]
        self.mixed = name.endswith("mixed")
        self.true = not self.mixed and self.dtype != torch.float32
        self.scales = name == "16-mixed"
        self._scaler: Any = None
        # Optimizers whose gradients have their own size until the next step.
        self._unscaled: set[int] = set()

    @classmethod
    def of(cls, flag: Any) -> Precision:
        """Return what the trainer's flag means; None is float32.

        Raises:
            ConfigurationError: nothing that we know.
        """
        text = "32-true" if flag is None else str(flag)
        return cls(_SHORT.get(text, text))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_scaler": None, "_unscaled": set()}

    def place(self, module: nn.Module) -> None:
        """Convert the module, in place."""
        if self.true:
            module.to(self.dtype)

    def convert(self, batch: T) -> T:
        """Return the batch with its floating tensors converted."""
        return map_tensors(self._converted, batch) if self.true else batch

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def forward(self, device_type: str) -> AbstractContextManager[Any]:
        """Return what a step runs in."""
        if self.mixed:
            return torch.autocast(device_type, dtype=self.dtype)
        return _default_dtype(self.dtype) if self.true else nullcontext()

    def scaled(self, loss: Tensor, device_type: str) -> Tensor:
        """Return what to call ``backward`` of."""
        if not self.scales:
            return loss
        scaled: Tensor = self._scaler_for(device_type).scale(loss)
        return scaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Give the gradients their own size again, once a step."""
        if self._scaler is not None and id(optimizer) not in self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer; with a scaled loss, without a closure and if nothing overflowed."""
        if self._scaler is None:
            return optimizer.step() if closure is None else optimizer.step(closure)
        if closure is not None:
            raise ConfigurationError(
                "precision=16 scales the loss, and a closure's loss cannot be scaled"
            )
        result = self._scaler.step(optimizer)
        self._scaler.update()
        self._unscaled.discard(id(optimizer))
        return result

    def state(self) -> dict[str, Any]:
        """Return the scale of the loss, if there is one."""
        return {} if self._scaler is None else {"grad_scaler": self._scaler.state_dict()}

    def load_state(self, state: Mapping[str, Any], device_type: str) -> None:
        """Go on with that scale."""
        if self.scales and "grad_scaler" in state:
            self._scaler_for(device_type).load_state_dict(state["grad_scaler"])

    def _scaler_for(self, device_type: str) -> Any:
        if self._scaler is None:
            self._scaler = torch.amp.GradScaler(device_type)
        return self._scaler


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let tensors that a step makes without a dtype be of the module's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

"""What numbers a model is computed in."""

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
        flag: one of those, or in short 64, 32, 16 or "bf16"; None is 32.
        device_type: torch's type of the module's device.

    Attributes:
        true: whether module and batches are converted.
        scales: whether the loss is scaled, by ``scaler``.

    >>> Precision(64).name, Precision("bf16").name
    ('64-true', 'bf16-mixed')
    """

    def __init__(self, flag: Any = None, device_type: str = "cpu") -> None:
        text = "32-true" if flag is None else str(flag)
        self.name = _SHORT.get(text, text)
        if self.name not in _DTYPES:
            known = ", ".join(map(repr, _DTYPES))
            raise ConfigurationError(
                f"precision must be 64, 32, 16, 'bf16', or one of {known}, got {flag!r}"
            )
        self.dtype, self.device_type = _DTYPES[self.name], device_type
        self.mixed = self.name.endswith("mixed")
        self.true = not self.mixed and self.dtype != torch.float32
        self.scales = self.name == "16-mixed"
        self.scaler = torch.amp.GradScaler(device_type, enabled=self.scales)
        self._unscaled: set[int] = set()  # optimizers whose gradients have their own size

    def place(self, module: nn.Module) -> None:
        """Convert the module, in place."""
        if self.true:
            module.to(self.dtype)

    def convert(self, batch: T) -> T:
        """Return the batch with its floating tensors converted."""

        def converted(tensor: Tensor) -> Tensor:
            return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

        return map_tensors(converted, batch) if self.true else batch

    def forward(self) -> AbstractContextManager[Any]:
        """Return what a step runs in."""
        if self.mixed:
            return torch.autocast(self.device_type, dtype=self.dtype)
        return _default_dtype(self.dtype) if self.true else nullcontext()

    def unscale(self, optimizer: Optimizer) -> None:
        """Give the gradients their own size again, once a step."""
        if id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer; with a scaled loss, without a closure and if nothing overflowed."""
        if closure is not None and self.scales:
            raise ConfigurationError(
                "precision=16 scales the loss, and a closure's loss cannot be scaled",
                do="say precision='bf16'.",
            )
        result = self.scaler.step(optimizer, *([] if closure is None else [closure]))
        self.scaler.update()
        self._unscaled.discard(id(optimizer))
        return result

    def state(self) -> dict[str, Any]:
        """Return the scale of the loss, if there is one."""
        return {"grad_scaler": self.scaler.state_dict()} if self.scales else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with that scale."""
        if self.scales and "grad_scaler" in state:
            self.scaler.load_state_dict(state["grad_scaler"])


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let tensors that a step makes without a dtype be of the module's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

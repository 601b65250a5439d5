"""One process on one device."""

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.devices import Devices


class Single(Strategy):
    """One process on one device, also inside a job of many: it talks to nobody.

    >>> Single().comm().world_size
    1
    """

    name = "single"
    alone = True

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; ``devices`` must be 1 or "auto"."""
        super().bind(1 if devices in ("auto", None) else devices, accelerator)
        if self.devices != 1:
            raise ConfigurationError(
                f"strategy='single' runs on one device, and devices={devices!r}",
                do="say strategy='auto', 'ddp' or 'ddp_spawn'.",
            )

"""One process on one device."""

from __future__ import annotations

from typing import ClassVar

from distmetrics.comm.base import Communicator
from distmetrics.comm.single import SingleCommunicator
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.devices import Devices


class Single(Strategy):
    """One process on one device, also inside a job of many: it talks to nobody.

    >>> Single().comm().world_size
    1
    """

    name: ClassVar[str] = "single"

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; ``devices`` must be 1 or "auto"."""
        super().bind(1 if devices in ("auto", None) else devices, accelerator)
        if self.devices != 1 or self.num_nodes != 1:
            raise ConfigurationError(
                f"strategy='single' runs on one device, and devices={devices!r}, "
                f"num_nodes={self.num_nodes}",
                do="say strategy='auto', 'ddp' or 'ddp_spawn'.",
            )

    def comm(self) -> Communicator:
        """A world of one, whatever ``torch.distributed`` says."""
        return _ALONE


_ALONE = SingleCommunicator()

"""How far a fit is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class LoopProgress:
    """What a checkpoint holds of a fit's position.

    Attributes:
        epoch: epochs that are over; within one its number, from 0.
        global_step: optimizer steps taken.
        batches: steps of the epoch that are over, on each rank.
        pending: steps since the last update.
        validated_at: ``batches`` at the epoch's last validation, None before the first.
        epoch_is_over: True if all of the epoch is, its values included.
    """

    epoch: int = 0
    global_step: int = 0
    batches: int = 0
    pending: int = 0
    validated_at: int | None = None
    epoch_is_over: bool = False

    @property
    def is_within_epoch(self) -> bool:
        """True if some of the epoch's steps are over, and the epoch is not."""
        return self.batches > 0 and not self.epoch_is_over

    def begin_epoch(self, number: int) -> None:
        """Go to the beginning of an epoch, after as many steps."""
        self.load({"epoch": number, "global_step": self.global_step})

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to another position; what ``state`` does not name is as at the beginning."""
        vars(self).update(asdict(LoopProgress(**state)))

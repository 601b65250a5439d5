"""Which stage of a trainer calls a hook, and with what, by its name."""

from __future__ import annotations

import re

_STAGE = re.compile(
    r"(?:on_)?(training|train|validation|test|predict)_(?:step|step_end|batch_start|batch_end|epoch_end|end)"
)
_DATA = re.compile(
    r"forward|(on_)?(training|train|validation|test|predict)_(step|step_end|batch_start|batch_end|epoch_end)"
)


def stage_of(hook: str) -> str:
    """Return "training", "validation", "test" or "predict" of the name of a hook, or ""."""
    found = _STAGE.fullmatch(hook)
    return "" if found is None else "training" if found[1] == "train" else found[1]


def takes_data(hook: str) -> bool:
    """True if a hook of this name is given batches, or what came of them."""
    return _DATA.fullmatch(hook) is not None

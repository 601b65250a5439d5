"""Checkpoint files: a name stands for a whole file, and reading one runs nothing that is in it."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from distmetrics.errors import ConfigurationError


def write(content: Any, path: Path) -> None:
    """Write a checkpoint so that ``path`` is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(content, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(
    path: str | Path, *, map_location: Any = "cpu", weights_only: bool = True
) -> dict[str, Any]:
    """Read a checkpoint; ``weights_only=False`` also unpickles objects of any class."""
    try:
        content = torch.load(path, map_location=map_location, weights_only=weights_only)
    except (
        pickle.UnpicklingError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        # These are what torch makes of no file, of objects, and of other bytes.
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{path} cannot be read as a checkpoint: {type(error).__name__}: {reason}",
            likely="a file of another kind, one that was cut off while it was copied, or one with "
            "hyperparameters or outputs that are objects of some class.",
            do="if it has such objects and you trust the file, say weights_only=False.",
        ) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise ConfigurationError(
            f"{path} is no checkpoint of a trainer: it has no 'state_dict'",
            do="load_state_dict(torch.load(path)), if it is a file of weights alone.",
        )
    return content

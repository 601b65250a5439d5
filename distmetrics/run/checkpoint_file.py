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
    path: str | Path,
    *,
    map_location: Any = "cpu",
    weights_only: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: the file.
        map_location: where its tensors go.
        weights_only: False also unpickles objects of any class: only for files that you trust.

    Raises:
        ConfigurationError: there is no such file, it holds other objects, or it is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        names = sorted(file.name for file in path.parent.glob("*.ckpt"))
        there = ", ".join(names) or "none"
        raise ConfigurationError(
            f"there is no checkpoint {path}", notes=[f"Checkpoints in that folder: {there}"]
        )
    try:
        content = torch.load(path, map_location=map_location, weights_only=weights_only)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{path} holds more than tensors, numbers and texts: {reason}",
            likely="hyperparameters or outputs that are objects of some class.",
            do="if you trust the file, say weights_only=False.",
        ) from error
    except (EOFError, LookupError, OSError, RuntimeError, ValueError) as error:
        # These are what torch makes of other bytes.
        raise ConfigurationError(
            f"{path} cannot be read as a checkpoint: {type(error).__name__}: {error}",
            likely="another kind of file, or one that was cut off while it was copied.",
        ) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise ConfigurationError(
            f"{path} is no checkpoint of a trainer: it has no 'state_dict'",
            do="load_state_dict(torch.load(path)), if it is a file of weights alone.",
        )
    return content


def newest(folder: Path) -> Path | None:
    """Return ``last.ckpt`` of a folder, else its checkpoint that was written last, else None."""
    last = folder / "last.ckpt"
    if last.is_file():
        return last
    files = folder.glob("*.ckpt")
    return max(files, key=lambda file: (file.stat().st_mtime_ns, file.name), default=None)

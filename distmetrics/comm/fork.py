"""Forked children of a rank: they have its process group, and its connections are not theirs.

The interpreter keeps the hook until its very end, and with it what this module names: nothing that
holds a process group, which must end before.
"""

import os
import sys
import weakref
from typing import Any

from distmetrics.errors import ConfigurationError

# In a forked child: the group of its parent's job, and the parent's rank.
_inherited: tuple[weakref.ref[Any], int] | None = None


def _note_fork() -> None:
    global _inherited
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        _inherited = weakref.ref(dist.group.WORLD), dist.get_rank()


def refuse_fork(world: Any) -> None:
    """Raise in a forked child whose job's group ``world`` is its parent's.

    Raises:
        ConfigurationError: it is.
    """
    if _inherited is not None and world is not None and _inherited[0]() is world:
        raise ConfigurationError(
            f"this process is a fork of rank {_inherited[1]} and is no rank",
            likely="a data loader's worker, or a child that multiprocessing forked, syncs.",
            do="sync in the rank's own process, and return to it what the child has computed.",
            rank=_inherited[1],
        )


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note_fork)

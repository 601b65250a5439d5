"""Make a process group that its members alone make.

Such a group has no number that all ranks know, so torch names it by its members and by how many
groups this rank is in already. Ranks that are in different numbers of groups, as those that have
made one among themselves, then wait under different names, for ever. So the name is ours: the
members, and how often they have made a group.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from distmetrics.comm.replace import Name, Replacing

_NAMING = "_process_group_name"  # private, but for this there is no other way
_naming = Replacing()
_of_thread = threading.local()  # the name of the group that this thread makes
# By the job's group: a job that begins anew numbers them anew.
_made: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def new_group(ranks: Sequence[int]) -> Any:
    """Return a new process group of some ranks of the job, ascending; each of them must call it.

    Other threads may make groups meanwhile, also by torch's own functions.
    """
    members = "-".join(map(str, ranks))
    counts = _made.setdefault(dist.group.WORLD, Counter())
    counts[members] += 1
    _of_thread.name = f"distmetrics:{members}:{counts[members]}"
    try:
        with _naming.block(_names):
            return dist.new_group([*ranks], use_local_synchronization=True)
    finally:
        _of_thread.name = None


def _names() -> list[Name]:
    # Imported late: a module of ours that names it would keep the job's groups to the very end,
    # where a forked child waits for the threads that only its parent has.
    where = vars(importlib.import_module("torch.distributed.distributed_c10d"))
    if _NAMING not in where:
        return []
    of_torch: Callable[..., str] = where[_NAMING]

    def named(*args: Any, **kwargs: Any) -> str:
        name: str | None = getattr(_of_thread, "name", None)
        return of_torch(*args, **kwargs) if name is None else name

    return [Name(where, _NAMING, named)]

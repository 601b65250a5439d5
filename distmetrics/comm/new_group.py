"""Make a process group that its members alone make.

Such a group has no number that all ranks know, so torch names it by its members and by how many
groups this rank is in already. Ranks that are in different numbers of groups, as the last pipeline
stage is in one more, then wait under different names, for ever. So the name is ours: the members,
and how often they have made a group.
"""

from __future__ import annotations

import importlib
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from distmetrics.comm.replace import Name, Replacing

_NAMING = "_process_group_name"  # private, but for this there is no other way
_naming = Replacing()
# By the job's group: a job that begins anew numbers them anew.
_made: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def new_group(ranks: Sequence[int]) -> Any:
    """Return a new process group of some ranks of the job, ascending; each of them must call it."""
    members = "-".join(map(str, ranks))
    counts = _made.setdefault(dist.group.WORLD, Counter())
    counts[members] += 1
    name = f"distmetrics:{members}:{counts[members]}"

    def names() -> list[Name]:
        # Imported late: a module of ours that names it would keep the job's groups to the very end,
        # where a forked child waits for the threads that only its parent has.
        where = vars(importlib.import_module("torch.distributed.distributed_c10d"))
        return [Name(where, _NAMING, lambda *_, **__: name)] if _NAMING in where else []

    with _naming.block(names):
        return dist.new_group([*ranks], use_local_synchronization=True)

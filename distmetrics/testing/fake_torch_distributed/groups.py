"""Process groups of a world of threads, which are subgroups of its communicators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from distmetrics.comm.communicator import Communicator
from distmetrics.testing.fake_torch_distributed.request import Request, ThreadGroup


def new_group(request: Request) -> ThreadGroup | Any:
    """Make a group; every rank must, as torch has it, unless only its members are to."""
    ranks = request.arguments["ranks"]
    world = request.comm.world_size
    members = [*range(world)] if ranks is None else sorted(ranks)
    if not set(members) <= {*range(world)} or len({*members}) < len(members):
        raise request.refusal(f"ranks={ranks} are no ranks of a world of {world}, each once")
    is_member = request.comm.rank in members
    own: Communicator = request.comm.transport
    if is_member:
        own = request.comm.transport.subgroup(members)
    is_local = request.arguments.get("use_local_synchronization", False)
    if is_member or not is_local:
        with request.under_way(None, request.name, tuple(members)):
            (own if is_local else request.comm).barrier()
    return ThreadGroup(own, members) if is_member else dist.GroupMember.NON_GROUP_MEMBER


def new_subgroups_by_enumeration(request: Request) -> tuple[Any, list[Any]]:
    """Make a group of each list of ranks; return this rank's own, and all."""
    return _several(request, request.arguments["ranks_per_subgroup_list"])


def new_subgroups(request: Request) -> tuple[Any, list[Any]]:
    """Cut the ranks into groups of one size."""
    world, size = request.comm.world_size, request.arguments["group_size"]
    if not isinstance(size, int) or size < 1 or world % size:
        raise request.refusal(f"group_size={size} does not divide a world of {world}")
    return _several(request, [range(first, first + size) for first in range(0, world, size)])


def _several(request: Request, parts: Sequence[Sequence[int]]) -> tuple[Any, list[Any]]:
    groups = []
    for ranks in parts:
        one = Request(request.comm, request.name, {"ranks": ranks}, request.ranks)
        groups.append(new_group(one))
    own = [group for group in groups if isinstance(group, ThreadGroup)]
    return (own[0] if own else None), groups

"""Who talks when nobody says so: the process group that metrics were made for, else the
communicator in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from distmetrics.comm.base import Communicator
from distmetrics.errors import ConfigurationError, StateError
from distmetrics.state.adapters.base import Target


def communicator_of(found: Sequence[Target], in_force: Communicator) -> Communicator:
    """Return the communicator for metrics whose user has not passed one.

    A metric that was made with a process group of its own (``process_group=`` of torchmetrics) is
    synced in that group. Metrics without states, such as wrappers, are synced with those that they
    hold.

    Raises:
        ConfigurationError: the group is none, or this rank is not in it: no other rank waits for
            it.
        StateError: the metrics of one sync were made for different groups.
    """
    own = {t.path: t.home.get(t.adapter.group) for t in found if t.adapter.group and t.specs.each}
    if not any(group is not None for group in own.values()):
        return in_force
    comms = {
        path: in_force if group is None else _communicator(group, path)
        for path, group in own.items()
    }
    comms |= {t.path: in_force for t in found if not t.adapter.group and t.specs.each}
    first, *rest = comms.items()
    other = next((path for path, comm in rest if comm is not first[1]), None)
    if other is not None:
        raise StateError(
            f"the metrics {first[0]} and {other} were made for different process groups, and one "
            "sync talks in one",
            do="sync the metrics of each group in a call of their own, or pass comm=, which "
            "overrules process_group.",
        )
    return first[1]


def _communicator(group: Any, path: str) -> Communicator:
    from distmetrics.comm.group import GroupCommunicator

    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return GroupCommunicator.of(group)
    what = f"the metric {path}" if path else "the metric"
    if dist.is_available() and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ConfigurationError(
            f"{what} was made for a process group that this rank is not in",
            do="sync it on the ranks of its group alone, or pass comm=, which overrules "
            "process_group.",
        )
    raise ConfigurationError(
        f"{what} was made with process_group={group!r}, which is no torch.distributed process "
        "group",
        do="pass what torch.distributed.new_group returned, or pass comm=, which overrules "
        "process_group.",
    )

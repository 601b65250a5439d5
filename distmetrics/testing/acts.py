"""What each rank does in a run: functions ``(comm, subject, batches) -> Any``, for threads and for
processes.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from distmetrics.comm.base import Communicator
from distmetrics.comm.current import use
from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.record import RecordingCommunicator
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.launch.pickles import pickled_by_value
from distmetrics.state.adapters import targets
from distmetrics.state.spec import REDUCED
from distmetrics.state.sync import sync_and_compute, synced
from distmetrics.testing.rows import Batch
from distmetrics.testing.subject import Subject

Act = Callable[[Communicator, Subject, Sequence[Batch]], Any]


class Planned(Exception):  # noqa: N818  (no error: it is thrown on purpose, and caught)
    """Thrown into a sync, to see whether the local state comes back."""


def plain(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> tuple[Any, list[str]]:
    """Update, sync, compute; return the value and the operations that went over the transport."""
    recording = RecordingCommunicator(comm)
    with use(recording):
        if subject.is_function:
            return subject.make()(batches), [call.op for call in recording.calls]
        metric = subject.filled(batches)
        value = subject.synced(metric, recording)
    return value, [call.op for call in recording.calls]


def twice(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> tuple[Any, Any]:
    """Sync and compute, and once more."""
    metric = subject.filled(batches)
    return subject.synced(metric, comm), subject.synced(metric, comm)


def observed(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> Any:
    """Sync and compute in the middle, then go on; return the value at the end."""
    half = len(batches) // 2
    metric = subject.filled(batches[:half])
    with contextlib.suppress(
        ValueError, RuntimeError, IndexError
    ):  # half of the data may be too little for a value
        subject.synced(metric, comm)
    subject.update(metric, batches[half:])
    return subject.synced(metric, comm)


def restored(
    comm: Communicator, subject: Subject, batches: Sequence[Batch]
) -> list[dict[str, Any]]:
    """Return the local state before a sync, after it, and after a sync in which an error was
    raised.
    """
    metric = subject.filled(batches)
    states = [subject.state(metric)]
    subject.synced(metric, comm)
    states.append(subject.state(metric))
    metric = subject.filled(batches)
    if _fails_when_told(comm, subject, metric):
        states.append(subject.state(metric))
    return states


def _fails_when_told(comm: Communicator, subject: Subject, metric: Any) -> bool:
    """Raise an error in the middle of a sync; False if that cannot be done with this metric."""
    if subject.sync == "distmetrics":
        with contextlib.suppress(Planned), synced(metric, comm=comm):
            raise Planned
        return True
    wrap = getattr(metric, "_wrap_compute", None)
    if wrap is None:
        return False

    def compute() -> Any:
        raise Planned

    metric.compute = wrap(compute)
    with contextlib.suppress(Planned):
        metric.compute()
    return True


def reset(
    comm: Communicator, subject: Subject, batches: Sequence[Batch]
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Use, reset, use again; return the state of a new one, the state after the reset, and the
    value.
    """
    metric = subject.filled(batches)
    subject.synced(metric, comm)
    metric.reset()
    new = subject.make()
    states = subject.state(new), subject.state(metric)
    subject.update(metric, batches)
    return *states, subject.synced(metric, comm)


def round_trips(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> dict[str, Any]:
    """Copy the metric in mid-stream in every way; return each copy's value, and that of a copy made
    in mid-sync.
    """
    half = (len(batches) + 1) // 2
    values: dict[str, Any] = {}
    for way, through in _WAYS.items():
        metric = subject.filled(batches[:half])
        other = through(subject, metric)
        if other is not None:
            subject.update(other, batches[half:])
            values[way] = subject.synced(other, comm)
    if subject.sync == "distmetrics":
        metric = subject.filled(batches)
        with synced(metric, comm=comm):
            inside = copy.deepcopy(metric)
        values["deepcopy in mid-sync"] = subject.value(inside)
        values["the original after it"] = subject.synced(metric, comm)
    return values


def _pickled(subject: Subject, metric: Any) -> Any:
    try:
        data = pickled_by_value(metric)  # takes classes of a test function along
    except ImportError:
        data = pickle.dumps(metric)
    return pickle.loads(data)  # noqa: S301  (our own bytes)


def _through_state_dict(subject: Subject, metric: Any) -> Any:
    if not (hasattr(metric, "state_dict") and hasattr(metric, "load_state_dict")):
        return None
    other = subject.make()
    for each in (metric, other):
        for module in each.modules() if hasattr(each, "modules") else ():
            if hasattr(module, "persistent"):
                module.persistent(True)
    other.load_state_dict(copy.deepcopy(metric.state_dict()))
    return other


_WAYS: dict[str, Callable[[Subject, Any], Any]] = {
    "pickle": _pickled,
    "deepcopy": lambda subject, metric: copy.deepcopy(metric),
    "state_dict": _through_state_dict,
}


def synced_dtypes(
    comm: Communicator, subject: Subject, batches: Sequence[Batch]
) -> list[dict[str, str]]:
    """Return the dtypes and devices of the local states, and of those of all ranks."""
    metric = subject.filled(batches)
    before = _dtypes(subject.state(metric))
    with synced(metric, comm=comm):
        return [before, _dtypes(subject.state(metric))]


def _dtypes(state: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in state.items():
        items = value if isinstance(value, list) else [value]
        kinds = {
            f"{item.dtype} on {item.device}" for item in items if isinstance(item, torch.Tensor)
        }
        found[name] = ", ".join(sorted(kinds))
    return found


def in_subgroup(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> Any:
    """Sync within the group of all ranks but the second one, which takes no part; return None
    there.
    """
    members = [rank for rank in range(comm.world_size) if rank != 1]
    if isinstance(comm, GroupCommunicator):
        import torch.distributed as dist

        made = dist.new_group(members)
        group: Communicator | None = GroupCommunicator.of(made) if comm.rank in members else None
    else:
        assert isinstance(comm, ThreadCommunicator)
        group = comm.subgroup(members) if comm.rank in members else None
    return None if group is None else sync_and_compute(subject.filled(batches), comm=group)


def beside_another(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> list[Any]:
    """Sync two metrics together, of which one saw half of the data, and then one by one; return all
    four values.
    """
    shares = {"whole": batches, "half": batches[: (len(batches) + 1) // 2]}
    together = sync_and_compute(
        {name: subject.filled(share) for name, share in shares.items()}, comm=comm
    )
    return [
        together,
        {name: subject.synced(subject.filled(share), comm) for name, share in shares.items()},
    ]


def merged(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> Any:
    """Return a metric that holds the state of all ranks as its own."""
    return _merged(comm, subject.filled(batches))


def _merged(comm: Communicator, metric: Any) -> Any:
    with synced(metric, comm=comm):
        other = copy.deepcopy(metric)
    for target in targets(other):
        if target.adapter.flag:
            target.home[target.adapter.flag] = False
        for name in ("_cache", "_computed"):
            if name in target.home:
                target.home[name] = None
    return other


def doubled(comm: Communicator, subject: Subject, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Double the state until counts pass 2²⁴, then add one batch on rank 1; return the states of
    both, and of all.

    Nothing for a metric with lists: they would double as well.
    """
    big = subject.filled(batches)
    if any(spec.kind not in REDUCED for target in targets(big) for spec in target.specs.each):
        return []
    for _ in range(25):
        big = _merged(comm, big)
    mine = big if comm.rank == 0 else subject.filled(batches[:1])
    state = subject.state(mine)
    with synced(mine, comm=comm):
        return [state, subject.state(mine)]

"""A communicator over a ``torch.distributed`` process group: gloo, NCCL and their kin.

Tensors move to the transport's device and back. Data that is only moved (gather, broadcast,
exchange) travels as bytes, so every dtype that torch can hold works on every backend. Waiting is
done in short slices, so that a wait whose peer has left ends in an error that names the peer, and
not in a time-out.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.comm.communicator import (
    Call,
    Communicator,
    Op,
    check_parts,
    check_src,
    current_call,
    find_job_by,
    fold,
    in_call,
)
from distmetrics.comm.patching import Name, Replacing
from distmetrics.comm.work import WaitingCommunicator, Watcher
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


if not dist.is_initialized():
    # Its functions have the group of this moment as a default argument. Imported later, by
    # torch._dynamo when DistributedDataParallel is made, say, it would keep the job's group alive
    # past destroy_process_group.
    import torch.distributed.nn.functional

# As it is now: our own calls are watched already, where guard.watch() replaces torch's.
_barrier = dist.barrier

_SMALL = 1 << 22  # bytes of all ranks together that gloo gathers by all_to_all
_LET_GO = 0.05  # seconds at exit for the threads of groups that still live
_DEVICE_OF = {"nccl": "cuda", "xccl": "xpu"}  # the CPU for other backends
_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
# What every backend reduces; the rest is gathered as bytes and folded here.
_REDUCIBLE = frozenset(
    {torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8}
)


class GroupCommunicator(WaitingCommunicator):
    """One rank's end of a process group.

    Args:
        group: the process group, or a ``DeviceMesh`` of one dimension; default the whole job.
    """

    _by_group: ClassVar[weakref.WeakKeyDictionary[Any, GroupCommunicator]] = (
        weakref.WeakKeyDictionary()
    )
    _any_made: ClassVar[bool] = False

    def __init__(self, group: Any = None) -> None:
        # Weak: who holds a group past destroy_process_group ends with its threads running, in an
        # abort at exit.
        group = dist.group.WORLD if group is None else _group_of(group)
        self._weak_group = weakref.ref(group)
        GroupCommunicator._any_made = True
        group = self._group
        device = _transport_device(group)
        members = dist.get_process_group_ranks(group)
        rank, watcher = dist.get_rank(group), _find_watcher()
        super().__init__(rank, group.group_name, members, device, watcher)
        self._subgroups: dict[tuple[int, ...], GroupCommunicator] = {}
        self._background: GroupCommunicator | None = None
        self._is_gloo = device.type == "cpu" and "gloo" in str(dist.get_backend_config(group))

    @property
    def _group(self) -> Any:
        refuse_fork(dist.group.WORLD)
        group = self._weak_group()
        if group is None:
            raise ConfigurationError(
                "the process group of this communicator has been destroyed",
                do="make a new communicator after init_process_group.",
            )
        return group

    @classmethod
    def of(cls, group: Any) -> GroupCommunicator:
        """Return the one communicator of ``group``, whose callers share its count of calls."""
        group = _group_of(group)
        comm = cls._by_group.get(group)
        if comm is None:
            comm = cls._by_group[group] = cls(group)
        return comm

    @classmethod
    def register(cls, comm: GroupCommunicator) -> None:
        """Make ``comm`` what :meth:`of` returns for its group."""
        cls._by_group[comm._group] = comm

    def subgroup(self, ranks: Sequence[int]) -> GroupCommunicator:
        """Return the communicator of some ranks of this one; each of them must ask for it."""
        members = tuple(sorted(ranks))
        if members not in self._subgroups:
            # Only its members make it: a mesh has many groups, and each rank is in a few of them.
            group = new_group([self.members[rank] for rank in members])
            self._subgroups[members] = GroupCommunicator.of(group)
        return self._subgroups[members]

    def background(self) -> GroupCommunicator:
        """Return a communicator of the same ranks, with a process group of its own.

        A backend keeps the order of calls of one group only where one thread makes them.
        """
        if self._background is None:
            # The guard watches a barrier, but not what makes a group, which waits for half an hour
            # for a rank that has left, or that makes another call.
            with in_call(Call("the first call in the background", site=call_site())):
                self.barrier()
            self._background = GroupCommunicator.of(new_group(self.members))
        return self._background

    def issued(self) -> int:
        """Return how many collectives this rank has issued on the group, ours and torch's own.

        0 where the group's backend does not count them.
        """
        group: Any = self._weak_group()
        try:
            backend = group._get_backend(self.device)
            return int(backend._get_sequence_number_for_group())  # torch has no public name for it
        except (AttributeError, RuntimeError):  # a backend that does not count
            return 0

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's ``x``, in rank order.

        ``x`` must have as many bytes on every rank. Nobody compares that here: where it differs,
        the backend aborts the process, returns garbage, or waits until the guard ends it. The
        functions of distmetrics compare before data moves.
        """
        flat = self._bytes(x)
        rows = flat.new_empty(self.world_size, flat.numel())
        if self._is_gloo and rows.numel() <= _SMALL:
            # Gloo passes what it gathers from rank to rank in a ring of world_size - 1 steps. Its
            # all_to_all sends the same bytes at once: of 4 ranks, small data takes half the time,
            # of 16 a seventh.
            sent = flat.repeat(self.world_size)
            start = partial(self._group.alltoall_base, rows.view(-1), sent, [], [])
            rows = self._run("all_gather", x, start, rows)
        else:
            # Of another kind with gloo: ranks that gather in different ways never meet, and the
            # guard must see it.
            kind = "all_gather of large data" if self._is_gloo else "all_gather"
            start = partial(self._group.allgather, [[*rows.unbind()]], [flat])
            rows = self._run(kind, x, start, rows)
        return [*self._back(rows.view(-1), x, self.world_size).unbind()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return the elementwise ``op`` over all ranks."""
        if x.dtype not in _REDUCIBLE:
            return fold(self.all_gather(x), op)
        moved = x.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        start = partial(self._group.allreduce, [moved], _REDUCE[op])
        reduced: Tensor = self._run(f"all_reduce {op}", x, start, moved)
        return reduced.to(x.device)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        sent = torch.cat([self._bytes(part) for part in parts])
        received = torch.empty_like(sent)
        start = partial(self._group.alltoall_base, received, sent, [], [])
        received = self._run("all_to_all", parts[0], start, received)
        return [*self._back(received, parts[0], self.world_size).unbind()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        flat = self._bytes(x).clone()
        start = partial(self._group.broadcast, flat, src)
        return self._back(self._run(f"broadcast from rank {src}", x, start, flat), x)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._run("barrier", None, partial(_barrier, group=self._group, async_op=True), None)

    def _bytes(self, x: Tensor) -> Tensor:
        plain = x.detach().to(self.device).resolve_conj().resolve_neg().contiguous()
        # Not reshape: a single element may keep a stride of its own, which no view as bytes allows.
        return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)

    def _back(self, flat: Tensor, like: Tensor, *leading: int) -> Tensor:
        return flat.view(like.dtype).reshape([*leading, *like.shape]).to(like.device)

    def _run(self, kind: str, x: Tensor | None, start: partial[Any], output: Any) -> Any:
        """Make a collective; return ``output``, or what it was when the collective was sent.

        ``start`` calls the group itself: torch.distributed's functions of the same names may be
        watched, by guard.watch().
        """
        return self.run(current_call(kind, x), kind, start, output)


_find_watcher: Callable[[], Watcher] = Watcher


def watch_by(find: Callable[[], Watcher]) -> None:
    """Let ``find`` return who watches the communicators that are made from now on."""
    global _find_watcher
    _find_watcher = find


def _of_job() -> GroupCommunicator | None:
    """Return the communicator of torch.distributed's default group, if the job has one."""
    return GroupCommunicator.of(dist.group.WORLD) if dist.is_initialized() else None


def of_group(group: Any) -> GroupCommunicator | None:
    """Return the communicator of a process group, or of a ``DeviceMesh`` of one dimension."""
    is_group = isinstance(group, dist.ProcessGroup) or hasattr(group, "get_group")
    return GroupCommunicator.of(group) if is_group else None


find_job_by(_of_job)


@contextmanager
def losses_named(comm: Communicator) -> Iterator[None]:
    """Name the rank whose loss breaks a collective of torch's own in the block, as DDP's are.

    Raises:
        PeerLostError: a rank failed, or its connection broke; the backend's error is the cause.
        DivergedError: a rank returned.
    """
    try:
        yield
    except RuntimeError as error:
        named = comm.blame(error) if isinstance(comm, GroupCommunicator) else None
        if named is None:
            raise
        raise named from error


@atexit.register
def _let_go() -> None:
    """Give the threads of groups that may still live the time to let go of the last call's tensors.

    A thread of gloo that drops the last hold on a tensor of Python's needs the interpreter; when
    that is ending, the process aborts with "terminate called without an active exception"
    (pytorch/pytorch#179291, #190489). Destroying the group joins its threads only where nothing
    holds the group any more, DistributedDataParallel for one.
    """
    if GroupCommunicator._any_made:
        time.sleep(_LET_GO)


def _group_of(group: Any) -> Any:
    """Return a process group, or that of a ``DeviceMesh`` with one dimension."""
    if not hasattr(group, "get_group"):
        return group
    if group.ndim > 1:
        raise ConfigurationError(
            f"a DeviceMesh of {group.ndim} dimensions is no group",
            do='say what its dimensions hold: layout(mesh, dp="shard", tp="same"), or pass one '
            'of them: mesh["dp"].',
        )
    return group.get_group()


def _transport_device(group: Any) -> torch.device:
    """Return the device that the group's backend wants; the CPU, where it has one for that too."""
    config = str(dist.get_backend_config(group))  # "gloo", or "cpu:gloo,cuda:nccl"
    devices = []
    for part in config.split(","):
        device, separator, _ = part.partition(":")
        devices.append(device if separator else _DEVICE_OF.get(part, "cpu"))
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())

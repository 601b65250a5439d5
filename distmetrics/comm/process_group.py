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
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.call_site import call_site, raise_sites
from distmetrics.comm.communicator import (
    Call,
    Communicator,
    Op,
    Tasks,
    break_after,
    call_under_way,
    check_parts,
    check_src,
    current_call,
    find_job_by,
    fold,
    in_call,
)
from distmetrics.comm.patching import Name, Replacing
from distmetrics.comm.verdict import BROKEN, Departure, Verdict, departed, reason
from distmetrics.errors import ConfigurationError, DistmetricsError, Site, rank_ranges, who

NAMING_GRACE = 2.0  # seconds that a broken connection waits for somebody to say who has left
OWN_WORDS = 0.5  # seconds of it, where its process is gone
SLICE = 0.1  # seconds that a wait lasts before it looks for a verdict
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a device
_BROKEN_WORDS = ("Connection closed", "Connection reset", "Broken pipe")
_CONNECTION_WORDS = (*_BROKEN_WORDS, "gloo", "NCCL")


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call of a transport on this rank, from when it was begun until it is over."""

    call: Call
    group: str  # its name
    members: str  # its ranks of the job, in short
    number: int  # of the group's collectives
    kind: str  # the transport's operation
    users: tuple[int, int] = (1, 1)  # number of the user's call, and of this collective in it
    started: float = field(default_factory=time.time)
    ended: float | None = None
    serial: int = 0  # among this rank's calls over all groups
    watched: bool = False  # the watcher has been asked why it lasts
    warned: bool = False  # the log has its verdict
    verdict: Verdict | None = None


class Calls(Tasks):
    """The calls of this rank over all its groups. This one keeps nothing of them."""

    def count_by(self, group: str, issued: Callable[[], int], exactly: bool) -> None:
        """Let ``issued`` count the collectives of a group; ``exactly``: without sends."""

    def begin_call(self, pending: PendingCall) -> None:
        """Note that this thread begins a call."""

    def end_call(self, pending: PendingCall, *, begun: bool) -> None:
        """Note that a call is over, or was never begun."""


class Watcher:
    """Who watches the calls of this rank. This one watches nothing."""

    patience = SLICE  # seconds that a wait lasts before it looks for a verdict
    grace = 0.0  # seconds that a broken connection waits for somebody to say who has left
    calls = Calls()  # of this rank

    def look(self, pending: PendingCall) -> Verdict | None:
        """Return why a call that lasts can't end, as far as is known."""
        return None

    def look_after_loss(self, pending: PendingCall) -> Verdict | None:
        """Return why a call can't end whose connection broke, as far as is known."""
        return self.departed(f"waits in {pending.call}")

    def departed(self, doing: str) -> Verdict | None:
        """Return that ranks have said that they leave, or that somebody has said so for them."""
        return None

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone."""
        return []

    def report(self, error: BaseException) -> None:
        """Write this rank's report, where one is wanted: it raises an error."""

    def break_off(self, group: str, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that a group is broken: at once, or unless this rank ends first."""

    def leave_job(self, why: str, *, failed: bool) -> None:
        """Publish that this rank leaves the job, where its launcher reads it."""


def ended(work: Any, device: torch.device, seconds: float) -> bool:
    """Wait for a call, some seconds at most; return whether it has ended, or raise its error."""
    if device.type != "cpu":
        return _ended_on_device(work, seconds)
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises if it has failed, and not just ended after the slice
    return True


def _ended_on_device(work: Any, seconds: float) -> bool:
    """Wait for the device without holding the host: a call that never ends must not stop it."""
    deadline, pause = time.monotonic() + seconds, _SHORTEST
    while not work.is_completed():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(_LONGEST, 2 * pause)
    work.wait()  # orders the streams
    return True


def is_connection_error(error: BaseException) -> bool:
    """True for an error of torch.distributed that says that a peer is gone, or out of step."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in _CONNECTION_WORDS)


def is_broken_connection(error: BaseException) -> bool:
    """True for an error in which gloo says that its connection to a peer broke."""
    text = str(error)
    broke = "gloo" in text and any(word in text for word in _BROKEN_WORDS)
    return broke and isinstance(error, RuntimeError)


_inherited: weakref.ref[Any] | None = None  # in a forked child: the group of its parent's job


def _note_fork() -> None:
    global _inherited
    if dist.is_initialized():
        _inherited = weakref.ref(dist.group.WORLD)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note_fork)

_NAMING = "_process_group_name"  # private, but for this there is no other way
_naming = Replacing()
_of_thread = threading.local()  # the name of the group that this thread makes


def new_group(ranks: Sequence[int]) -> Any:
    """Return a new process group of some ranks of the job, ascending; each of them must call it."""
    members = "-".join(map(str, ranks))
    made = GroupCommunicator.of(dist.group.WORLD).made
    made[members] += 1
    _of_thread.name = f"distmetrics:{members}:{made[members]}"
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
watching = Replacing()  # the blocks of guard.watch()

_MOMENT = 0.02  # seconds between two looks for who has left
# Collectives whose end nobody has seen: a thread of gloo that drops the last hold on a tensor of
# Python's while the interpreter ends aborts the process. So these are held to the end.
_held_to_the_end: list[Any] = []
_SMALL = 1 << 22  # bytes of all ranks together that gloo gathers by all_to_all
_LET_GO = 0.05  # seconds at exit for the threads of groups that still live
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


class GroupCommunicator(Communicator):
    """One rank's end of a process group.

    Args:
        group: the process group, or a ``DeviceMesh`` of one dimension; default the whole job.

    Raises:
        ConfigurationError: there is no process group. In a call: it has been destroyed, or this
            process is a fork of a rank.
        PeerLostError: in a call: a rank of the group has failed or ended.
        DivergedError: in a call: a rank of the group waits elsewhere, or has returned.

    >>> from torch import distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> GroupCommunicator().all_gather(torch.tensor(3))
    [tensor(3)]
    >>> dist.destroy_process_group()
    """

    _by_group: ClassVar[weakref.WeakKeyDictionary[Any, GroupCommunicator]] = (
        weakref.WeakKeyDictionary()
    )
    _any_made: ClassVar[bool] = False

    def __init__(self, group: Any = None) -> None:
        # Weak: who holds a group past destroy_process_group ends with its threads running, in an
        # abort at exit.
        group = dist.group.WORLD if group is None else _group_of(group)
        if group is None:
            raise ConfigurationError(
                "this process has no process group",
                do="call torch.distributed.init_process_group first; one process needs none.",
            )
        self._weak_group = weakref.ref(group)
        GroupCommunicator._any_made = True
        group = self._group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.device = device = _transport_device(group)
        self.calls = 0  # of the transport, by this group
        self._place = (0, 0)  # of the last one: the user's call, and which of its collectives
        self.watcher = _find_watcher()
        self._name: str = group.group_name
        self.members = dist.get_process_group_ranks(group)
        self._me, self._members = self.members[self.rank], rank_ranges(self.members)
        self.tasks = self.watcher.calls
        self.watcher.calls.count_by(self._name, *counter_of(group))
        self.made = Counter[str]()  # groups of ours, by their ranks
        self._subgroups: dict[tuple[int, ...], GroupCommunicator] = {}
        self._background: GroupCommunicator | None = None
        self._is_gloo = device.type == "cpu" and "gloo" in dist.get_backend_config(group)

    @property
    def _group(self) -> Any:
        if _inherited is not None and _inherited() is dist.group.WORLD is not None:
            raise ConfigurationError(
                f"this process is a fork of rank {dist.get_rank()} and is no rank",
                likely="a data loader's worker, or a child that multiprocessing forked, syncs.",
                do="sync in the rank's own process, and return to it what the child has computed.",
                rank=dist.get_rank(),
            )
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

    def subgroup(self, ranks: Sequence[int]) -> GroupCommunicator:
        """Return the communicator of some ranks of this one; each of them must ask for it."""
        members = tuple(sorted(ranks))
        if members not in self._subgroups:
            # Only its members make it: a mesh has many groups, and each rank is in a few of them.
            group = new_group([self.members[rank] for rank in members])
            self._subgroups[members] = GroupCommunicator.of(group)
        return self._subgroups[members]

    def background(self) -> GroupCommunicator:
        """Return a communicator of the same ranks, with a process group for another thread."""
        if self._background is None:
            # The guard watches a barrier, but not what makes a group, which waits for half an hour
            # for a rank that has left, or that makes another call.
            self.state.calls += 1
            with in_call(Call("the first call in the background", site=call_site())):
                self.barrier()
            self._background = GroupCommunicator.of(new_group(self.members))
        return self._background

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's ``x``, in rank order.

        ``x`` must have as many bytes on every rank. Nobody compares that here: where it differs,
        the backend aborts the process, returns garbage, or waits until the guard ends it. The
        functions of distmetrics compare before data moves.
        """
        flat = self._bytes(x)
        if self._is_gloo and flat.numel() * self.world_size <= _SMALL:
            # Gloo passes what it gathers from rank to rank in a ring of world_size - 1 steps. Its
            # all_to_all sends the same bytes at once: of 4 ranks, small data takes half the time,
            # of 16 a seventh.
            return self._swap("all_gather", flat.repeat(self.world_size), x)
        # Of another kind with gloo: ranks that gather in different ways never meet, and the guard
        # must see it.
        kind = "all_gather of large data" if self._is_gloo else "all_gather"
        rows = flat.new_empty(self.world_size, flat.numel())
        self.run(kind, partial(self._group.allgather, [[*rows.unbind()]], [flat]), x)
        return [*self._back(rows, x, self.world_size).unbind()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return the elementwise ``op`` over all ranks."""
        if x.dtype not in _REDUCIBLE:
            return fold(self.all_gather(x), op)
        moved = x.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        self.run(f"all_reduce {op}", partial(self._group.allreduce, [moved], _REDUCE[op]), x)
        return moved.to(x.device)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        return self._swap("all_to_all", torch.cat([*map(self._bytes, parts)]), parts[0])

    def _swap(self, kind: str, sent: Tensor, like: Tensor) -> list[Tensor]:
        received = torch.empty_like(sent)
        self.run(kind, partial(self._group.alltoall_base, received, sent, [], []), like)
        return [*self._back(received, like, self.world_size).unbind()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        flat = self._bytes(x).clone()
        self.run(f"broadcast from rank {src}", partial(self._group.broadcast, flat, src), x)
        return self._back(flat, x)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.run("barrier", partial(_barrier, group=self._group, async_op=True))

    def _bytes(self, x: Tensor) -> Tensor:
        plain = x.detach().to(self.device).resolve_conj().resolve_neg().contiguous()
        # Not reshape: a single element may keep a stride of its own, which no view as bytes allows.
        return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)

    def _back(self, flat: Tensor, like: Tensor, *leading: int) -> Tensor:
        return flat.view(-1).view(like.dtype).reshape([*leading, *like.shape]).to(like.device)

    def run(self, kind: str, start: Callable[[], Any], x: Tensor | None = None) -> None:
        """Start a call of the transport, which sends ``x``, and wait for its end.

        If it can't end this raises, and so does every later call. ``start`` calls the group itself:
        torch.distributed's functions of the same names may be watched, by guard.watch().
        """
        call = current_call(kind, x)
        if self.state.verdict is not None:
            raise self.state.verdict.error(self._me, call.site)
        if call_under_way() is None:
            self.state.note(self.state.direct_calls, call)
            self.state.calls += 1
        before, part = self._place
        number = self.state.calls
        self._place = place = (number, part + 1 if number == before else 1)
        pending = PendingCall(call, self._name, self._members, self.calls + 1, kind, place)
        self.watcher.calls.begin_call(pending)
        work = None
        try:
            work = start()
            self.calls += 1
            self._wait(work, pending)
        except RuntimeError as error:
            # What the backend refuses is the caller's own error: nothing was sent.
            if not (work or is_connection_error(error)):
                raise
            raise self._lost(pending, error) from error
        except BaseException as error:
            if work is not None or not isinstance(error, (ValueError, TypeError)):
                break_after(self, call, type(error).__name__)
            raise
        finally:
            if work is not None and not work.is_completed():
                _held_to_the_end.append((work, start))
            self.watcher.calls.end_call(pending, begun=work is not None)

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Name the rank behind a connection error of a call made elsewhere, and break the group."""
        if not is_connection_error(error):
            return None
        doing = "was in a collective of torch.distributed's own (DDP, say)"
        verdict = self._found_out(doing, error)
        if not (verdict.peers or is_broken_connection(error)):
            return None
        site = next(iter(raise_sites(error)), None) or call_site()
        return self._break(verdict, site).with_traceback(error.__traceback__)

    def leave(self, error: BaseException | None) -> None:
        """Publish that this rank leaves the job: after an error, or at its end."""
        if error is not None:
            self.watcher.report(error)
        self.watcher.leave_job(reason(error), failed=error is not None)

    def report(self, error: DistmetricsError) -> None:
        """Write this rank's report, where one is wanted: a call raises an error."""
        self.watcher.report(error)

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that this rank makes no further call on this communicator."""
        self.watcher.break_off(self._name, verdict, at_once=at_once)

    def give_up(self, error: BaseException, scope: str) -> None:
        """Tell the others that this rank has left a block by an exception; refuse later calls."""
        if self.state.verdict is None:
            left = Departure(self._me, f"left {scope}: {reason(error)}", failed=True)
            self.state.verdict = departed({self._me: left}, {})
            self.break_off(self.state.verdict, at_once=True)

    def _wait(self, work: Any, pending: PendingCall) -> None:
        patience = self.watcher.patience
        while not ended(work, self.device, patience):
            patience = SLICE
            verdict = self.watcher.look(pending)
            if verdict is not None:
                raise self._break(verdict, pending.call.site)

    def _lost(self, pending: PendingCall, error: RuntimeError) -> DistmetricsError:
        """Return the error for a broken connection."""
        verdict = self._found_out(f"waits in {pending.call}", error, pending)
        return self._break(verdict, pending.call.site)

    def _found_out(
        self, doing: str, error: BaseException, pending: PendingCall | None = None
    ) -> Verdict:
        """Return why a connection broke; who watches a lost rank's process may be late to say."""
        began, watcher = time.monotonic(), self.watcher
        while True:
            verdict = watcher.look_after_loss(pending) if pending else watcher.departed(doing)
            gone = watcher.gone()
            grace = min(watcher.grace, OWN_WORDS) if gone else watcher.grace
            if verdict is not None or time.monotonic() - began >= grace:
                break
            time.sleep(_MOMENT)
        return (
            verdict
            or watcher.departed(doing)
            or Verdict(
                "peer-lost",
                f"the connection to {who(gone) if gone else 'another rank'} broke",
                tuple(gone),
                {self._me: doing} | dict.fromkeys(gone, "its process is gone"),
                notes=(f"The backend says: {str(error).strip().splitlines()[-1]}", BROKEN),
                do="look for the first error or kill in the other ranks' logs.",
            )
        )

    def _break(self, verdict: Verdict, site: Site | None) -> DistmetricsError:
        """Refuse every later call on this group, and return what this one raises."""
        self.state.verdict = verdict
        error = verdict.error(self._me, site)
        self.watcher.report(error)
        return error


_find_watcher: Callable[[], Watcher] = Watcher


def watch_by(find: Callable[[], Watcher]) -> None:
    """Let ``find`` return who watches the communicators that are made from now on."""
    global _find_watcher
    _find_watcher = find


def of_group(group: Any) -> GroupCommunicator | None:
    """Return the communicator of a process group, or of a ``DeviceMesh`` of one dimension."""
    is_group = isinstance(group, dist.ProcessGroup) or hasattr(group, "get_group")
    return GroupCommunicator.of(group) if is_group else None


find_job_by(lambda: GroupCommunicator.of(dist.group.WORLD) if dist.is_initialized() else None)


@atexit.register
def _let_go() -> None:
    """Give the threads of groups that may still live the time to let go of the last call's tensors.

    Else the process aborts with "terminate called without an active exception"
    (pytorch/pytorch#179291, #190489). Destroying the group joins its threads only where nothing
    holds it any more, DistributedDataParallel for one.
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


def counter_of(group: Any) -> tuple[Callable[[], int], bool]:
    """Return what counts the collectives that this rank has issued on a group, torch's own as well.

    The second value says whether they alone are counted, and no sends.
    """
    weak, device = weakref.ref(group), torch.device(_transport_type(group))

    def issued() -> int:
        held: Any = weak()
        try:
            backend = held._get_backend(device)
            return int(backend._get_sequence_number_for_group())  # torch has no public name for it
        except (AttributeError, RuntimeError):  # it does not count, or there is no group any more
            return 0

    return issued, device.type != "cpu"


def _transport_device(group: Any) -> torch.device:
    """Return the device that the group's backend wants; the CPU, where it has one for that too."""
    kind = _transport_type(group)
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())


def _transport_type(group: Any) -> str:
    devices: list[str] = re.findall(r"(\w+):", dist.get_backend_config(group))  # "cpu:gloo", say
    return "cpu" if "cpu" in devices else devices[0]

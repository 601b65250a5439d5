"""A communicator over a ``torch.distributed`` process group: gloo, NCCL and their kin.

Tensors move to the transport's device and back. Data that is only moved (gather, broadcast,
exchange) travels as bytes, so every dtype that torch can hold works on every backend. Waiting is
done in short slices, so that a wait whose peer has left ends in an error that names the peer, and
not in a time-out.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.base import Meanwhile, Op, check_parts, check_src, current_call, fold, in_call
from distmetrics.comm.board import Board
from distmetrics.comm.guard.sentry import Sentry
from distmetrics.comm.guard.settings import in_force
from distmetrics.comm.linking import link, links_wanted
from distmetrics.comm.links import Links
from distmetrics.comm.waits import Waits
from distmetrics.errors import ConfigurationError, DistmetricsError, rank_ranges

if not dist.is_initialized():
    # Its functions have the group of this moment as a default argument. Imported later, by
    # torch._dynamo when DistributedDataParallel is made, say, it would keep the job's group alive
    # past destroy_process_group.
    import torch.distributed.nn.functional

# As they are now: our own calls are watched already, where guard.watch() replaces torch's.
_all_reduce, _all_to_all_single = dist.all_reduce, dist.all_to_all_single
_broadcast, _barrier = dist.broadcast, dist.barrier

_STORE_WAIT = 10.0  # seconds in which the job's store must answer a rank's first call
_ALIGN = 16  # bytes of the widest element
_AT_ONCE = 1 << 22  # bytes of all ranks together up to which gloo's all_to_all gathers
_LINKED = 192 << 10  # bytes of one rank up to which sockets are used: they hold two such messages
_LET_GO = 0.05  # seconds at exit for the threads of groups that still live
_DEVICE_OF = {
    "nccl": "cuda",
    "gloo": "cpu",
    "mpi": "cpu",
    "ucc": "cpu",
    "xccl": "xpu",
    "fake": "cpu",
}
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


class GroupCommunicator:
    """One rank's end of a process group.

    Args:
        group: the process group; default the whole job.
        board: where departures are published; without one a lost peer is noticed, but not always
            named.
    """

    _by_group: ClassVar[weakref.WeakKeyDictionary[Any, GroupCommunicator]] = (
        weakref.WeakKeyDictionary()
    )
    _links_of: ClassVar[weakref.WeakKeyDictionary[Any, Links | None]] = weakref.WeakKeyDictionary()
    _any_made: ClassVar[bool] = False

    def __init__(self, group: Any = None, *, board: Board | None = None) -> None:
        # Weak: who holds a group past destroy_process_group ends with its threads running, in an
        # abort at exit.
        self._weak_group = weakref.ref(dist.group.WORLD if group is None else group)
        GroupCommunicator._any_made = True
        group = self._group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        self.device = _transport_device(group)
        self.kept: dict[Any, Any] = {}  # by layers above, for as long as the group lasts
        # Gloo passes what it gathers from rank to rank in a ring of world_size - 1 steps, each of
        # which wakes a thread. Its all_to_all sends the same bytes at once: of 4 ranks, small data
        # takes half the time, of 16 a seventh. Between ranks of one machine sockets of our own take
        # a sixth of that time, see distmetrics.comm.links.
        self._at_once = self.device.type == "cpu" and "gloo" in str(dist.get_backend_config(group))
        members = rank_ranges(dist.get_process_group_ranks(group))
        self._waits = Waits(
            self.rank, group.group_name, members, self.device, board, _sentry_of(group, board)
        )

    @property
    def past(self) -> int:
        """Hash of the calls that were made on this communicator directly, by no collective of ours."""
        return self._waits.past

    @property
    def direct_calls(self) -> Sequence[str]:
        """The last of them."""
        return self._waits.direct_calls

    @property
    def calls(self) -> int:
        """How many collectives this group has made."""
        return self._waits.calls

    @property
    def _group(self) -> Any:
        group = self._weak_group()
        if group is None:
            raise ConfigurationError(
                "the process group of this communicator has been destroyed",
                do="make a new communicator after init_process_group.",
            )
        return group

    @classmethod
    def of(cls, group: Any) -> GroupCommunicator:
        """Return the one communicator of ``group``: who calls through it shares its count of calls
        and its state.
        """
        comm = cls._by_group.get(group)
        if comm is None:
            comm = cls._by_group[group] = cls(group)
        return comm

    @classmethod
    def register(cls, comm: GroupCommunicator) -> None:
        """Make ``comm`` what :meth:`of` returns for its group."""
        cls._by_group[comm._group] = comm

    def all_gather(
        self, x: Tensor, meanwhile: Meanwhile | None = None, into: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Every rank's ``x``, in rank order; ``meanwhile`` is called once while the data is under
        way.

        ``into``: rows of one contiguous tensor on the transport's device, bytes as ``x`` is, that
        receive the others'.
        """
        flat = self._bytes(x)
        size, world_size = flat.numel(), self.world_size
        room = _room(size)
        rows = [*flat.new_empty(world_size, room)[:, :size].unbind()] if into is None else into
        if not self._at_once or world_size * room > _AT_ONCE:
            # Of another kind: ranks of which one gathers so, and one as below, never meet, and the
            # guard must see it.
            kind = "all_gather of large data" if self._at_once else "all_gather"
            self._run(
                kind, x, lambda group: group.allgather([rows], [flat]), meanwhile, (rows, flat)
            )
            return rows if flat is x else [self._back(row, x) for row in rows]
        links = self._linked(x)
        if into is None:
            rows[self.rank].copy_(flat)
        if links is None:
            self._gather_at_once(flat, rows, x, meanwhile)
        elif size > _LINKED:
            self._gather_at_once(flat, rows, x, meanwhile, "all_gather of medium data")
        else:
            self._run("all_gather", x, lambda _: links.exchange(flat, rows), meanwhile)
        return rows if flat is x else [self._back(row, x) for row in rows]

    def _linked(self, x: Tensor) -> Links | None:
        """Return the sockets to the other ranks, if all are on this machine: looked for in the
        first small gather.
        """
        group = self._group
        if group in self._links_of:
            return self._links_of[group]
        wanted, calls = links_wanted(), self._waits.calls
        names = dist.get_process_group_ranks(group)
        try:
            with in_call(
                current_call("all_gather", x)
            ):  # what the user waits in, if a rank does not come
                links = link(
                    self._gather_bytes,
                    self.rank,
                    self.world_size,
                    wanted=wanted,
                    timeout=_timeout(group),
                    names=names,
                )
        except BaseException as error:
            if not isinstance(
                error, DistmetricsError
            ):  # an interrupt: others may have links now, or wait for this rank
                self._waits.give_up(
                    error, "the first gather of its group, in which ranks look for each other"
                )
            raise
        finally:
            self._waits.calls = calls
        self._links_of[group] = links
        if links is not None:
            weakref.finalize(group, links.close).atexit = False
        return links

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        flat = torch.frombuffer(bytearray(mine.ljust(_room(len(mine)), b"\0")), dtype=torch.uint8)
        rows = [*flat.repeat(self.world_size, 1).unbind()]
        self._gather_at_once(flat, rows, flat)
        return [bytes(row.tolist())[: len(mine)] for row in rows]

    def _gather_at_once(
        self,
        flat: Tensor,
        rows: list[Tensor],
        x: Tensor,
        meanwhile: Meanwhile | None = None,
        kind: str = "all_gather",
    ) -> None:
        """Gather by gloo's all_to_all; ``rows`` are of one contiguous tensor, :func:`_room` apart."""
        # The group's own methods: what torch's functions check before they come to these is so
        # here, and costs as much as a tenth of the collective.
        size = flat.numel()
        room = _room(size)
        if (
            self.world_size == 2
        ):  # nothing goes to this rank itself, so that nothing needs to be laid out
            other, parts = rows[1 - self.rank], [size, 0] if self.rank else [0, size]
            self._run(
                kind,
                x,
                lambda group: _exchange(group)(other, flat, parts, parts),
                meanwhile,
                (other, flat),
            )
            return
        whole = rows[0].as_strided((self.world_size * room,), (1,))
        sent = (flat if size == room else torch.nn.functional.pad(flat, (0, room - size))).repeat(
            self.world_size
        )
        self._run(
            kind, x, lambda group: _exchange(group)(whole, sent, [], []), meanwhile, (whole, sent)
        )

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Elementwise ``op`` over all ranks."""
        if x.dtype not in _REDUCIBLE:
            return fold(self.all_gather(x), op)
        moved = x.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        self._run(
            f"all_reduce {op}",
            x,
            lambda group: _all_reduce(moved, op=_REDUCE[op], group=group, async_op=True),
            held=moved,
        )
        return moved.to(x.device)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        sent = torch.cat([self._bytes(part) for part in parts])
        received = torch.empty_like(sent)
        self._run(
            "all_to_all",
            parts[0],
            lambda group: _all_to_all_single(received, sent, group=group, async_op=True),
            held=(received, sent),
        )
        return [self._back(row, parts[0]) for row in received.chunk(self.world_size)]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        flat = self._bytes(x).clone()
        self._run(
            f"broadcast from rank {src}",
            x,
            lambda group: _broadcast(flat, group_src=src, group=group, async_op=True),
            held=flat,
        )
        return self._back(flat, x)

    def barrier(self) -> None:
        """Wait for every rank."""
        self._run("barrier", None, lambda group: _barrier(group=group, async_op=True))

    def _bytes(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8 and x.ndim == 1 and x.device == self.device and x.is_contiguous():
            return x  # what our own frames are: every sync comes this way
        plain = x.detach().to(self.device).resolve_conj().resolve_neg().contiguous()
        # Not reshape: a single element may keep a stride of its own, which no view as bytes allows.
        return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)

    def _back(self, flat: Tensor, like: Tensor) -> Tensor:
        if like.dtype == torch.uint8 and like.ndim == 1:
            return flat.to(like.device)
        return flat.view(like.dtype).reshape(like.shape).to(like.device)

    def _run(
        self,
        kind: str,
        x: Tensor | None,
        start: Callable[[Any], Any],
        meanwhile: Meanwhile | None = None,
        held: Any = None,
    ) -> None:
        group = self._group
        links = self._links_of.get(group)
        if (
            links is not None and links.pending
        ):  # of a gather that was interrupted: others may wait for what is unsent
            links.go_on()
        self._waits.run(current_call(kind, x), kind, lambda: start(group), meanwhile, held)

    def wait_for(self, kind: str, start: Callable[[], Any], held: Any = None) -> None:
        """Make a call of torch's own on this group, one that was agreed upon, and wait for its end."""
        self._waits.run(current_call(kind), kind, start, held=held)

    def give_up(self, error: BaseException, scope: str) -> None:
        """Tell the others that this rank has left a block that it was to go through with them;
        refuse later calls.
        """
        self._waits.give_up(error, scope)

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Name the rank behind a connection error of the backend that did not pass through this
        communicator.
        """
        return self._waits.blame(error)


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


_sentries: weakref.WeakKeyDictionary[Any, Sentry] = (
    weakref.WeakKeyDictionary()
)  # by the group of all ranks


def _sentry_of(group: Any, board: Board | None) -> Sentry | None:
    """Return the guard of this rank, which watches all its groups; made with the first, unless it
    is switched off.
    """
    world: Any = dist.group.WORLD
    sentry = _sentries.get(world)
    settings = in_force()
    if sentry is not None or settings.mode == "off" or dist.get_world_size() == 1:
        return sentry
    made: list[Sentry | str] = []
    store = world.get_group_store() if board is None else board.store
    place = dist.get_rank(), dist.get_world_size(), settings, world.group_name, board

    def make() -> None:
        try:
            made.append(Sentry(store, *place))
        except RuntimeError as error:  # a store that can't be cloned: of a backend for tests, say
            made.append(str(error))

    maker = threading.Thread(
        target=make, daemon=True
    )  # a store whose host is gone would hold this thread for ever
    maker.start()
    maker.join(_STORE_WAIT)
    found = made[0] if made else f"nothing within {_STORE_WAIT:g} s"
    if isinstance(found, str):
        warnings.warn(
            f"distmetrics watches no rank of this job: its store says {found}", stacklevel=4
        )
        return None
    _sentries[world] = found
    weakref.finalize(world, found.close)
    return found


def _timeout(group: Any) -> float | None:
    """Return the seconds that a call of the group may take, as its backend has them."""
    timeout = getattr(
        getattr(group._get_backend(torch.device("cpu")), "options", None), "_timeout", None
    )
    return None if timeout is None else timeout.total_seconds()


def _room(size: int) -> int:
    """Return how far apart rows of ``size`` bytes lie, so that each can be viewed as any dtype."""
    return -(-max(size, 1) // _ALIGN) * _ALIGN


def _exchange(group: Any) -> Any:
    """Return the method of a group that exchanges equal parts; before torch 2.13 it had another
    name.
    """
    return getattr(group, "all_to_all_single", None) or group.alltoall_base


def _transport_device(group: Any) -> torch.device:
    """Choose the device that the group's backend wants; a group with a CPU backend spares the trip
    to the GPU.
    """
    config = str(dist.get_backend_config(group))  # "gloo", or "cpu:gloo,cuda:nccl"
    devices = [
        part.split(":")[0] if ":" in part else _DEVICE_OF.get(part, "cpu")
        for part in config.split(",")
    ]
    kind = "cpu" if "cpu" in devices else devices[0]
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())

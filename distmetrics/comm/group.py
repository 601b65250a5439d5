"""A communicator over a ``torch.distributed`` process group: gloo, NCCL and their kin.

Tensors move to the transport's device and back. Data that is only moved (gather, broadcast, exchange) travels as
bytes, so every dtype that torch can hold works on every backend. Waiting is done in short slices, so that a wait whose
peer has left ends in an error that names the peer, and not in a time-out.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.base import Call, Meanwhile, Op, check_parts, check_src, current_call, fold
from distmetrics.comm.board import Board
from distmetrics.errors import ConfigurationError, DistmetricsError, DivergedError, PeerLostError, compose, who

if not dist.is_initialized():
    # Its functions have the group of this moment as a default argument. Imported later, by torch._dynamo when
    # DistributedDataParallel is made, say, it would keep the job's group alive past destroy_process_group.
    import torch.distributed.nn.functional

__all__ = ["GroupCommunicator", "is_connection_error"]

_SLICE = timedelta(milliseconds=100)  # how long a wait lasts before it looks at the notice board
_ALIGN = 16  # bytes of the widest element
_LET_GO = 0.05  # seconds at exit for the threads of groups that still live
_NAME_GRACE = 2.0  # seconds that a broken connection waits for the board to name who left
_DEVICE_OF = {"nccl": "cuda", "gloo": "cpu", "mpi": "cpu", "ucc": "cpu", "xccl": "xpu", "fake": "cpu"}
_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_CONNECTION_WORDS = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "NCCL")
# What every backend reduces; the rest is gathered as bytes and folded here.
_REDUCIBLE = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8})


class GroupCommunicator:
    """One rank's end of a process group.

    Args:
        group: the process group; default the whole job.
        board: where departures are published; without one a lost peer is noticed, but not always named.
    """

    _by_group: ClassVar[weakref.WeakKeyDictionary[Any, GroupCommunicator]] = weakref.WeakKeyDictionary()
    _any_made: ClassVar[bool] = False

    def __init__(self, group: Any = None, *, board: Board | None = None) -> None:
        # Weak: who holds a group past destroy_process_group ends with its threads running, in an abort at exit.
        self._weak_group = weakref.ref(dist.group.WORLD if group is None else group)
        GroupCommunicator._any_made = True
        self._board = board
        self._broken: tuple[type[DistmetricsError], str, list[int]] | None = None
        self.calls = 0
        self.rank: int = dist.get_rank(self._group)
        self.world_size: int = dist.get_world_size(self._group)
        self.device = _transport_device(self._group)

    @property
    def _group(self) -> Any:
        group = self._weak_group()
        if group is None:
            raise ConfigurationError(
                "the process group of this communicator has been destroyed\n"
                "Do:     make a new communicator after init_process_group."
            )
        return group

    @classmethod
    def of(cls, group: Any) -> GroupCommunicator:
        """Return the one communicator of ``group``: who calls through it shares its count of calls and its state."""
        comm = cls._by_group.get(group)
        if comm is None:
            comm = cls._by_group[group] = cls(group)
        return comm

    @classmethod
    def register(cls, comm: GroupCommunicator) -> None:
        """Make ``comm`` what :meth:`of` returns for its group."""
        cls._by_group[comm._group] = comm

    def all_gather(self, x: Tensor, meanwhile: Meanwhile | None = None) -> list[Tensor]:
        """Every rank's ``x``, in rank order; ``meanwhile`` is called once while the data is under way."""
        flat = self._bytes(x)
        size = flat.numel()
        if size and size % _ALIGN == 0:  # so that each row can be viewed as any dtype
            rows = list(flat.new_empty(self.world_size, size).unbind())
        else:
            rows = list(flat.new_empty(self.world_size, (size // _ALIGN + 1) * _ALIGN)[:, :size].unbind())
        # The group's own method: what torch's function checks before it comes to this is so here, and costs as much
        # as a tenth of the collective.
        self._run(current_call("all_gather", x), lambda group: group.allgather([rows], [flat]), meanwhile)
        return rows if flat is x else [self._back(row, x) for row in rows]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Elementwise ``op`` over all ranks."""
        if x.dtype not in _REDUCIBLE:
            return fold(self.all_gather(x), op)
        moved = x.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        self._run(
            current_call(f"all_reduce {op}", x),
            lambda group: dist.all_reduce(moved, op=_REDUCE[op], group=group, async_op=True),
        )
        return moved.to(x.device)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        sent = torch.cat([self._bytes(part) for part in parts])
        received = torch.empty_like(sent)
        self._run(
            current_call("all_to_all", parts[0]),
            lambda group: dist.all_to_all_single(received, sent, group=group, async_op=True),
        )
        return [self._back(row, parts[0]) for row in received.chunk(self.world_size)]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        flat = self._bytes(x).clone()
        self._run(
            current_call(f"broadcast from rank {src}", x),
            lambda group: dist.broadcast(flat, group_src=src, group=group, async_op=True),
        )
        return self._back(flat, x)

    def barrier(self) -> None:
        """Wait for every rank."""
        self._run(current_call("barrier"), lambda group: dist.barrier(group=group, async_op=True))

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

    def _run(self, call: Call, start: Callable[[Any], Any], meanwhile: Meanwhile | None = None) -> None:
        if self._broken is not None:
            kind, text, peers = self._broken
            raise kind(text, rank=self.rank, peers=peers, site=call.site)
        self.calls += 1
        try:
            work = start(self._group)
        except RuntimeError as error:
            raise self._lost(call, error) from error
        if meanwhile is not None:
            meanwhile()
        try:
            self._wait(work, call)
        except RuntimeError as error:
            raise self._lost(call, error) from error

    def _wait(self, work: Any, call: Call) -> None:
        if self.device.type != "cpu":
            work.wait()  # a stream's order, not the host's: slices would block the host
            return
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # finished between the slice and the look, or failed: this tells
                    return
            if self._board is not None and self._board.missing(self.calls):
                raise self._lost(call, None)

    def _lost(self, call: Call, error: RuntimeError | None) -> DistmetricsError:
        """Build the error for a wait that can't be met, and refuse every later call on this group."""
        gone = self._name_the_missing(0.0 if error is None else _NAME_GRACE)
        raised = [departure for departure in gone if departure.failed]
        kind: type[DistmetricsError] = PeerLostError if raised or not gone else DivergedError
        peers = sorted(departure.rank for departure in raised or gone)
        lines = {departure.rank: departure.why for departure in gone} | {self.rank: f"waits in {call}"}
        if raised:
            headline, do = (
                f"{who(peers)} failed and will never answer",
                f"mend the failure of {who(peers)} first.",
            )
        elif gone:
            headline = f"{who(peers)} {'has' if len(peers) == 1 else 'have'} returned, and others still wait for it"
            do = "make every rank call the same collectives, in the same order."
        else:
            headline = "the connection to another rank broke"
            do = "look for the first error or kill in the other ranks' logs."
        notes = ["Every later call on this group raises at once."]
        if error is not None and not gone:
            notes.insert(0, f"The backend says: {str(error).strip().splitlines()[-1]}")
        text = compose(headline, lines, notes=notes, do=do)
        self._broken = (kind, text, peers)
        return kind(text, rank=self.rank, peers=peers, site=call.site)

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Name the rank behind a connection error of the backend that did not pass through this communicator."""
        if not is_connection_error(error) or self._board is None:
            return None
        departures = sorted((d for d in self._board.departures() if d.rank != self.rank), key=lambda d: not d.failed)
        if not departures:
            return None
        first = departures[0]
        peers = [first.rank]
        lines = {first.rank: first.why, self.rank: "was in a collective of torch.distributed's own (DDP, say)"}
        if first.failed:
            text = compose(
                f"{who(peers)} failed while this rank talked to it",
                lines,
                do=f"mend the failure of {who(peers)} first.",
            )
            return PeerLostError(text, rank=self.rank, peers=peers)
        text = compose(
            f"{who(peers)} has left, and this rank still waits for it",
            lines,
            likely="ranks take different numbers of steps, or a condition on the rank ends one early.",
            do="let every rank take the same steps.",
        )
        return DivergedError(text, rank=self.rank, peers=peers)

    def _name_the_missing(self, grace: float) -> list[Any]:
        if self._board is None:
            return []
        deadline = time.monotonic() + grace
        while not (gone := self._board.missing(self.calls)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return gone


def is_connection_error(error: BaseException) -> bool:
    """Whether an error of torch.distributed's says that a peer is gone, or has sent what was not expected."""
    own = isinstance(error, DistmetricsError) or not isinstance(error, RuntimeError)
    return not own and any(word in str(error) for word in _CONNECTION_WORDS)


@atexit.register
def _let_go() -> None:
    """Give the threads of groups that may still live the time to let go of the last call's tensors.

    A thread of gloo that drops the last hold on a tensor of Python's needs the interpreter; when that is ending, the
    process aborts with "terminate called without an active exception" (pytorch/pytorch#179291, #190489). Destroying the
    group joins its threads only where nothing holds the group any more, DistributedDataParallel for one.
    """
    if GroupCommunicator._any_made:
        time.sleep(_LET_GO)


def _transport_device(group: Any) -> torch.device:
    """Choose the device that the group's backend wants; a group with a CPU backend spares the trip to the GPU."""
    config = str(dist.get_backend_config(group))  # "gloo", or "cpu:gloo,cuda:nccl"
    devices = [part.split(":")[0] if ":" in part else _DEVICE_OF.get(part, "cpu") for part in config.split(",")]
    kind = "cpu" if "cpu" in devices else devices[0]
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())

"""``torch.distributed`` of a rank that is a thread: its functions go to the thread's communicator.

torchmetrics' and torcheval's own sync, and user code, call ``torch.distributed.all_gather`` and its
kin. In a world of threads there is no process group; inside :func:`routed` those calls reach the
world of threads instead, which is as strict as gloo and decides deadlocks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.comm.communicator import Call, Communicator, Finished, brief, in_call, used
from distmetrics.comm.patching import Name, Replacing
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.errors import ConfigurationError, InputError, InputTypeError

__all__ = ["routed"]

# Requests: what gloo refuses is refused by name, and so is what it does wrong without an error.

# How two tensors are combined, and of which numbers: integral, floating or complex ones.
_REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "SUM": (torch.add, "ifc"),
    "AVG": (torch.add, "fc"),
    "PRODUCT": (torch.mul, "if"),
    "MIN": (torch.minimum, "if"),
    "MAX": (torch.maximum, "if"),
    "BAND": (torch.bitwise_and, "i"),
    "BOR": (torch.bitwise_or, "i"),
    "BXOR": (torch.bitwise_xor, "i"),
}
# gloo refuses these, and every 8-bit float.
_REFUSED_DTYPES = frozenset({torch.int16, torch.uint16, torch.uint32, torch.uint64})


@dataclass(frozen=True, eq=False)
class ThreadGroup:
    """A process group of a world of threads, as one of its ranks has it.

    Attributes:
        communicator: of the group.
        ranks: its ranks, as the world numbers them.
    """

    communicator: Communicator
    ranks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a function of ``torch.distributed``, with its arguments by torch's names.

    ``ranks`` are those of the group, as the world numbers them.
    """

    comm: Communicator
    name: str
    arguments: Mapping[str, Any]
    ranks: Sequence[int]

    @classmethod
    def of(cls, comm: Communicator, name: str, arguments: Mapping[str, Any]) -> Request:
        """Return a call by a rank of a world, on the group that it passes."""
        group = arguments.get("group")
        if isinstance(group, ThreadGroup):
            return cls(group.communicator, name, arguments, group.ranks)
        if group is not None and group is not dist.group.WORLD:
            raise InputError(
                f"torch.distributed.{name}: got a {type(group).__name__}, and no group of this "
                "world of threads",
                do="leave group out, or make it by torch.distributed.new_group on these ranks.",
            )
        return cls(comm, name, arguments, range(comm.world_size))

    @contextlib.contextmanager
    def under_way(self, sent: Tensor | None = None, *compared: Hashable) -> Iterator[None]:
        """Name the call for reports, and have ``compared`` be the same on all ranks."""
        detail = "" if sent is None else brief(sent.dtype, sent.shape)
        call = Call(f"torch.distributed.{self.name}", detail, call_site(), compared)
        with in_call(call), torch.no_grad():
            yield

    def refusal(self, text: str, kind: type[InputError] = InputError) -> InputError:
        """Return the error that refuses this call."""
        return kind(f"torch.distributed.{self.name}: {text}")

    def root(self, side: str, default: int | None = None) -> int:
        """Return the rank of the group that sends ("src") or receives ("dst")."""
        root, in_group = self.arguments.get(side), self.arguments.get(f"group_{side}")
        if root is not None and in_group is not None:
            raise self.refusal(f"{side}={root} and group_{side}={in_group} cannot both be given")
        known = range(self.comm.world_size) if root is None else self.ranks
        if root is None:
            root = default if in_group is None else in_group
        if root not in known:
            raise self.refusal(f"{side}={root} is no rank of a world of {self.comm.world_size}")
        return known.index(root)

    def check_only_at(self, root: int, what: str) -> None:
        """Refuse a list that is missing on the rank that needs it, or given on another."""
        is_root = self.comm.rank == root
        if bool(self.arguments[what]) is not is_root:
            raise self.refusal(
                f"{what} must {'' if is_root else 'not '}be given on rank {self.comm.rank}: the "
                f"call is {'from' if 'scatter' in what else 'to'} rank {root}"
            )

    def operation(self, tensor: Tensor) -> str:
        """Return the name of a reduction's operation, if the tensor's dtype has it."""
        op = self.arguments["op"]
        for name, (_, numbers) in _REDUCTIONS.items():
            if op == getattr(dist.ReduceOp, name):
                kind = "c" if tensor.is_complex() else "f" if tensor.is_floating_point() else "i"
                if kind not in numbers:
                    raise self.refusal(f"gloo has no ReduceOp.{name} of {tensor.dtype}")
                return name
        raise self.refusal(
            f"op={op!r} is not supported in a world of threads; supported: {', '.join(_REDUCTIONS)}"
        )

    def tensor(self, value: Any) -> Tensor:
        """Return ``value``, a tensor that gloo can send."""
        if not isinstance(value, Tensor):
            raise self.refusal(f"needs a tensor, got a {type(value).__name__}", InputTypeError)
        if value.layout != torch.strided:
            raise self.refusal(
                f"a tensor of layout {value.layout} is not supported in a world of threads"
            )
        is_short_float = value.is_floating_point() and value.element_size() == 1
        if value.dtype in _REFUSED_DTYPES or is_short_float:
            raise self.refusal(f"gloo cannot send {value.dtype}")
        return value

    def check_contiguous(self, what: str) -> None:
        """Refuse an argument that is a tensor whose memory is not its elements."""
        tensor = self.tensor(self.arguments[what])
        if not tensor.is_contiguous():
            raise self.refusal(
                f"the tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} "
                "is not contiguous; gloo would move the memory behind it, and not its elements"
            )

    def parts(self, what: str, like: Tensor | None = None) -> list[Tensor]:
        """Return an argument as a tensor for each rank: the items of a list, or rows of a tensor.

        They must be like ``like``, by default like the first one.
        """
        value, size = self.arguments[what], self.comm.world_size
        if not what.endswith("_list"):
            tensor = self.tensor(value)
            if not tensor.ndim or tensor.shape[0] % size:
                raise self.refusal(
                    f"{what} has shape {list(tensor.shape)}, which {size} ranks can't share evenly"
                )
            if like is not None:
                first, *others = like.shape or (1,)
                self.check_alike(what, tensor, like.new_empty(size * first, *others))
            return list(tensor.view(size, -1, *tensor.shape[1:]).unbind())
        if not isinstance(value, list):
            raise self.refusal(
                f"{what} must be a list of tensors, got a {type(value).__name__}", InputTypeError
            )
        if len(value) != size:
            raise self.refusal(f"{what} has {len(value)} tensors for {size} ranks")
        for index, each in enumerate(value):
            self.check_alike(f"{what}[{index}]", each, value[0] if like is None else like)
        return value

    def check_alike(self, what: str, value: Any, like: Tensor) -> Tensor:
        """Return ``value``, a tensor of the dtype and shape of another one."""
        wanted, got = self.tensor(like), self.tensor(value)
        kinds = [brief(x.dtype, x.shape) for x in (wanted, got)]
        if kinds[0] != kinds[1]:
            raise self.refusal(f"{what} must be {kinds[0]}, got {kinds[1]}")
        return got


# What answers each function.

Answer = Callable[[Request], Any]
# What sends a part to each rank, and what receives a part from each rank.
_SCATTERING = ("scatter", "all_to_all", "reduce_scatter")
_GATHERING = ("gather", "all_gather", "all_to_all")
# The side that has one rank only, and which rank that is unless the caller says so.
_ROOTS = {
    "broadcast": ("src", None),
    "scatter": ("src", 0),
    "reduce": ("dst", None),
    "gather": ("dst", 0),
}


@dataclass(frozen=True, slots=True)
class Move:
    """A function that moves tensors.

    Attributes:
        kind: the exchange that it makes; ranks must agree on it.
        sends: the argument with what is sent: a tensor, or a part for each rank, which are the
            items of a list or the rows of a tensor.
        receives: the argument for what is received, alike.
    """

    kind: str
    sends: str
    receives: str

    def __call__(self, request: Request) -> Finished | None:
        """Make the call; return its handle if ``async_op`` asks for one."""
        comm = request.comm
        side, default = _ROOTS.get(self.kind, ("", 0))
        root = request.root(side, default)
        if self.kind not in _GATHERING:
            request.check_contiguous(self.receives)
        for what in (self.sends, self.receives):
            if side and what.endswith("_list"):
                request.check_only_at(root, what)
        sent = self._sent(request, root)
        if self.kind == "gather" and sent[0].is_complex():
            raise request.refusal(f"gloo cannot gather {sent[0].dtype}")
        is_receiver = side != "dst" or comm.rank == root
        places = self._places(request, sent[0]) if is_receiver else []
        operation = request.operation(sent[0]) if "op" in request.arguments else ""
        with request.under_way(sent[0], self.kind, root, operation):
            is_scattering = self.kind in _SCATTERING
            rows = comm.all_to_all(sent) if is_scattering else comm.all_gather(sent[0])
            if side == "src":
                rows = [rows[root]]
            if operation:
                total = functools.reduce(_REDUCTIONS[operation][0], rows)
                rows = [total / comm.world_size if operation == "AVG" else total]
            for place, row in zip(places, rows, strict=is_receiver):
                place.copy_(row)
        return Finished() if request.arguments["async_op"] else None

    def _sent(self, request: Request, root: int) -> list[Tensor]:
        if self.kind not in _SCATTERING:
            return [request.tensor(request.arguments[self.sends])]
        if self.kind == "scatter" and request.comm.rank != root:
            # What nobody reads.
            return [request.arguments[self.receives]] * request.comm.world_size
        return request.parts(self.sends)

    def _places(self, request: Request, part: Tensor) -> list[Tensor]:
        """Return where to write what is received, tensors like ``part``."""
        if self.kind in _GATHERING:
            return request.parts(self.receives, like=part)
        return [request.check_alike(self.receives, request.arguments[self.receives], part)]


def _all_to_all_single(request: Request) -> Finished | None:
    sizes: set[int] = set()
    for side in ("input", "output"):
        sizes.update(request.arguments[f"{side}_split_sizes"] or ())
        request.check_contiguous(side)
    if len(sizes) > 1:
        raise request.refusal("splits of different sizes are not supported in a world of threads")
    return Move("all_to_all", "input", "output")(request)


def _barrier(request: Request) -> Finished | None:
    with request.under_way():
        request.comm.barrier()
    return Finished() if request.arguments.get("async_op") else None


def _all_gather_object(request: Request) -> None:
    objects = _gathered_objects(request, request.arguments["obj"])
    request.arguments["object_list"][: len(objects)] = objects


def _gather_object(request: Request) -> None:
    root = request.root("dst", default=0)
    request.check_only_at(root, "object_gather_list")
    objects = _gathered_objects(request, request.arguments["obj"], root)
    if request.comm.rank == root:
        request.arguments["object_gather_list"][: len(objects)] = objects


def _broadcast_object_list(request: Request) -> None:
    objects = request.arguments["object_list"]
    root = request.root("src")
    is_root = request.comm.rank == root
    received = _gathered_objects(request, objects if is_root else None, root, len(objects))
    if not is_root:
        objects[:] = received[root]


def _gathered_objects(request: Request, obj: Any, *compared: Hashable) -> list[Any]:
    """Return copies of all ranks' objects, sent as torch does it: sizes, then padded pickles."""
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    with request.under_way(None, request.name, *compared):
        most = max(map(int, request.comm.all_gather(torch.tensor([len(data)]))))
        rows = request.comm.all_gather(torch.nn.functional.pad(data, (0, most - len(data))))
    # A pickle ends itself: the padding is not read. The bytes are of threads of this process.
    return [pickle.loads(row.numpy().tobytes()) for row in rows]  # noqa: S301


def _new_group(request: Request) -> ThreadGroup | Any:
    """Make a group; every rank must, as torch has it, unless only its members are to."""
    ranks = request.arguments["ranks"]
    world = request.comm.world_size
    members = [*range(world)] if ranks is None else sorted(ranks)
    if not set(members) <= {*range(world)} or len({*members}) < len(members):
        raise request.refusal(f"ranks={ranks} are no ranks of a world of {world}, each once")
    is_member = request.comm.rank in members
    own: Communicator = request.comm.transport
    if is_member:
        own = own.subgroup(members)
    is_local = request.arguments.get("use_local_synchronization", False)
    if is_member or not is_local:
        with request.under_way(None, request.name, tuple(members)):
            (own if is_local else request.comm).barrier()
    return ThreadGroup(own, members) if is_member else dist.GroupMember.NON_GROUP_MEMBER


ANSWERS: dict[str, Answer] = {
    "is_initialized": lambda _request: True,
    "get_rank": lambda request: request.comm.rank,
    "get_world_size": lambda request: request.comm.world_size,
    "get_backend": lambda _request: dist.Backend("gloo"),
    "get_process_group_ranks": lambda request: [*request.ranks],
    "get_global_rank": lambda request: request.ranks[request.arguments["group_rank"]],
    "get_group_rank": lambda request: request.ranks.index(request.arguments["global_rank"]),
    "new_group": _new_group,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "all_gather": Move("all_gather", "tensor", "tensor_list"),
    "all_gather_into_tensor": Move("all_gather", "input_tensor", "output_tensor"),
    "all_gather_single": Move("all_gather", "input_tensor", "output_tensor"),
    "gather": Move("gather", "tensor", "gather_list"),
    "scatter": Move("scatter", "scatter_list", "tensor"),
    "broadcast": Move("broadcast", "tensor", "tensor"),
    "all_to_all": Move("all_to_all", "input_tensor_list", "output_tensor_list"),
    "all_to_all_single": _all_to_all_single,
    "all_reduce": Move("all_reduce", "tensor", "tensor"),
    "reduce": Move("reduce", "tensor", "tensor"),
    "reduce_scatter": Move("reduce_scatter", "input_list", "output"),
    "reduce_scatter_tensor": Move("reduce_scatter", "input", "output"),
    "reduce_scatter_single": Move("reduce_scatter", "input", "output"),
}
_UNSUPPORTED = (
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "batch_isend_irecv",
    "destroy_process_group",
    "init_process_group",
    "irecv",
    "isend",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
)
_replacing = Replacing()
_signature = functools.cache(inspect.signature)


@contextlib.contextmanager
def routed() -> Iterator[None]:
    """Let ``torch.distributed``'s functions talk through a rank's communicator, on threads.

    Inside the block the functions of ``torch.distributed`` are replaced, for the whole process; a
    thread whose current communicator is not one of a ThreadWorld gets torch's own functions as
    before. Blocks may nest and overlap; the last one to end puts everything back. Names that were
    imported before the block (``from torch.distributed import all_gather``) are not replaced.
    ``new_group`` and similar functions make groups.

    Raises:
        ConfigurationError: inside: a ``DeviceMesh`` or a point-to-point call, which are not
            supported.
        InputError: inside: a call that gloo refuses, too.

    >>> import torch
    >>> from distmetrics.testing import run
    >>> def total(comm):
    ...     value = torch.tensor(comm.rank + 1)
    ...     torch.distributed.all_reduce(value)
    ...     return int(value)
    >>> with routed():
    ...     run(3, total)
    [6, 6, 6]
    """
    with _replacing.block(_replacements):
        yield


def _replacements() -> list[Name]:
    theirs = vars(dist)
    ours = ANSWERS | dict.fromkeys(_UNSUPPORTED)
    names = []
    for name, answer in ours.items():
        if name in theirs:  # some came with a later torch than the oldest that is supported
            replacement = _dispatching(name, theirs[name], answer)
            names.append(Name(theirs, name, replacement))
    return names


def _dispatching(
    name: str,
    original: Callable[..., Any],
    ours: Answer | None,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        comm = used()
        if comm is None or not isinstance(comm.transport, ThreadCommunicator):
            return original(*args, **kwargs)
        if ours is None:
            raise ConfigurationError(
                f"torch.distributed.{name} is not supported in a world of threads",
                do="run this test on real processes, with backend='gloo'.",
            )
        bound = _signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments.get("group") is dist.GroupMember.NON_GROUP_MEMBER:
            return original(*args, **kwargs)  # which needs no world to answer
        return ours(Request.of(comm, name, bound.arguments))

    return function

"""Watch collectives of torch.distributed that do not pass through distmetrics, by explicit wish."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_stack
from typing import Any

import torch.distributed as dist
from torch import Tensor

from distmetrics.call_site import call_site, is_library, users_line
from distmetrics.collectives.buckets import LeafSpec
from distmetrics.collectives.exchange import agree_on
from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator, Finished, call_under_way, chosen, in_call
from distmetrics.comm.patching import Name
from distmetrics.comm.process_group import GroupCommunicator, watching
from distmetrics.errors import Site
from distmetrics.guard.settings import current_settings


@contextmanager
def guarded_epoch(name: str = "", *, comm: Communicator | None = None) -> Iterator[None]:
    """Check at the end of the block that all ranks came through it with the same calls.

    It finds a rank that left a loop early, before its next collective meets another one of the
    other ranks. Where the block raises on one rank, the others are told at once, also if that rank
    catches the error and goes on. In the mode "off" it checks nothing.

    Args:
        name: shown in errors.
        comm: default the current communicator; of a layout, all ranks of its mesh.

    Raises:
        MismatchError: a rank is at another call, or has made another number of calls (on every
            rank).
        PeerLostError: another rank left the block by an exception, or has ended.

    >>> from distmetrics import ThreadWorld, all_reduce
    >>> def epoch(comm):
    ...     with guarded_epoch("train"):
    ...         for _ in range(2):
    ...             all_reduce(1)
    >>> ThreadWorld(2).run(epoch)
    [None, None]
    """
    comm = chosen(comm).whole
    if current_settings().mode == "off":
        yield
        return
    before = getattr(comm, "calls", 0)
    try:
        yield
    except BaseException as error:
        if isinstance(comm, GroupCommunicator):
            comm.give_up(error, f"guarded_epoch {name}".rstrip())
        raise
    made = f"{getattr(comm, 'calls', 0) - before} collectives"
    agree_on(Header("end of guarded_epoch", name, made, site=call_site()), comm=comm)


#: The collectives that :func:`watch` watches, each with the name of its argument that must have the
#: same dtype and shape on all ranks, or "".
WATCHED: Mapping[str, str] = {
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_object": "",
    "all_reduce": "tensor",
    "all_to_all": "",
    "all_to_all_single": "",
    "barrier": "",
    "broadcast": "tensor",
    "broadcast_object_list": "",
    "gather": "tensor",
    "gather_object": "",
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "input",
    "scatter": "tensor",
    "scatter_object_list": "",
}
_ENDS = ("src", "dst", "group_src", "group_dst")
_CALLED = ("torch.distributed", "torch.distributed.distributed_c10d")
_KEEP = ("torch", "distmetrics")  # packages whose modules keep their names


@contextmanager
def watch() -> Iterator[None]:
    """Compare and watch every collective of ``torch.distributed`` inside the block.

    Each of :data:`WATCHED` is replaced for the length of the block, in ``torch.distributed`` and in
    every module not of torch's that took it by name (``from torch.distributed import all_reduce``),
    and put back afterwards. Before data moves, all ranks compare their calls in one more round. So
    the collectives of torchmetrics, Lightning and Accelerate end in the same errors as those of
    distmetrics. Not watched: a function that an object or a default argument holds, sends and
    receives between two ranks, and what DistributedDataParallel sends from its C++ code.

    Raises:
        MismatchError: inside: ranks make different calls (on every rank, before data moves).
        DivergedError: inside: a rank waits elsewhere, or has returned.
        PeerLostError: inside: a rank has failed or ended.

    >>> with watch():
    ...     pass
    """
    with watching.block(_names):
        yield


def _names() -> list[Name]:
    """Return every name of a watched function, but those in modules that users do not call."""
    watched = {id(getattr(dist, name)): _watched(name, getattr(dist, name)) for name in WATCHED}
    names: list[Name] = []
    for title, module in [*sys.modules.items()]:
        where = getattr(module, "__dict__", None)
        is_kept = title.partition(".")[0] in _KEEP and title not in _CALLED
        if is_kept or type(where) is not dict:
            continue
        names += [Name(where, n, watched[id(v)]) for n, v in [*where.items()] if id(v) in watched]
    return names


def _watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        comm = None if call_under_way() else _communicator(arguments.get("group"))
        if comm is None:
            return original(*args, **kwargs)
        header = _header(name, arguments)
        agree_on(header, comm=comm)
        with in_call(header.call()):
            # Not waited for here, or a function that can't be waited for in slices.
            if arguments.get("async_op", True):
                return original(**arguments)
            arguments["async_op"] = True
            return comm.run(header.op, lambda: _work(original(**arguments)))

    return call


def _communicator(group: Any) -> GroupCommunicator | None:
    """Return the communicator of a group that this rank is in with others; None for others."""
    if not dist.is_initialized() or group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    comm = GroupCommunicator.of(dist.group.WORLD if group is None else group)
    return comm if comm.world_size > 1 else None


def _work(work: Any) -> Any:
    """Return what can be waited for; torch only collects some calls, to send them in one go."""
    return Finished() if work is None or type(work).__name__ == "_IllegalWork" else work


def _header(name: str, arguments: Mapping[str, Any]) -> Header:
    """Return what ranks compare of a call: its function, operation, ranks, tensor and metric."""
    parts = [f"torch.distributed.{name}"]
    if "op" in arguments:
        parts.append(str(arguments["op"]).rpartition(".")[2].lower())
    parts += [f"{end} {arguments[end]}" for end in _ENDS if arguments.get(end) is not None]
    tensor = arguments.get(WATCHED[name])
    leaves = (LeafSpec.of("", tensor),) if isinstance(tensor, Tensor) else ()
    metric, site = _caller()
    if metric:
        parts.append(f"in the sync of {metric}")
    return Header(" ".join(parts), leaves=leaves, site=site)


def _caller() -> tuple[str, Site | None]:
    """Return the metric that calls, if one does, and the nearest line that is no library's."""
    metric = ""
    for frame, line in walk_stack(None):
        owner = frame.f_locals.get("self")
        if not metric and hasattr(owner, "update") and hasattr(owner, "compute"):
            # Lightning's holder of a value that is logged has a name.
            logged = getattr(getattr(owner, "meta", None), "name", "")
            metric = f"{type(owner).__name__} {logged}".rstrip()
        site = users_line(frame, line)
        if site is not None and not is_library(frame.f_code.co_filename):
            return metric, site
    return metric, call_site()

"""``torch.distributed`` of a rank that is a thread: its functions go to the thread's communicator.

torchmetrics' and torcheval's own sync, and user code, call ``torch.distributed.all_gather`` and its
kin. In a world of threads there is no process group; inside :func:`routed` those calls reach the
world of threads instead, which is as strict as gloo and decides deadlocks.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from distmetrics.comm.communicator import used
from distmetrics.comm.patching import Name, Replacing
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.errors import ConfigurationError
from distmetrics.testing.fake_torch_distributed.collectives import ANSWERS, Answer
from distmetrics.testing.fake_torch_distributed.request import Request

__all__ = ["routed"]

_UNSUPPORTED = (
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "batch_isend_irecv",
    "destroy_process_group",
    "init_process_group",
    "irecv",
    "isend",
    "recv",
    "recv_object_list",
    "send",
    "send_object_list",
    "split_group",
)
_replacing = Replacing()
_signature = functools.cache(inspect.signature)


@contextmanager
def routed() -> Iterator[None]:
    """Let ``torch.distributed``'s functions talk through a rank's communicator, on threads.

    Inside the block the attributes of ``torch.distributed`` are replaced, for the whole process; a
    thread whose communicator in force is not one of a ThreadWorld gets torch's own functions as
    before. Blocks may nest and overlap; the last one to end puts everything back. Names that were
    imported from ``torch.distributed`` before the block
    (``from torch.distributed import all_gather``) are not reached. Groups are made by
    ``new_group`` and its kin. A ``DeviceMesh``, point-to-point calls and what gloo refuses raise an
    error.

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

"""What the calls share: their table, their checks, their results. What gloo refuses is refused, by
name.

What gloo does wrong without a word is refused too: it reduces and broadcasts the memory behind a
tensor that is not contiguous, and not its elements.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.base import Call, Communicator, brief, call_site, in_call
from distmetrics.errors import InputError, InputTypeError

F = TypeVar("F", bound=Callable[..., Any])

CALLS: dict[str, Callable[..., Any]] = {}
"""What stands for a function of ``torch.distributed``, by its name; called with the communicator before the rest."""
_REFUSED = frozenset(
    {torch.int16, torch.uint16, torch.uint32, torch.uint64}
)  # by gloo, as every 8-bit float


def stands_for(*names: str) -> Callable[[F], F]:
    """Enter a function in :data:`CALLS`."""

    def enter(function: F) -> F:
        CALLS.update(dict.fromkeys(names, function))
        return function

    return enter


@contextlib.contextmanager
def call(name: str, group: Any, *tensors: Any, exact: tuple[Hashable, ...] = ()) -> Iterator[None]:
    """Check what every function checks, and name the call for reports."""
    check_group(name, group)
    for tensor in tensors:
        check_tensor(name, tensor)
    detail = brief(tensors[0].dtype, tensors[0].shape) if tensors else ""
    with in_call(Call(f"torch.distributed.{name}", detail, call_site(), exact)), torch.no_grad():
        yield


def split(name: str, what: str, tensor: Any, world_size: int) -> list[Tensor]:
    """Cut a tensor into one part a rank, along its first dimension."""
    check_tensor(name, tensor)
    if not tensor.ndim or tensor.shape[0] % world_size:
        raise refusal(
            name,
            f"{what} has shape {list(tensor.shape)}, which {world_size} ranks can't share evenly",
        )
    return list(tensor.chunk(world_size)) if tensor.shape[0] else [tensor] * world_size


def root_rank(
    comm: Communicator,
    name: str,
    what: str,
    rank: int | None,
    group_rank: int | None,
    default: int | None = None,
) -> int:
    """Choose between a rank and a rank in the group, of which one may be given."""
    if rank is not None and group_rank is not None:
        raise refusal(name, f"{what}={rank} and group_{what}={group_rank} cannot both be given")
    chosen = next((given for given in (rank, group_rank, default) if given is not None), None)
    if chosen is None:
        raise refusal(name, f"needs {what}=, a rank")
    if not 0 <= chosen < comm.world_size:
        raise refusal(name, f"{what}={chosen} is no rank of a world of {comm.world_size}")
    return chosen


def check_group(name: str, group: Any) -> None:
    """Refuse a group that is not the whole world."""
    if group is not None and group is not dist.group.WORLD:
        raise InputError(
            f"torch.distributed.{name}: got a process group, and in a world of threads there is "
            "only the whole world",
            do="leave group out, or use comm.subgroup(ranks) of the rank's communicator.",
        )


def check_tensor(name: str, tensor: Any) -> None:
    """Refuse what gloo can't send."""
    if not isinstance(tensor, Tensor):
        raise InputTypeError(
            f"torch.distributed.{name}: needs a tensor, got a {type(tensor).__name__}"
        )
    if tensor.layout != torch.strided:
        raise refusal(
            name, f"a tensor of layout {tensor.layout} is not supported in a world of threads"
        )
    if tensor.dtype in _REFUSED or (tensor.is_floating_point() and tensor.element_size() == 1):
        raise refusal(name, f"gloo cannot send {tensor.dtype}")


def check_contiguous(name: str, *tensors: Any) -> None:
    """Refuse tensors whose memory is not their elements."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise refusal(
                name,
                f"the tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} "
                "is not contiguous; "
                "gloo would move the memory behind it, and not its elements",
            )


def check_list_at(name: str, what: str, values: Any, role: str, *, is_root: bool) -> None:
    """Refuse a list that is missing on the rank that needs it, or given elsewhere."""
    if bool(values) is not is_root:
        rule = "is needed on the" if is_root else "may only be given on the"
        raise refusal(name, f"{what} {rule} {role} rank")


def check_outputs(name: str, what: str, tensors: Any, like: Tensor, world_size: int) -> None:
    """Refuse a list that is not one tensor like ``like`` for each rank."""
    if not isinstance(tensors, list):
        raise InputTypeError(
            f"torch.distributed.{name}: {what} must be a list of tensors, got a "
            f"{type(tensors).__name__}"
        )
    if len(tensors) != world_size:
        raise refusal(name, f"{what} has {len(tensors)} tensors for {world_size} ranks")
    for index, tensor in enumerate(tensors):
        check_alike(name, f"{what}[{index}]", tensor, like.dtype, like.shape)


def check_alike(
    name: str, what: str, tensor: Any, dtype: torch.dtype, shape: Sequence[int]
) -> None:
    """Refuse a tensor of another dtype or shape."""
    check_tensor(name, tensor)
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise refusal(
            name, f"{what} must be {brief(dtype, shape)}, got {brief(tensor.dtype, tensor.shape)}"
        )


def refusal(name: str, text: str) -> InputError:
    """Build the error of function ``name``."""
    return InputError(f"torch.distributed.{name}: {text}")


class Finished:
    """The handle of a call with ``async_op=True``, which has ended before the caller sees it."""

    def __init__(self, results: list[Tensor]) -> None:
        self._results = results

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Always so."""
        return True

    def is_success(self) -> bool:
        """Always so: who fails raises instead."""
        return True

    def exception(self) -> None:
        """None: who fails raises instead."""

    def result(self) -> list[Tensor]:
        """The outputs."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future that is there."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self._results)
        return future


def end(async_op: bool, *results: Tensor) -> Finished | None:
    """Return what a call returns: a handle of its outputs, if it was asked for."""
    return Finished(list(results)) if async_op else None


def fill(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values to where the caller wants them."""
    for output, value in zip(outputs, values, strict=True):
        output.copy_(value)

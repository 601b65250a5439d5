"""One call of a function of ``torch.distributed`` by one rank, with the checks that calls share.

What gloo refuses is refused here, by name. What gloo does wrong without an error is refused too: it
reduces and broadcasts the memory behind a tensor that is not contiguous, and not its elements.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.comm.communicator import Call, Communicator, brief, in_call
from distmetrics.errors import InputError, InputTypeError

BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
OPERATIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", *BITWISE)
# gloo refuses these, and every 8-bit float.
_REFUSED_DTYPES = frozenset({torch.int16, torch.uint16, torch.uint32, torch.uint64})
_ROLES = {"dst": "destination", "src": "source"}


@dataclass(frozen=True, eq=False)
class ThreadGroup:
    """A process group of a world of threads, as one of its ranks has it.

    Attributes:
        communicator: of the group.
        ranks: its ranks, as the world numbers them.
    """

    communicator: Communicator
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Request:
    """A call.

    Attributes:
        comm: the rank's communicator of the group.
        name: the function of ``torch.distributed``.
        arguments: by torch's names for them, defaults included.
        ranks: of the group, as the world numbers them.
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
        if root is None:
            root = default if in_group is None else in_group
            if root is None:
                raise self.refusal(f"needs {side}=, a rank")
            known: Sequence[int] = range(self.comm.world_size)
        else:
            known = self.ranks
        if root not in known:
            raise self.refusal(f"{side}={root} is no rank of a world of {self.comm.world_size}")
        return known.index(root)

    def check_only_at(self, root: int, side: str, what: str) -> None:
        """Refuse a list that is missing on the rank that needs it, or given on another."""
        is_root = self.comm.rank == root
        if bool(self.arguments[what]) is not is_root:
            rule = "is needed on the" if is_root else "may only be given on the"
            raise self.refusal(f"{what} {rule} {_ROLES[side]} rank")

    def operation(self, tensor: Tensor) -> str:
        """Return the name of a reduction's operation, if the tensor's dtype has it."""
        op = self.arguments["op"]
        same = [name for name in OPERATIONS if op == getattr(dist.ReduceOp, name)]
        if not same:
            raise self.refusal(
                f"op={op!r} is not supported in a world of threads; supported: "
                f"{', '.join(OPERATIONS)}"
            )
        name = same[0]
        is_integral = not tensor.is_floating_point() and not tensor.is_complex()
        if name in BITWISE and not is_integral:
            raise self.refusal(f"ReduceOp.{name} needs integers, got {tensor.dtype}")
        if name == "AVG" and is_integral:
            raise self.refusal(f"the mean of {tensor.dtype} is none; gloo refuses it")
        if name not in ("SUM", "AVG") and tensor.is_complex():
            raise self.refusal(f"ReduceOp.{name} does not exist for complex numbers")
        return name

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

    def check_alike(
        self,
        what: str,
        value: Any,
        dtype: torch.dtype,
        shape: Sequence[int],
    ) -> Tensor:
        """Return ``value``, a tensor of this dtype and shape."""
        tensor = self.tensor(value)
        if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
            raise self.refusal(
                f"{what} must be {brief(dtype, shape)}, got {brief(tensor.dtype, tensor.shape)}"
            )
        return tensor

    def check_list(self, what: str, values: Any, like: Tensor) -> list[Tensor]:
        """Return ``values``, a list of one tensor like ``like`` for each rank."""
        if not isinstance(values, list):
            raise self.refusal(
                f"{what} must be a list of tensors, got a {type(values).__name__}",
                InputTypeError,
            )
        size = self.comm.world_size
        if len(values) != size:
            raise self.refusal(f"{what} has {len(values)} tensors for {size} ranks")
        for index, value in enumerate(values):
            self.check_alike(f"{what}[{index}]", value, like.dtype, like.shape)
        return values

    def rows(self, what: str, tensor: Tensor) -> list[Tensor]:
        """Cut a tensor into one part for each rank, along its first dimension."""
        size = self.comm.world_size
        if not tensor.ndim or tensor.shape[0] % size:
            raise self.refusal(
                f"{what} has shape {list(tensor.shape)}, which {size} ranks can't share evenly"
            )
        return list(tensor.view(size, -1, *tensor.shape[1:]).unbind())

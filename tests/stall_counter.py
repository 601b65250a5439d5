"""Where a function waits for its device: what it reads of it, and what it copies.

A GPU works off a queue. A line that needs a value of a tensor, be it ``.item()`` or a size that
depends on values, waits until the queue is empty, and until then nothing new can be queued. Which
operations those are torch itself knows, by tags; where they are called a mode sees on any machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from distmetrics.call_site import users_line
from distmetrics.errors import Site

_VALUE = "a value is read"
_SIZE = "a size depends on values"
_TO_HOST = "a copy to the host"
_TO_DEVICE = "a copy to the device"

_ATEN = torch.ops.aten
_PUTS = (_ATEN.index_put, _ATEN.index_put_)
# They read values on a GPU, and no tag says so.
_UNTAGGED = (_ATEN.equal, _ATEN.multinomial, _ATEN._linalg_check_errors)
# On the CPU these check values, which they take on trust on a GPU.
_CHECKED = ("one_hot", "quantile", "nanquantile")
_READERS = ("cpu", "tolist", "numpy", "__array__", "__repr__")
_LISTS = ("tensor", "as_tensor", "asarray")
_MAKERS = (*_LISTS, "new_tensor")
_MOVERS = ("to", "cpu", "type")
_TORCH = str(Path(torch.__file__).parent)
_HOST = torch.device("cpu")
# What a tensor of the CPU says of itself while it passes for one of a device: other than the CPU,
# and yet a device of which tensors can be made.
_PRETENDED = torch.device("cpu", 0)
_DEVICE_OF: Any = Tensor.device.__get__
# Tensors of the CPU that were made while a function was looked at. They stay the host's when it is
# looked at again, as the steps that an optimizer counts.
_OF_THE_HOST: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Stall:
    """A line that waits for the device: torch's name of the operation, what it waits for, where, and how often."""

    op: str
    why: str
    site: Site | None
    count: int


def stalls(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Stall]:
    """Call a function once, and return the lines that wait for the device, in order.

    No device is needed. Tensors that are there before the call pass for ones of a device, and so does what is computed
    from them, and what is made with ``device=x.device``; others, as ``torch.tensor(1.0)``, are the host's. Backward
    passes that the function runs count as well. Compiled functions run as they were written. What a kernel waits for by
    itself cannot be seen.
    """
    seen = _Seen()
    with _uncompiled(), _Operations(seen), _Functions(seen):
        fn(*args, **kwargs)
    return [Stall(*key, count) for key, count in seen.found.items()]


def _uncompiled() -> AbstractContextManager[Any]:
    """Return a block in which compiled functions run as they were written."""
    if "torch._dynamo" not in sys.modules:  # then none is
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


class _Seen:
    """What was found. ``is_muted``: what happens now does not happen on a device, or is counted already."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str, Site | None]] = Counter()
        self.is_muted = False

    def add(self, op: str, why: str) -> None:
        if not self.is_muted:
            self.found[op, why, _site()] += 1


def is_on_device(x: Tensor) -> bool:
    """Whether a tensor passes for one of a device."""
    return x not in _OF_THE_HOST


def place(made: Any, on_device: bool) -> None:
    """Remember where tensors are."""
    for x in tensors_of(made):
        if on_device:
            _OF_THE_HOST.pop(x, None)
        else:
            _OF_THE_HOST[x] = True


def _site() -> Site | None:
    """Return the nearest line that is neither torch's, nor distmetrics', nor this file's."""
    frame = sys._getframe(1)
    while frame is not None:
        is_own = frame.f_code.co_filename == __file__
        if not is_own and (site := users_line(frame, frame.f_lineno)):
            return site
        frame = frame.f_back
    return None


def tensors_of(tree: Any) -> list[Tensor]:
    """Return all tensors of arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation, of a backward pass too."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func.overloadpacket
        where = [is_on_device(x) for x in tensors_of((args, kwargs))]
        for why in self._reasons(func, args, kwargs) if any(where) or op is _ATEN._to_copy else ():
            self.seen.add(op.__name__, why)
        result = func(*args, **kwargs)
        if op is _ATEN.lift_fresh or not any(where):
            place(result, on_device=False)
        elif op is not _ATEN.copy_:
            place(result, on_device=True)
        return result

    def _reasons(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
        """Return why an operation on a tensor of a device must wait."""
        op = func.overloadpacket
        if op in (_ATEN.copy_, _ATEN._to_copy):
            return self._copies(args, kwargs)
        if op is _ATEN.index or op in _PUTS:
            return self._indexes(op, args)
        if op is _ATEN.repeat_interleave and kwargs.get("output_size") is not None:
            return []
        if torch.Tag.dynamic_output_shape in func.tags:
            return [_SIZE]
        is_read = torch.Tag.data_dependent_output in func.tags or op in _UNTAGGED
        return [_VALUE] if is_read else []

    def _copies(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
        """Return why a copy waits: it leads from one side to the other."""
        if not isinstance(args[1] if len(args) > 1 else None, Tensor):  # moves are seen by their calls
            return []
        after, before = map(is_on_device, args[:2])
        waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        return [_TO_DEVICE if after else _TO_HOST] if waits and before != after else []

    def _indexes(self, op: Any, args: Sequence[Any]) -> list[str]:
        """Return why indexing waits: for the size of a mask, or for indices of the host."""
        indices = [x for x in args[1] if x is not None]
        found = [_TO_DEVICE for x in indices if not is_on_device(x)]
        fills = op in _PUTS and args[2].numel() == 1 and not is_on_device(args[2])
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices) and not fills:
            found.append(_SIZE)
        return found


class _Functions(TorchFunctionMode):
    """Sees each call of torch: what is no operation on the CPU, and would be one on a device."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.seen.is_muted:
            return func(*args, **kwargs)
        if func == _DEVICE_OF:
            return _PRETENDED if is_on_device(args[0]) else func(*args)
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_code
        after = self._place(name, args, kwargs, caller.co_filename.startswith(_TORCH))
        where = [is_on_device(x) for x in tensors_of((args, kwargs))]
        after = any(where) if after is None else after
        self._count(name, args, kwargs, where, after)
        # An optimizer keeps its steps on the host, wherever its weights are.
        self.seen.is_muted = name in (*_READERS, *_CHECKED) or caller.co_name == "_get_value"
        try:
            result = func(*_plain(args), **_plain(kwargs))
        finally:
            self.seen.is_muted = False
        if args and result is args[0]:  # changed in place, or moved to where the CPU says it is
            if name not in _MOVERS or where[0] == after:
                return result
            result = result.clone()
        place(result, after)
        return result

    def _place(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], is_torchs: bool) -> bool | None:
        """Return whether results are on the device; None if they are where the arguments are."""
        named = kwargs.get("device") or (args[1] if name == "to" and len(args) > 1 else None)
        if isinstance(named, str):
            return torch.device(named) == _PRETENDED
        if isinstance(named, Tensor):
            return is_on_device(named)
        for device in (named, *args):
            # Torch's own code has not asked us where a tensor is: its CPU may be the device.
            if isinstance(device, torch.device) and not (is_torchs and device == _HOST):
                return device == _PRETENDED
        if name in _READERS or (name in _LISTS and not isinstance(_data(name, args), Tensor)):
            return False
        return None

    def _count(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        where: Sequence[bool],
        after: bool,
    ) -> None:
        """Count what only the call tells: copies, and values of the host that become a tensor."""
        if name in _MAKERS and not isinstance(_data(name, args), Tensor):
            for _ in range(sum(where[1:] if name == "new_tensor" else where)):
                self.seen.add(name, _VALUE)
            if after:
                self.seen.add(name, _TO_DEVICE)
        elif name in _READERS or name in _MOVERS:
            if where[0] != after and not kwargs.get("non_blocking"):
                self.seen.add(name, _TO_DEVICE if after else _TO_HOST)
        elif name == "one_hot" and len(args) < 2 and kwargs.get("num_classes", -1) < 0:
            self.seen.add(name, _SIZE)


def _data(name: str, args: Sequence[Any]) -> Any:
    """Return what a tensor is made of."""
    place = 1 if name == "new_tensor" else 0
    return args[place] if len(args) > place else None


def _plain(tree: Any) -> Any:
    return tree_map_only(torch.device, lambda x: _HOST if x == _PRETENDED else x, tree)

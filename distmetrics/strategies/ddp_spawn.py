"""DistributedDataParallel in processes that start with a call of the trainer and end with it."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.outcome import settle
from distmetrics.errors import InputTypeError
from distmetrics.launch.processes import launch
from distmetrics.launch.script import naming_the_lost
from distmetrics.strategies.parallel import DataParallelStrategy

__all__ = ["DDPSpawn", "find_unpicklable"]

T = TypeVar("T")


class DDPSpawn(DataParallelStrategy):
    """One process a device, started for each call and ended with it; gradients averaged over all.

    The ranks work on pickled copies: module, data, callbacks and trainer must be picklable, the script needs
    an ``if __name__ == "__main__":`` guard, and what comes back is rank 0's weights and the trainer's and
    callbacks' state, not other attributes that a step has set.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name: ClassVar[str] = "ddp_spawn"
    isolated: ClassVar[bool] = True

    def launch(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn(*args)`` in ``devices`` new processes; return rank 0's result.

        Raises:
            InputTypeError: something can't be pickled; the text says which attribute.
            Exception: the error of the rank that failed first.
        """
        try:
            outcomes = launch(_rank, self.devices, fn, args, backend=self.backend, start_method="spawn")
        except (InputTypeError, pickle.PicklingError, TypeError, AttributeError) as error:
            named = zip(inspect.signature(fn).parameters, args, strict=False)
            path = next((found for name, arg in named if (found := find_unpicklable(arg, name))), None)
            if path is None:
                raise
            raise InputTypeError(
                f"{path} cannot be sent to the processes of strategy='ddp_spawn': {_reason(error)}\n"
                "Likely: a lambda, a local function or class, an open file, a lock or a generator.\n"
                "Do:     move it to the top level of a module, make it in setup(), or use strategy='ddp', "
                "which runs the script once a rank and pickles nothing."
            ) from error
        result: T = settle(outcomes)[0]
        return result


def _rank(comm: GroupCommunicator, fn: Callable[..., T], args: tuple[Any, ...]) -> T | None:
    with naming_the_lost(comm):
        value = fn(*args)
    return value if comm.rank == 0 else None


def find_unpicklable(value: Any, path: str) -> str | None:
    """Return the path of the innermost part of ``value`` that can't be pickled, or None if all of it can.

    >>> from types import SimpleNamespace
    >>> find_unpicklable(SimpleNamespace(size=2, rows=[iter([]), (n for n in [])]), "data")
    'data.rows[1]'
    """
    return _search(value, path, set())


def _search(value: Any, path: str, seen: set[int]) -> str | None:
    if id(value) in seen or _can_be_pickled(value):
        return None
    seen.add(id(value))
    parts = (_search(part, path + step, seen) for step, part in _parts(value))
    return next((found for found in parts if found is not None), path)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """List what an object consists of, and how one writes it: modules as attributes, not as ``_modules['x']``."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    else:
        for name, part in getattr(value, "__dict__", {}).items():
            if name in ("_modules", "_parameters", "_buffers"):
                yield from ((f".{inner}", child) for inner, child in part.items())
            else:
                yield f".{name}", part


def _can_be_pickled(value: Any) -> bool:
    dumps = [pickle.dumps]
    with contextlib.suppress(ImportError):
        import cloudpickle

        dumps.append(cloudpickle.dumps)
    for dump in dumps:
        with contextlib.suppress(Exception):  # any class may raise anything from its own pickling
            dump(value)
            return True
    return False


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0].removeprefix("this cannot be sent to another process: ")

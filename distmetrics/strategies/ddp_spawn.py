"""DistributedDataParallel in processes that start with a call of the trainer and end with it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.outcome import settle
from distmetrics.errors import InputTypeError
from distmetrics.launch.processes import launch
from distmetrics.launch.script import naming_the_lost
from distmetrics.preflight import find_unpicklable
from distmetrics.strategies.parallel import DataParallelStrategy

__all__ = ["DDPSpawn"]

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
            found = [part for name, arg in named for part in find_unpicklable(arg, name)]
            if not found:
                raise
            raise InputTypeError(
                f"{found[0].path} cannot be sent to the processes of strategy={self.name!r}\n\n"
                + "".join(f"  {part}\n" for part in found)
                + "\nDo:     that, or use strategy='ddp', which runs the script once a rank and pickles nothing."
            ) from error
        result: T = settle(outcomes)[0]
        return result


def _rank(comm: GroupCommunicator, fn: Callable[..., T], args: tuple[Any, ...]) -> T | None:
    with naming_the_lost(comm):
        value = fn(*args)
    return value if comm.rank == 0 else None

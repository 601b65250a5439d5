"""A communicator that faults strike through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from distmetrics.comm.base import Call, Communicator, Op, Passing, under_way
from distmetrics.errors import ConfigurationError
from distmetrics.testing.faults.fault import METHODS, At, Fault
from distmetrics.testing.faults.strike import strike

R = TypeVar("R")


@dataclass
class _Clock:
    """How many collectives this rank has made, and how many rounds of the user's call that is under
    way.
    """

    number: int = 0
    round: int = 0
    call: Call | None = None

    def tick(self) -> None:
        """Count one more. A sync names its first rounds; rounds without a name go on with what came
        before.
        """
        call = under_way()
        named = call if call is not None and not call.op.startswith("torch.distributed.") else None
        self.round = 1 if named is not None and named is not self.call else self.round + 1
        self.call = named or self.call
        self.number += 1

    def shows(self, at: At, op: str) -> bool:
        """Whether this is the place ``at``."""
        if isinstance(at, int):
            return at == self.number
        if at in ("manifest", "data"):
            return self.round == (1 if at == "manifest" else 2)
        call = under_way()
        names = (
            [op, call.op.partition(' "')[0].removeprefix("torch.distributed.")]
            if call is not None
            else [op]
        )
        return any(at in (name, name.partition(" ")[0]) for name in names)


@dataclass
class FaultyCommunicator(Passing):
    """Passes every call on to ``inner``, but where a fault strikes."""

    inner: Communicator
    faults: Sequence[Fault]
    _waiting: list[Fault] = field(init=False)
    _clock: _Clock = field(init=False, default_factory=_Clock)
    _deferred: list[Callable[[], object]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._waiting = [fault for fault in self.faults if fault.rank == self.inner.rank]

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Pass on; alone, every rank has sent ``x``."""
        return self._pass(
            "all_gather",
            lambda sent: self.inner.all_gather(sent[0]),
            [x],
            lambda: [x.detach().clone() for _ in range(self.world_size)],
        )

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Pass on; alone, the result is ``x``."""
        return self._pass(
            f"all_reduce {op}",
            lambda sent: self.inner.all_reduce(sent[0], op),
            [x],
            lambda: x.detach().clone(),
        )

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Pass on; alone, every rank gave what this one keeps for itself."""
        return self._pass(
            "all_to_all",
            self.inner.all_to_all,
            list(parts),
            lambda: [parts[self.rank].detach().clone() for _ in range(self.world_size)],
        )

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Pass on; alone, the result is ``x``."""
        return self._pass(
            f"broadcast from rank {src}",
            lambda sent: self.inner.broadcast(sent[0], src),
            [x],
            lambda: x.detach().clone(),
        )

    def barrier(self) -> None:
        """Pass on; alone, nobody is waited for."""
        self._pass("barrier", lambda _: self.inner.barrier(), [], lambda: None)

    def reach(self, method: str) -> None:
        """Let what waits for a method of a metric strike."""
        for fault in [fault for fault in self._waiting if fault.at == method]:
            self._waiting.remove(fault)
            strike(fault, self.inner)

    @property
    def watches(self) -> bool:
        """Whether a fault waits for a method of a metric."""
        return any(fault.at in METHODS for fault in self._waiting)

    def check_struck(self) -> None:
        """Raise if a fault has not struck.

        Raises:
            ConfigurationError: names the faults, and how far the rank got.
        """
        if self._deferred:
            raise ConfigurationError(
                f"swap on rank {self.rank}: no collective followed the one to be swapped",
                do="choose an earlier one, or skip it.",
            )
        if self._waiting:
            raise ConfigurationError(
                f"{', '.join(map(str, self._waiting))}: never reached; rank {self.rank} made "
                f"{self._clock.number} collectives",
                likely="a sync whose data rode along with its manifest has no second round.",
                do="choose another place, or number: 1 is the first collective.",
            )

    def _pass(
        self,
        op: str,
        perform: Callable[[list[Tensor]], R],
        sent: list[Tensor],
        alone: Callable[[], R],
    ) -> R:
        self._clock.tick()
        due = [
            fault
            for fault in self._waiting
            if fault.at not in METHODS and self._clock.shows(fault.at, op)
        ]
        for fault in due:
            self._waiting.remove(fault)
            if fault.kind in ("skip", "swap"):
                if fault.kind == "swap":
                    self._deferred.append(
                        functools.partial(perform, [x.detach().clone() for x in sent])
                    )
                return alone()
            sent = _changed(fault, op, sent) if fault.change is not None else sent
            strike(fault, self.inner)
        result = perform(sent)
        while self._deferred:
            self._deferred.pop()()
        return result


def _changed(fault: Fault, op: str, sent: list[Tensor]) -> list[Tensor]:
    assert fault.change is not None
    changed = [fault.change(x) for x in sent]
    if all(
        (new.dtype, new.shape) == (old.dtype, old.shape)
        for new, old in zip(changed, sent, strict=True)
    ):
        what = (
            f"{op} sends nothing"
            if not sent
            else f"what {op} sends has that dtype and shape already"
        )
        raise ConfigurationError(f"{fault}: changes nothing: {what}")
    return changed

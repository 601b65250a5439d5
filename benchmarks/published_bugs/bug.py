"""A published bug as a program: the way that was wrong, the line that mends it, and one process.

A program has its own small data, and a mesh of the kind that the thread is about.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from benchmarks.meshes import Claim
from distmetrics import LayoutError, layout, sync_and_compute
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.comm.verdict import Outcome, settle
from distmetrics.data.repeats import RepeatedSamplesWarning
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import outcomes

Backend = Literal["threads", "gloo"]
Place = Mapping[str, int]


class Bug:
    """A published bug; the docstring of a subclass says what was seen."""

    thread: ClassVar[str]  # where it was published
    mesh: ClassVar[str]  # axes, sizes and what they really hold, as ``layout`` is told
    # the number of one process that has all samples, where it is no more than that
    right: ClassVar[float]
    key: ClassVar[str] = ""  # which of the metrics is logged, where there are several
    # of the wrong number to the right one, where the thread has numbers
    ratio: ClassVar[float | None] = None
    held_twice: ClassVar[bool] = False  # whether what ranks hold shows that some hold the same

    def single(self) -> float:
        """Return the number of one process that has all samples."""
        return self.right

    def naive(self, comm: Any, place: Place) -> float:
        """Return what a rank logs in the way of the thread."""
        raise NotImplementedError

    def metrics(self, place: Place) -> Any:
        """Return the metrics of a rank after its batches; None where it has none."""
        raise NotImplementedError

    def read(self, values: Any) -> float:
        """Return the number that is logged, of what the metrics give."""
        return float(values[self.key] if self.key else values)

    def ours(self, comm: Any, place: Place) -> float:
        """Return what a rank logs with a layout, or with a flat communicator."""
        return self.read(sync_and_compute(self.metrics(place), comm=comm))

    @property
    def name(self) -> str:
        """Return what the bug is called: the repository and the number of its thread."""
        return self.thread.partition("/")[2]

    @property
    def claim(self) -> Claim:
        """Return the mesh and its roles."""
        return Claim.of(self.mesh)


class Seen(NamedTuple):
    """What the ranks of a program have logged."""

    bug: Bug  # the program
    single: float  # the number of one process
    naive: list[float | str]  # of each rank; the text of an error where it has raised one
    ours: list[float | str]  # of each rank
    warned: list[str]  # the warnings of the same metrics, synced without a layout
    # errors of each rank of the same metrics, over a layout in which every axis holds shards;
    # None where a rank has got a number
    refused: list[str | None]

    @property
    def is_right(self) -> bool:
        """True if every rank has the number of one process."""
        numbers = [one for one in self.ours if isinstance(one, float)]
        right = [math.isclose(one, self.single, rel_tol=1e-5) for one in numbers]
        return len(right) == len(self.ours) and all(right)


def look(bug: Bug, backend: Backend = "threads") -> Seen:
    """Run a program: in the way of the thread, with a layout, and without one."""
    world_size = bug.claim.ranks
    naive = outcomes(world_size, _naive, bug, backend=backend)
    ours = outcomes(world_size, _ours, bug, backend=backend)
    warned: list[str] = []
    refused: list[str | None] = []
    if bug.held_twice:
        with caught_warnings() as warned:
            flat = outcomes(world_size, _flat, bug, backend=backend)
        warned += [text for texts in settle(flat) for text in texts]
        refused = settle(outcomes(world_size, _all_shards, bug, backend=backend))
    return Seen(bug, float(bug.single()), _shown(naive), _shown(ours), warned, refused)


def _shown(ended: Sequence[Outcome]) -> list[float | str]:
    return [
        float(one.value) if one.error is None else f"{type(one.error).__name__}: {one.error}"
        for one in ended
    ]


def _place(bug: Bug, comm: Any) -> Place:
    return Mesh(bug.claim.sizes, {}).place(comm.rank)


def _naive(comm: Any, bug: Bug) -> float:
    return bug.naive(comm, _place(bug, comm))


def _ours(comm: Any, bug: Bug) -> float:
    ranks = layout(bug.claim.sizes, comm=comm, **bug.claim.roles)
    return bug.ours(ranks, _place(bug, comm))


@contextmanager
def caught_warnings() -> Iterator[list[str]]:
    """Yield the warnings of copies that the block gives, once it is over."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    kinds = [each for each in caught if issubclass(each.category, RepeatedSamplesWarning)]
    texts += [str(each.message) for each in kinds]


def _flat(comm: Any, bug: Bug) -> list[str]:
    # Threads share one list of warnings, which the caller has.
    if isinstance(comm.transport, ThreadCommunicator):
        bug.ours(comm, _place(bug, comm))
        return []
    with caught_warnings() as texts:
        bug.ours(comm, _place(bug, comm))
    return texts


def _all_shards(comm: Any, bug: Bug) -> str | None:
    ranks = layout(bug.claim.sizes, comm=comm, **dict.fromkeys(bug.claim.sizes, "shard"))
    try:
        bug.ours(ranks, _place(bug, comm))
    except LayoutError as error:
        return str(error)
    return None


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers between 0 and 1, the same wherever they are asked for."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def subgroup(comm: Any, bug: Bug, *axes: str) -> Any:
    """Return the communicator of the ranks that differ from this one along some axes."""
    return comm.subgroup(Mesh(bug.claim.sizes, {}).along(comm.rank, axes))


def total(comm: Any, number: float | Tensor) -> float:
    """Return the sum over the ranks of a communicator, as ``torch.distributed.all_reduce`` does."""
    return float(comm.all_reduce(torch.as_tensor(number, dtype=torch.float64), "sum"))

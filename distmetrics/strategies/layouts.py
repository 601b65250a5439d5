"""The flag ``layout``: what a job's ranks hold along the axes of a mesh.

The weights are every rank's business: the strategy's own communicator is of all ranks. Data is
dealt out to the layout's shards, and values go over it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from distmetrics.comm.communicator import use
from distmetrics.errors import ConfigurationError
from distmetrics.layouts.communicator import layout
from distmetrics.strategies.base import Strategy


def in_layout(strategy: Strategy, *, owners: bool) -> AbstractContextManager[Any]:
    """Return a block in which the strategy's layout is in force; every rank must call it.

    ``owners`` allows roles with an owner: some ranks are without values.

    Raises:
        ConfigurationError: the layout does not suit the strategy's ranks.
    """
    comm, wanted = strategy.comm(), strategy.layout
    if wanted is None:
        return nullcontext()
    if not isinstance(wanted, Mapping):
        with use(comm):
            ranks: Any = wanted()
    elif all(isinstance(each, int) for each in wanted.values()):
        ranks = layout.of(wanted, comm=comm)
    else:
        roles: dict[str, Any] = dict(wanted)
        ranks = layout(strategy.mesh_sizes(), comm=comm, **roles)
    if not isinstance(ranks, layout) or ranks.whole.world_size != comm.world_size:
        raise ConfigurationError(
            f"the function of layout= returned {ranks!r}, and no layout of the job's "
            f"{comm.world_size} ranks"
        )
    if ranks.mesh.owned and not owners:
        raise ConfigurationError(
            f"the trainer's steps run on every rank, and along the axis {ranks.mesh.owned[0]} only "
            "one coordinate has values",
            do="write the loop of a pipeline yourself, with Runner(layout=...).",
        )
    return use(ranks)

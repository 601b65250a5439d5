"""The flag ``layout``: what a job's ranks hold along the axes of a mesh.

The weights are every rank's business: the strategy's own communicator is of all ranks. Data is
dealt out to the layout's shards, and values go over it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from distmetrics.comm.communicator import use
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.layouts.communicator import layout
from distmetrics.strategies.base import Layout, Strategy

_FORMS = (
    'say sizes by the usual names, layout={"dp": 2, "tp": 2}; roles of the strategy\'s mesh, '
    'layout={"replicate": "shard", "shard": "same"}; or a function that returns a layout, which '
    'every rank calls: layout=functools.partial(distmetrics.layout, {"a": 2}, a="same").'
)


def check_layout(wanted: Any) -> None:
    """Refuse what is no value of the flag.

    Raises:
        InputTypeError: it is none.
    """
    if isinstance(wanted, layout):
        raise InputTypeError("layout= is a layout of the ranks that are here now", do=_FORMS)
    if wanted is None or (callable(wanted) and not isinstance(wanted, Mapping)):
        return
    is_mapping = isinstance(wanted, Mapping) and bool(wanted)
    kinds = {type(each) for each in wanted.values()} if is_mapping else set()
    if kinds not in ({int}, {str}):
        raise InputTypeError(f"layout= can't be {wanted!r}", do=_FORMS)


def in_layout(strategy: Strategy, *, owners: bool) -> AbstractContextManager[Any]:
    """Return a block in which the strategy's layout is in force; every rank must call it.

    Args:
        strategy: in a launch.
        owners: whether there may be roles with an owner: ranks without values.

    Raises:
        ConfigurationError: the layout does not suit the strategy's ranks.
    """
    if strategy.layout is None:
        return nullcontext()
    ranks = _made(strategy, strategy.layout)
    size = strategy.comm().world_size
    if ranks.whole.world_size != size:
        raise ConfigurationError(
            f"the layout is of {ranks.whole.world_size} ranks, and the job has {size}",
            do="make it of all ranks.",
        )
    if ranks.mesh.owned and not owners:
        raise ConfigurationError(
            f"the trainer's steps run on every rank, and along the axis {ranks.mesh.owned[0]} only "
            "one coordinate has values",
            do="write the loop of a pipeline yourself, with Runner(layout=...).",
        )
    return use(ranks)


def _made(strategy: Strategy, wanted: Layout) -> layout:
    """Return this rank's end of the layout that the flag means."""
    comm = strategy.comm()
    if isinstance(wanted, Mapping):
        if not all(isinstance(each, str) for each in wanted.values()):
            return layout.of(wanted, comm=comm)
        sizes = strategy.mesh_sizes()
        if not sizes:
            raise ConfigurationError(
                f"layout= says roles without sizes, and strategy={strategy.name!r} has no mesh",
                do=_FORMS,
            )
        roles: dict[str, Any] = dict(wanted)
        return layout(sizes, comm=comm, **roles)
    assert wanted is not None
    with use(comm):
        made = wanted()
    if not isinstance(made, layout):
        raise InputTypeError(f"the function of layout= returned a {type(made).__name__}", do=_FORMS)
    return made

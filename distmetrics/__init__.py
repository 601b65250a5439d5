"""Metrics of distributed PyTorch jobs that are right, fast, and never hang.

Every rank must make each collective call, in the same order. If a rank waits elsewhere, has
returned, failed or ended, the call raises :class:`DivergedError` or :class:`PeerLostError` on the
others. If ranks disagree on a call, all raise :class:`MismatchError`.

The examples of all modules use ``torch``, the names below, and ``run`` and ``outcomes`` of
:mod:`distmetrics.testing`: ``run(2, f)`` calls ``f(comm)`` on two ranks, which are threads.

>>> import torch
>>> from distmetrics import all_gather
>>> from distmetrics.testing import run
>>> run(2, lambda comm: all_gather(torch.tensor(comm.rank)))
[tensor([0, 1]), tensor([0, 1])]
"""

import importlib
from typing import TYPE_CHECKING, Any

from distmetrics._version import __version__
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    DivergedError,
    InputError,
    InputTypeError,
    LawViolation,
    LayoutError,
    MismatchError,
    MissingDependencyError,
    PeerLostError,
    StateError,
)

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise MissingDependencyError.of("torch", "import distmetrics") from None
# pip does not see to this: no torch is required, since users choose their own build
if tuple(map(int, _torch.__version__.split(".")[:2])) < (2, 9):
    raise MissingDependencyError(
        f"import distmetrics needs torch 2.9 or later; {_torch.__version__} is installed.",
        do="pip install --upgrade torch",
    )

from distmetrics.collectives.gather_samples import gather_samples
from distmetrics.collectives.ops import (
    all_gather,
    all_gather_cat,
    all_gather_object,
    all_reduce,
    all_true,
    any_true,
    barrier,
    broadcast,
    mean,
)
from distmetrics.comm.communicator import Communicator, SingleCommunicator, current, use
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.comm.threads import ThreadWorld
from distmetrics.data.repeats import RepeatedSamplesWarning
from distmetrics.guard import watchdog as _watchdog  # noqa: F401  (hands itself to comm)
from distmetrics.launch.preflight import find_unpicklable
from distmetrics.layouts.communicator import layout
from distmetrics.layouts.grad_norm import grad_norm
from distmetrics.log.log import Log
from distmetrics.metrics.adapters.base import register_adapter
from distmetrics.metrics.explain import explain
from distmetrics.metrics.function import from_function
from distmetrics.metrics.sync import sync_and_compute, sync_async, synced

if TYPE_CHECKING:
    from distmetrics import guard
    from distmetrics.runner import Runner

__all__ = [
    "Communicator",
    "ConfigurationError",
    "DistmetricsError",
    "DivergedError",
    "GroupCommunicator",
    "InputError",
    "InputTypeError",
    "LawViolation",
    "LayoutError",
    "Log",
    "MismatchError",
    "MissingDependencyError",
    "PeerLostError",
    "RepeatedSamplesWarning",
    "Runner",
    "SingleCommunicator",
    "StateError",
    "ThreadWorld",
    "__version__",
    "all_gather",
    "all_gather_cat",
    "all_gather_object",
    "all_reduce",
    "all_true",
    "any_true",
    "barrier",
    "broadcast",
    "current",
    "explain",
    "find_unpicklable",
    "from_function",
    "gather_samples",
    "grad_norm",
    "guard",
    "layout",
    "mean",
    "register_adapter",
    "sync_and_compute",
    "sync_async",
    "synced",
    "use",
]


def __getattr__(name: str) -> Any:
    if name != "Runner":  # imported on first use
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("distmetrics.runner").Runner

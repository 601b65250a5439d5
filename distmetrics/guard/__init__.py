"""The guard: a hang or a mix-up becomes the same readable error on every rank, within seconds.

It is on wherever two ranks or more talk through distmetrics; nothing has to be called. Set it by
the environment, or by :func:`use_settings`:

``DISTMETRICS_GUARD``
    ``on`` (default), ``off``, ``warn`` (says what it would raise) or ``strict`` (also refuses equal
    calls from different lines).
``DISTMETRICS_TIMEOUT``
    seconds that a rank waits for one that is alive and busy elsewhere; default 300.
``DISTMETRICS_REPORT``
    a folder: once something has gone wrong, each rank writes there what it did last.

:func:`watch` extends it to collectives that do not pass through distmetrics, and
:func:`guarded_epoch` checks that all ranks come through a block with the same calls.
"""

from typing import TYPE_CHECKING, Any

from distmetrics.guard.settings import Mode, Settings, use_settings

if TYPE_CHECKING:
    from distmetrics.collectives.watch import WATCHED, guarded_epoch, watch

__all__ = ["WATCHED", "Mode", "Settings", "guarded_epoch", "use_settings", "watch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distmetrics.collectives import watch  # above this package, which the transport is below

    return getattr(watch, name)

"""The guard: a hang or a mix-up becomes the same readable error on every rank, within seconds.

It is on wherever two ranks or more talk through distmetrics; nothing has to be called. Set it by
the environment variables ``DISTMETRICS_GUARD`` (the mode), ``DISTMETRICS_TIMEOUT`` (seconds) and
``DISTMETRICS_REPORT`` (a folder), or by :func:`use_settings`; :class:`Settings` explains the three.

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

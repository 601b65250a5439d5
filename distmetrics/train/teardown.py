"""The end of a run: everything is called that must be, and the first error is raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

Calls = Iterable[tuple[Callable[..., object], tuple[object, ...]]]


def call_all(calls: Calls, first: BaseException | None) -> None:
    """Make every call, also after one that raises; later errors become notes of the first.

    Args:
        calls: functions and their arguments.
        first: what ended the run, and goes on; None where it ended well.

    Raises:
        Exception: what the first of the calls that failed raised, if nothing had failed before.
    """
    noted = first
    for fn, args in calls:
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001  (raised below, or noted)
            if noted is None:
                noted = error
            elif error is not noted:
                text = "".join(traceback.format_exception(error, chain=False)).rstrip()
                name = getattr(fn, "__qualname__", fn)
                noted.add_note(f"{name} failed as well, after this:\n{text}")
    if first is None and noted is not None:
        raise noted

"""The end of a run: everything is called that must be, and the first error is the one that is
raised.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable


def call_all(
    calls: Iterable[tuple[Callable[..., object], tuple[object, ...]]], first: BaseException | None
) -> None:
    """Make every call, also after one that raises; what a later one raises becomes a note of the
    first error.

    Args:
        calls: functions and their arguments.
        first: what ended the run, and goes on; None where it ended well.

    Raises:
        Exception: what the first of the calls that failed raised, if nothing had failed before.
    """
    ended = first
    for fn, args in calls:
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001  (raised below, or noted: whatever a hook of the user's raises)
            if ended is None:
                ended = error
            elif error is not ended:
                told = "".join(traceback.format_exception(error, chain=False)).rstrip()
                ended.add_note(
                    f"{getattr(fn, '__qualname__', fn)} failed as well, after this:\n{told}"
                )
    if first is None and ended is not None:
        raise ended

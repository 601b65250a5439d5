"""Why a test ends otherwise with distmetrics' sync, or fails with both.

Read from the failure, and looked into.
"""

from __future__ import annotations

import re

__all__ = ["CAUSES", "cause_of"]

# Matched against the test's name and what it said.
CAUSES: dict[str, str] = {
    r"test_ddp\[_test_ddp_(sum|cat)\]": (
        "the test calls the private `_sync_dist` of a metric that was never updated, whose state "
        "was never given to "
        "`add_state`; to distmetrics that is a metric without data, which stays as it is. "
        "Updated once, it is merged"
    ),
    r"test_ddp\[_test_ddp_sum_cat\]": (
        "the test replaces the private `_reductions` by two names that were never given to "
        "`add_state`, of which "
        "`_defaults` has none; distmetrics reads the two side by side, and raises a ValueError "
        "before data moves"
    ),
    r"test_sync_on_compute\[_test_sync_on_compute_list_state-True\]"
    r"|test_sync_with_(empty|unequal_size)_lists": (
        "`compute` returns the list state itself; in one process that is a list, and so it is on "
        "every rank with "
        "distmetrics, where torchmetrics' sync makes one tensor of it, which the test asserts"
    ),
}


def cause_of(said: str) -> str:
    """Return the cause of a failure, empty where none is known."""
    return next((cause for pattern, cause in CAUSES.items() if re.search(pattern, said)), "")

"""Calls made at a time in threads of this process, as if each were made here."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make the calls at a time, each in a thread with this one's grad and autocast modes; return
    their results.

    Raises:
        BaseException: what the first of them that failed raised.
    """
    if len(calls) == 1:
        return [calls[0]()]
    results: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    modes = _modes()

    def run(index: int) -> None:
        try:
            with _entered(modes):
                results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            errors[index] = error

    contexts = [contextvars.copy_context() for _ in calls]
    threads = [
        threading.Thread(target=context.run, args=(run, index), name=f"replica {index}")
        for index, context in enumerate(contexts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        index, error = min(errors.items())
        error.add_note(f"raised in replica {index} of strategy 'dp'")
        raise error
    return results


def _modes() -> tuple[bool, bool, list[tuple[str, torch.dtype]]]:
    """Return this thread's modes, which torch keeps for each thread."""
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    autocast = [
        (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
    ]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast


@contextmanager
def _entered(modes: tuple[bool, bool, list[tuple[str, torch.dtype]]]) -> Iterator[None]:
    grad, inference, autocast = modes
    with ExitStack() as stack:
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in autocast:
            # The cache is one for all threads: gradients of all would be added up in its low
            # precision.
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        yield

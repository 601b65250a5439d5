"""Calls made at the same time in threads of this process, as if each were made here."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import torch


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of calls made at a time in threads with this one's modes (grad, autocast).

    Raises:
        BaseException: what the first of them that failed raised.
    """
    if len(calls) == 1:
        return [calls[0]()]
    modes = _modes()
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            with _entered(*modes):
                results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            error.add_note(f"raised in replica {index} of strategy 'dp'")
            errors[index] = error

    threads = [
        Thread(target=contextvars.copy_context().run, args=(run, index), name=f"replica {index}")
        for index in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[index] for index in range(len(calls))]


def _modes() -> tuple[bool, bool, list[tuple[str, torch.dtype]]]:
    """Return this thread's modes, which torch keeps for each thread."""
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    autocast = [
        (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
    ]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast


@contextmanager
def _entered(
    grad: bool, inference: bool, autocast: Sequence[tuple[str, torch.dtype]]
) -> Iterator[None]:
    with ExitStack() as stack:
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in autocast:
            # The cache is one for all threads: gradients of all would be added up in its low
            # precision.
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        yield

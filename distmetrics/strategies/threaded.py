"""Calls made at the same time in threads of this process, as if each were made here."""

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
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
    futures: list[Future[Any]] = [Future() for _ in calls]

    def run(index: int) -> None:
        try:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode())
                futures[index].set_result(calls[index]())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            error.add_note(f"raised in replica {index} of strategy 'dp'")
            futures[index].set_exception(error)

    threads = [
        Thread(target=contextvars.copy_context().run, args=(run, index), name=f"replica {index}")
        for index in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [future.result() for future in futures]


def _modes() -> list[Callable[[], AbstractContextManager[Any]]]:
    """Return what puts this thread's modes in force in another: torch keeps them for each."""
    modes: list[Callable[[], AbstractContextManager[Any]]] = [
        partial(torch.inference_mode, torch.is_inference_mode_enabled()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
    ]
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            # The cache is one for all threads: gradients of all would be added up in its low
            # precision.
            modes.append(partial(torch.autocast, kind, dtype=dtype, cache_enabled=False))
    return modes

"""Replace names in modules, most for the length of a block, after which they are put back."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A name of a module, and the value that it gets inside the block."""

    where: dict[str, Any]  # the module's names
    name: str
    value: Any


def replace_everywhere(original: Callable[..., Any], value: Callable[..., Any]) -> None:
    """Replace a function for good in every module that has it by its name."""
    name = original.__name__
    for module in [*sys.modules.values()]:
        where = getattr(module, "__dict__", {})
        if type(where) is dict and where.get(name) is original:
            where[name] = value


class Replacing:
    """Blocks that replace the same names: they may nest, and those of several threads may overlap.

    The first to begin replaces, the last to end puts back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before: list[Name] = []

    @property
    def is_active(self) -> bool:
        """True inside a block, of any thread."""
        return self._blocks > 0

    @contextmanager
    def block(self, find: Callable[[], Iterable[Name]]) -> Iterator[None]:
        """Replace what ``find`` returns, unless another block has done so already.

        >>> import math
        >>> with Replacing().block(lambda: [Name(vars(math), "tau", 6)]):
        ...     math.tau
        6
        >>> math.tau > 6
        True
        """
        with self._lock:
            self._blocks += 1
        try:
            with self._lock:
                if not self._before:
                    for where, name, value in find():
                        # Noted first: an interrupt must not lose it.
                        self._before.append(Name(where, name, where[name]))
                        where[name] = value
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                while not self._blocks and self._before:
                    where, name, value = self._before[-1]
                    where[name] = value
                    self._before.pop()

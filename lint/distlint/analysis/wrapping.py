"""Which names of a file are models that may be wrapped for several ranks, by what the file asks of them."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from distlint.syntax import SyntaxIndex

MAYBE = "maybe"  # wrapped by whoever hands it over: the file reckons with that
_WRAPPERS = r"\b(?:DistributedDataParallel|DDP|FullyShardedDataParallel|FSDP|DeepSpeedEngine)\b"
_NAMES_WRAPPER = re.compile(_WRAPPERS)
_NAME = r"(?:\w+\.)*(\w+)"
_ASKS = re.compile(
    rf"\bhasattr\(\s*{_NAME}\s*,\s*[\"']module[\"']"
    rf"|\bisinstance\(\s*{_NAME}\s*,[^)]*?{_WRAPPERS}"
    rf"|\bunwrap_model\(\s*{_NAME}"
    rf"|\b{_NAME}\.(?:module\.\w|no_sync\()"
)


@lru_cache(maxsize=64)
def _unwrapped(source: str) -> frozenset[str]:
    """The names of what the file takes out of a wrapper, or asks whether it is in one."""
    return frozenset(name for groups in _ASKS.findall(source) for name in groups if name not in ("", "self"))


def may_be_wrapped(index: SyntaxIndex, parameter: ast.arg) -> bool:
    """True if a parameter is a model that callers may have wrapped."""
    annotation = parameter.annotation
    is_said = annotation is not None and _NAMES_WRAPPER.search(ast.unparse(annotation)) is not None
    return is_said or parameter.arg in _unwrapped(index.source)

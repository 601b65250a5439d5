"""Which files can matter at all, told by bytes. Never wrong in the direction of silence: see its tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlint.model import Rule

_DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+)?(def|class)\b", re.MULTILINE)


def can_matter(rule: Rule, source: bytes) -> bool:
    """Whether the rule could report anything in this file."""
    return all(any(token in source for token in group) for group in rule.tokens) and rule.can_matter(source)


def has_local_definition(source: bytes) -> bool:
    """Whether a function or class may be defined inside of a function, told by indentation."""
    around: list[tuple[int, bytes]] = []
    for match in _DEFINITION.finditer(source):
        indent = len(match[1].expandtabs())
        while around and around[-1][0] >= indent:
            around.pop()
        if any(kind == b"def" for _, kind in around):
            return True
        around.append((indent, match[2]))
    return False

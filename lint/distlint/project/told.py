"""What files of settings say: which arguments are switched off, and which classes they have made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SWITCHED_OFF = re.compile(
    rb"\b(use_distributed_sampler|replace_sampler_ddp)\b[\"']?\s*\]?\s*(?::\s*bool\s*)?(?:[=:]|\s)\s*(?:False|false)\b"
)
_MADE = re.compile(rb"\b(?:_target_|target|class_path)[\"']?\s*:\s*[\"']?(?:[\w-]+\.)+(\w+)")


@dataclass(frozen=True)
class Told:
    """What settings say.

    Attributes:
        opt_outs: arguments of trainers that are given as False.
        classes: names of the classes that are made, such as ``_target_`` of Hydra.
    """

    opt_outs: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()


def read_opt_outs(source: bytes) -> frozenset[str]:
    """Return the arguments that a Python, YAML or JSON file switches off, in whatever way."""
    return frozenset(name.decode() for name in _SWITCHED_OFF.findall(source))


def read_told(files: Iterable[Path]) -> Told:
    """Return what files of settings say; those that cannot be read say nothing."""
    opt_outs, classes = set[str](), set[str]()
    for file in files:
        try:
            source = file.read_bytes()
        except OSError:
            continue
        opt_outs |= read_opt_outs(source)
        classes |= {name.decode() for name in _MADE.findall(source)}
    return Told(frozenset(opt_outs), frozenset(classes))

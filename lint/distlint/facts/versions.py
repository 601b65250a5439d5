"""Which versions of a library a file can run with, told by what it and its project use."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from distlint.facts.releases import OLD, OLD_HOOKS, SHARDED, read_releases

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


def saves_alone(facts: ModuleFacts) -> bool:
    """Whether ``trainer.save_checkpoint`` waits for nobody: Lightning before 2.1 does not, unless states are sharded.

    Such a version is meant where the file uses what Lightning 2.0 took away, or other files of the project do and none
    uses what it brought.
    """
    found = read_releases(ast.parse(facts.module.code))
    if SHARDED in found:
        return False
    hooks = (info.methods.keys() for info in facts.classes.values() if "lightning" in info.kinds)
    return OLD in found or facts.project.saves_alone or any(map(OLD_HOOKS.intersection, hooks))

"""Where the call is that a helper makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.project import CallPlace, FunctionSummary
from distlint.facts.tree import walk_scope

if TYPE_CHECKING:
    from distlint.facts.projection import Projector


def find_origin(projector: Projector, call: cst.Call, label: str) -> cst.Call | CallPlace | None:
    """The call itself, however many helpers deep, in this file or another."""
    seen: set[cst.FunctionDef] = set()
    pending = [call]
    while pending:
        here = pending.pop()
        made = projector.operations.get(here)
        if made == label:
            return here
        if isinstance(made, FunctionSummary) and label in made.collectives:
            return made.calls[made.collectives.index(label)]
        if isinstance(made, cst.FunctionDef) and made not in seen:
            seen.add(made)
            pending += [node for node in walk_scope(made) if isinstance(node, cst.Call)]
    return None

"""What callers in other files must know of the functions of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.divergence import find_origin
from distlint.facts.one_role import parameters
from distlint.facts.project import CallPlace, FunctionSummary
from distlint.facts.projection import Projector
from distlint.facts.sequences import events_for_callers

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_MOST = 8  # collectives: enough to compare, and functions that call each other across files come to an end


def summarise_functions(facts: ModuleFacts) -> Iterator[FunctionSummary]:
    """The functions and methods of a module that make a collective."""
    projector = Projector(facts)
    numbers = {call: number for number, call in enumerate(facts.nodes(cst.Call))} if projector.operations else {}
    for function in projector.regions():
        if not isinstance(function, cst.FunctionDef) or facts.function_of(function) is not None:
            continue
        found: list[tuple[str, CallPlace]] = []
        for event in events_for_callers(projector.project_first(function), parameters(function)):
            if len(found) == _MOST:
                break
            origin = find_origin(projector, event.node, event.label) if isinstance(event.node, cst.Call) else None
            if isinstance(origin, cst.Call):
                origin = CallPlace(facts.path, numbers[origin], facts.code(origin))
            if origin is not None:
                found.append((event.label, origin))
        if found:
            labels, places = zip(*found, strict=True)
            yield FunctionSummary(facts.full_name(function), facts.path, labels, places)

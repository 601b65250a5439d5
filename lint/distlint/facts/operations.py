"""The calls of a module that matter to the order of ranks, and the functions of it that make one inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.collectives import collective
from distlint.facts.programs import is_one_process
from distlint.facts.project import FunctionSummary

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# By name; or the function that makes one inside, of this file or, summarised, of another.
Operation = str | cst.FunctionDef | FunctionSummary
Operations = Mapping[cst.Call, Operation]


def find_collectives(facts: ModuleFacts) -> dict[cst.Call, Operation]:
    """Collective calls by operation; calls of functions that make one, by function."""
    return find_operations(facts, lambda call: collective(facts, call) or facts.project_function(call))


def find_operations(facts: ModuleFacts, name_of: Callable[[cst.Call], Operation | None]) -> dict[cst.Call, Operation]:
    """Calls that ``name_of`` names, and the calls of this file's functions that make one at any depth.

    None in a file of one process, which waits for nobody.
    """
    found: dict[cst.Call, Operation] = {}
    local: dict[cst.FunctionDef, list[cst.Call]] = {}
    for call in facts.nodes(cst.Call):
        name = name_of(call)
        if name is not None:
            found[call] = name
        elif (function := facts.local_function(call)) is not None:
            local.setdefault(function, []).append(call)
    if found and is_one_process(facts):
        return {}
    fresh: list[cst.Call] = list(found)
    while fresh:  # callers of callers, until nothing is new
        function = facts.function_of(fresh.pop())
        for call in local.pop(function, ()) if function is not None else ():
            found[call] = function if function is not None else ""
            fresh.append(call)
    return found

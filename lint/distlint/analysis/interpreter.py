"""Interprets the functions of a file until what they tell each other no longer changes."""

from __future__ import annotations

import ast

from distlint.analysis.events import FunctionReport
from distlint.analysis.functions import interpret
from distlint.analysis.module import Analysis
from distlint.analysis.project import NO_PROJECT, Project
from distlint.analysis.state import Facts
from distlint.syntax import FunctionNode, SyntaxIndex

_MOST_ROUNDS = 12


def analyse(index: SyntaxIndex, project: Project = NO_PROJECT) -> Analysis:
    """Return what the functions of a file do.

    Args:
        index: the file.
        project: what is known of other files, and what the user has declared.
    """
    facts = Facts(index, project)
    reports: dict[FunctionNode, FunctionReport] = {}
    pending = sorted(index.all_functions, key=_first)
    for _ in range(_MOST_ROUNDS):
        facts.stale = set()
        for function in pending:
            facts.stale.discard(function)
            reports[function] = interpret(facts, function)
        pending = sorted(facts.stale, key=_first)
        if not pending:
            break
    attributes = {(owner, name): value for (kind, owner, name), value in facts.values.items() if kind == "attribute"}
    return Analysis(index, project, reports, attributes, facts.family)


def _first(function: FunctionNode) -> tuple[int, int]:
    """The file's own statements first, then properties, then methods that set attributes, then the rest."""
    if isinstance(function.node, ast.Module):
        return 0, 0
    is_setter = function.name in ("__init__", "setup", "__post_init__")
    return 1 if function.is_property else 3 - is_setter, function.node.lineno

"""Rules that read the concrete tree: to be deleted when the last of them is a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import libcst as cst
from libcst.metadata import CodeRange

from distlint.analysis.project import Project
from distlint.concrete import ConcreteTree
from distlint.edits import Editor
from distlint.facts import ModuleFacts
from distlint.model import Finding, Hit, Rule, TraceStep, remaining
from distlint.text import Text

_DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+)?(def|class)\b", re.MULTILINE)


def apply(rules: Sequence[Rule], text: Text, path: str, project: Project) -> list[Finding]:
    """All findings of such rules in one file."""
    facts = ModuleFacts(cst.parse_module(text.text), path, project)
    hits = [(rule, hit) for rule in rules for hit in rule.check(facts)]
    return _locate(facts, text, hits) if hits else []


def _locate(facts: ModuleFacts, text: Text, hits: Sequence[tuple[Rule, Hit]]) -> list[Finding]:
    tree = ConcreteTree.__new__(ConcreteTree)
    tree.module = facts.module
    position = tree.position

    def step(place: cst.CSTNode, label: str, text: str) -> TraceStep:
        return TraceStep(facts.path, position(place).start.line, label, text)

    editor = Editor(tree, text)
    findings = []
    for rule, hit in hits:
        here = position(hit.node)
        condition = remaining(hit.condition, facts.project.settings.devices)
        findings.append(
            Finding(
                code=rule.code,
                name=rule.name,
                message=hit.message if condition is None else f"{hit.message}, {condition.text}",
                path=facts.path,
                line=here.start.line,
                column=here.start.column + 1,
                end_line=here.end.line,
                end_column=here.end.column + 1,
                severity=rule.severity,
                fix=None if hit.repair is None else editor.fix(hit.repair),
                trace=tuple(step(*each) for each in hit.trace),
                statement=_statement_lines(facts, hit.node, position),
                condition=condition,
            )
        )
    return findings


def _statement_lines(
    facts: ModuleFacts, node: cst.CSTNode, position: Callable[[cst.CSTNode], CodeRange]
) -> tuple[int, int]:
    statement = facts.statement(node)
    last = node if isinstance(statement, cst.BaseCompoundStatement) else statement
    return position(statement).start.line, position(last).end.line


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

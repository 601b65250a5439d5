"""From what rules report of one file to findings with positions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from distlint.analysis import Analysis
from distlint.model import Condition, Finding, Fix, Report, Rule, TraceStep, remaining
from distlint.modules import is_test
from distlint.syntax import Located, SyntaxIndex

_ON_PURPOSE = Condition("data", "unless this test does that on purpose")


def ask(analysis: Analysis, rules: Sequence[Rule], mend: Callable[[Finding, Report], Fix | None]) -> list[Finding]:
    """Return what rules find in one file, in no order; ``mend`` makes the fix of a report."""
    findings = []
    for rule in rules:
        for report in rule.query(analysis):
            finding = _finding(analysis, rule, report)
            findings.append(replace(finding, fix=mend(finding, report)) if report.repair is not None else finding)
    return findings


def _finding(analysis: Analysis, rule: Rule, report: Report) -> Finding:
    node, index = report.node, analysis.index
    condition = remaining(report.condition, analysis.project.settings.devices)
    if condition is None and rule.group == "divergence" and is_test(index.path):
        condition = _ON_PURPOSE
    line, column = _position(index, node.lineno, node.col_offset)
    end_line, end_column = _position(index, node.end_lineno or line, node.end_col_offset or 0)
    return Finding(
        code=rule.code,
        name=rule.name,
        message=report.message if condition is None else f"{report.message}, {condition.text}",
        path=index.path,
        line=line,
        column=column,
        end_line=end_line,
        end_column=end_column,
        severity=rule.severity,
        trace=tuple(TraceStep(*each) for each in report.trace),
        statement=_statement_lines(index.tree, node),
        condition=condition,
    )


def _position(index: SyntaxIndex, line: int, offset: int) -> tuple[int, int]:
    """A line and a column from 1; Python's tree counts bytes."""
    text = index.line(line)
    return line, len(text[:offset].decode(errors="replace")) + 1


def _statement_lines(tree: ast.Module, node: Located) -> tuple[int, int]:
    """First and last line of the statement around a node; of a compound one, as far as the node."""
    last = node.end_lineno or node.lineno
    found = node.lineno, last
    for statement in _around(tree.body, node.lineno):
        is_compound = getattr(statement, "body", None) is not None
        found = statement.lineno, last if is_compound else statement.end_lineno or last
    return found


def _around(body: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements that a line is in, outermost first."""
    pending = list(body)
    while pending:
        statement = pending.pop(0)
        if not statement.lineno <= line <= (statement.end_lineno or line):
            continue
        yield statement
        inner = (getattr(statement, name, ()) for name in ("body", "orelse", "finalbody"))
        handled = (each.body for each in getattr(statement, "handlers", ()))
        cases = (each.body for each in getattr(statement, "cases", ()))
        pending = [each for part in (*inner, *handled, *cases) for each in part]

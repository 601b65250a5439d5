"""Changes of Python's tree as edits of the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.model import Edit, Fix, Patch, Rewrite
from distlint.syntax import Located, SyntaxIndex
from distlint.text import Text, split_lines

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


class Patcher:
    """Makes edits of one file.

    Args:
        index: the file.
        text: its source, for indentation and line ends.
    """

    def __init__(self, index: SyntaxIndex, text: Text) -> None:
        self._index = index
        self._text = text

    def fix(self, rewrite: Rewrite) -> Fix | None:
        """Return all edits of a rewrite; None where one of them has no place in the text."""
        edits = [self._edit(patch) for patch in rewrite.patches]
        made = [edit for edit in edits if edit is not None]
        if not made or len(made) < len(edits):
            return None
        return Fix(rewrite.safe, tuple(sorted(made, key=lambda edit: (edit.line, edit.column))))

    def _edit(self, patch: Patch) -> Edit | None:
        first, last = self._span(patch.node)
        if patch.where == "instead":
            return Edit(*first, *last, self._text.adapted(patch.text)) if patch.text else self._removal(patch.node)
        if patch.where == "argument":
            assert isinstance(patch.node, ast.Call)
            place = self._after_arguments(patch.node)
            return Edit(*place, *place, self._text.adapted(f", {patch.text}"))
        return self._beside(patch)

    def _span(self, node: Located) -> tuple[tuple[int, int], tuple[int, int]]:
        """First place and the one after the last, both from 1; Python's tree counts bytes."""
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return (node.lineno, self._column(node.lineno, node.col_offset)), (end_line, self._column(end_line, end))

    def _column(self, line: int, offset: int) -> int:
        return len(self._index.line(line)[:offset].decode(errors="replace")) + 1

    def _after_arguments(self, call: ast.Call) -> tuple[int, int]:
        """The place behind the last argument of a call and the parentheses around it."""
        given: list[Located] = [*call.args, *call.keywords]
        line, column = max(self._span(each)[1] for each in given)
        closing = self._span(call)[1]
        text = self._text.lines[line - 1]
        while text[column - 1 : column] == ")" and (line, column + 1) < closing:
            column += 1
        return line, column

    def _beside(self, patch: Patch) -> Edit | None:
        """A line with the statement's own indentation; a statement that shares its line has no room beside it."""
        statement = self.statement(patch.node)
        if statement is None:
            return None
        decorators = getattr(statement, "decorator_list", None) or [statement]
        first = min(statement.lineno, *(each.lineno for each in decorators))
        line = self._text.lines[first - 1]
        indentation = line[: len(line) - len(line.lstrip())]
        start = self._column(statement.lineno, statement.col_offset)
        if self._text.lines[statement.lineno - 1][: start - 1].strip() or not self._ends_its_line(statement):
            return None
        added = self._text.newline.join([*split_lines(indentation + patch.text), ""])
        if patch.where == "before":
            return Edit(first, 1, first, 1, added)
        last = statement.end_lineno or statement.lineno
        if last < len(self._text.lines) or self._text.text.endswith(("\n", "\r")):
            return Edit(last + 1, 1, last + 1, 1, added)
        end = len(self._text.lines[-1]) + 1
        return Edit(last, end, last, end, self._text.newline + added.removesuffix(self._text.newline))

    def _ends_its_line(self, statement: ast.stmt) -> bool:
        line, column = self._span(statement)[1]
        rest = self._text.lines[line - 1][column - 1 :].strip()
        return not rest or rest.startswith("#")

    def statement(self, node: Located) -> ast.stmt | None:
        """Return the innermost statement around a node."""
        found: ast.stmt | None = None
        pending: list[ast.AST] = [self._index.tree]
        while pending:
            for inner in _statements(pending.pop()):
                if inner.lineno <= node.lineno and (node.end_lineno or 0) <= (inner.end_lineno or 0):
                    pending.append(inner)
                    found = inner if isinstance(inner, ast.stmt) and _contains(inner, node) else found
        return found

    def _removal(self, node: Located) -> Edit:
        """Without a node: a statement with its lines, or ``pass`` where it stands alone; an argument with its comma."""
        first, last = self._span(node)
        if not isinstance(node, ast.stmt):
            return Edit(*first, *last, "")
        around = (body for parent in ast.walk(self._index.tree) for body in _lists(parent) if node in body)
        body = next(around, [])
        if len(body) == 1:
            return Edit(*first, *last, "pass")
        return Edit(node.lineno, 1, (node.end_lineno or node.lineno) + 1, 1, "")


def _lists(node: ast.AST) -> Iterator[list[ast.AST]]:
    for name in _BODIES:
        found = getattr(node, name, None)
        if isinstance(found, list):
            yield found


def _statements(node: ast.AST) -> Iterator[Located]:
    for body in _lists(node):
        for each in body:
            if isinstance(each, ast.stmt | ast.excepthandler):
                yield each
            elif isinstance(each, ast.match_case):
                yield from _statements(each)


def _contains(statement: ast.stmt, node: Located) -> bool:
    begin = (statement.lineno, statement.col_offset) <= (node.lineno, node.col_offset)
    end = (statement.end_lineno or 0, statement.end_col_offset or 0)
    return begin and (node.end_lineno or 0, node.end_col_offset or 0) <= end

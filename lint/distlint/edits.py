"""Changes of the tree as edits of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst
from libcst.metadata import CodeRange

from distlint.source import Source
from distlint.text import Edit, lines_in_strings, split_lines


@dataclass(frozen=True)
class Change:
    """New source for a node, or lines beside a statement.

    Attributes:
        node: what is replaced; for lines beside it, a statement.
        text: the new source; ``""`` removes the node. Lines beside a statement get its indentation.
        where: in its place, or on lines of their own before or after it.
    """

    node: cst.CSTNode
    text: str
    where: Literal["instead", "before", "after"] = "instead"


def edits(source: Source, changes: Sequence[Change]) -> tuple[Edit, ...]:
    """Return the edits that make all changes; none where one of them has no place in the text."""
    if not source.is_exact:
        return ()
    made = [_edit(source, change) for change in changes]
    found = [edit for edit in made if edit is not None]
    if len(found) < len(made):
        return ()
    return tuple(sorted(found, key=lambda edit: (edit.line, edit.column)))


def _edit(source: Source, change: Change) -> Edit | None:
    if change.where != "instead":
        return _beside(source, change)
    if not change.text:
        return _removal(source, change.node)
    here = source.position(change.node)
    line = source.text.lines[source.line(source.statement(change.node)) - 1]
    first, *rest = _indented(change.text, line[: len(line) - len(line.lstrip())])
    return _replace(here, source.text.newline.join([first.lstrip(), *rest]))


def _replace(here: CodeRange, text: str) -> Edit:
    start, end = here.start, here.end
    return Edit(start.line, start.column + 1, end.line, end.column + 1, text)


def _indented(text: str, indentation: str) -> list[str]:
    """Return lines with the indentation of a block, but for those that begin inside of a string."""
    kept = lines_in_strings(text)
    return [
        indentation + line if line and number not in kept else line
        for number, line in enumerate(split_lines(text))
    ]


def _beside(source: Source, change: Change) -> Edit | None:
    """Lines with the statement's indentation; one that shares its line has no room beside it."""
    statement = source.statement(change.node)
    here = source.position(statement)
    lines = source.text.lines
    indentation = lines[here.start.line - 1][: here.start.column]
    if indentation.strip() or _is_within_a_line(source, change.node, statement):
        return None
    first = here.start.line
    if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
        first = source.line(statement.decorators[0])
    added = _indented(change.text, indentation)
    newline = source.text.newline
    if change.where == "before":
        is_elif = isinstance(source.parent(statement), cst.If)
        return None if is_elif else Edit(first, 1, first, 1, newline.join([*added, ""]))
    if here.end.line < len(lines) or source.text.text.endswith(("\n", "\r")):
        return Edit(here.end.line + 1, 1, here.end.line + 1, 1, newline.join([*added, ""]))
    end = len(lines[-1]) + 1
    return Edit(here.end.line, end, here.end.line, end, newline.join(["", *added]))


def _is_within_a_line(source: Source, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
    """Return whether a node is in the body of a statement of one line, such as ``if x: node``."""
    for each in (node, *source.ancestors(node)):
        if each is statement:
            return False
        if isinstance(each, cst.SimpleStatementSuite):
            return True
    return False


def _removal(source: Source, node: cst.CSTNode) -> Edit:
    """Without a node: a statement or decorator with its lines, an argument with its comma."""
    parent = source.parent(node)
    if isinstance(parent, cst.SimpleStatementLine) and len(parent.body) == 1:
        node, parent = parent, source.parent(parent)
    here = source.position(node)
    if isinstance(node, cst.BaseStatement | cst.Decorator):
        is_statement = isinstance(node, cst.BaseStatement)
        if is_statement and isinstance(parent, cst.IndentedBlock) and len(parent.body) == 1:
            return _replace(here, "pass")
        return Edit(here.start.line, 1, here.end.line + 1, 1, "")
    if isinstance(node, cst.Arg) and isinstance(parent, cst.Call) and len(parent.args) > 1:
        return _without_argument(source, parent, node)
    return _replace(here, "")


def _without_argument(source: Source, call: cst.Call, argument: cst.Arg) -> Edit:
    at = call.args.index(argument)
    here = source.position(argument)
    if at == 0:
        after = source.position(call.args[1]).start
        return Edit(here.start.line, here.start.column + 1, after.line, after.column + 1, "")
    before = source.position(call.args[at - 1]).end
    return Edit(before.line, before.column + 1, here.end.line, here.end.column + 1, "")

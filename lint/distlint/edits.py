"""Changes of the tree as edits of the text."""

from __future__ import annotations

from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange

from distlint.concrete import ConcreteTree, walk
from distlint.model import Change, Edit, Fix, Repair
from distlint.text import Text, split_lines


class Editor:
    """Makes edits of one module.

    Args:
        tree: the concrete tree.
        text: the source, for its indentation and line ends.
    """

    def __init__(self, tree: ConcreteTree, text: Text) -> None:
        self._tree = tree
        self._text = text

    def fix(self, repair: Repair) -> Fix | None:
        """All edits of a repair; None where one of them has no place in the text."""
        if not self._is_exact:
            return None
        edits = [self._edit(change) for change in repair.changes]
        made = [edit for edit in edits if edit is not None]
        if not made or len(made) < len(edits):
            return None
        return Fix(repair.safe, tuple(sorted(made, key=lambda edit: (edit.line, edit.column))))

    @cached_property
    def _is_exact(self) -> bool:
        """Whether the tree has every character, and so positions that hold: it drops a form feed before a statement."""
        return self._tree.module.code == self._text.text

    def _edit(self, change: Change) -> Edit | None:
        if change.where != "instead":
            return self._beside(change)
        if not change.text:
            return self._removal(change.node)
        here = self._tree.position(change.node)
        return self._replace(here, self._text.adapted(self._as_written(change)))

    def _as_written(self, change: Change) -> str:
        """The text with expressions of several lines laid out as in the file.

        Code made of a part of the tree loses the indentation of the blocks around it.
        """
        text = change.text
        for node in walk(change.node) if "\n" in text else ():
            made = self._tree.module.code_for_node(node) if isinstance(node, cst.BaseExpression) else ""
            if "\n" not in made or made not in text:
                continue
            here = self._tree.position(node)
            first, last = self._text.span(self._replace(here, ""))
            source = self._text.text[first:last]
            if source.split() == made.split():  # a node's place leaves out parentheses around it
                text = text.replace(made, source)
        return text

    def _replace(self, here: CodeRange, text: str) -> Edit:
        return Edit(here.start.line, here.start.column + 1, here.end.line, here.end.column + 1, text)

    def _beside(self, change: Change) -> Edit | None:
        """Lines with the statement's own indentation; a statement that shares its line has no room beside it."""
        statement = self._tree.statement(change.node)
        here = self._tree.position(statement)
        indentation = self._text.lines[here.start.line - 1][: here.start.column]
        if indentation.strip() or self._is_within_a_line(change.node, statement):
            return None
        first = here.start.line
        if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
            first = self._tree.position(statement.decorators[0]).start.line
        added = split_lines(indentation + change.text)  # further lines may be inside a string: they stay as they are
        newline = self._text.newline
        if change.where == "before":
            is_elif = isinstance(self._tree.parents.get(statement), cst.If)
            return None if is_elif else Edit(first, 1, first, 1, newline.join([*added, ""]))
        if here.end.line < len(self._text.lines) or self._text.text.endswith(("\n", "\r")):
            return Edit(here.end.line + 1, 1, here.end.line + 1, 1, newline.join([*added, ""]))
        end = len(self._text.lines[-1]) + 1
        return Edit(here.end.line, end, here.end.line, end, newline.join(["", *added]))

    def _is_within_a_line(self, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
        """Whether the node stands in the body of a statement of one line, such as ``if x: node``."""
        current = node
        while current is not statement:
            if isinstance(current, cst.SimpleStatementSuite):
                return True
            current = self._tree.parents[current]
        return False

    def _removal(self, node: cst.CSTNode) -> Edit:
        """Without a node: a statement or decorator with its lines, an argument with its comma."""
        parent = self._tree.parents.get(node)
        if isinstance(parent, cst.SimpleStatementLine) and len(parent.body) == 1:
            node, parent = parent, self._tree.parents.get(parent)
        here = self._tree.position(node)
        if isinstance(node, cst.BaseStatement | cst.Decorator):
            if isinstance(node, cst.BaseStatement) and isinstance(parent, cst.IndentedBlock) and len(parent.body) == 1:
                return self._replace(here, "pass")
            return Edit(here.start.line, 1, here.end.line + 1, 1, "")
        if isinstance(node, cst.Arg) and isinstance(parent, cst.Call) and len(parent.args) > 1:
            return self._without_argument(parent, node)
        return self._replace(here, "")

    def _without_argument(self, call: cst.Call, argument: cst.Arg) -> Edit:
        at = call.args.index(argument)
        here = self._tree.position(argument)
        if at == 0:
            after = self._tree.position(call.args[1]).start
            return Edit(here.start.line, here.start.column + 1, after.line, after.column + 1, "")
        before = self._tree.position(call.args[at - 1]).end
        return Edit(before.line, before.column + 1, here.end.line, here.end.column + 1, "")

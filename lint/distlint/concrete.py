"""The concrete tree of a file, which has every character: fixes are made of it, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider


class _Positions(PositionProvider):
    """Where nodes are, without a MetadataWrapper, which walks all once more."""

    def of(self, module: cst.Module) -> dict[cst.CSTNode, CodeRange]:
        """Return the place of each node."""
        self._gen_impl(module)
        return self._computed  # type: ignore[return-value]


class ConcreteTree:
    """A parsed module with parents and positions.

    Args:
        text: of the file.

    Raises:
        libcst.ParserSyntaxError: it is no Python.
    """

    def __init__(self, text: str) -> None:
        self.module = cst.parse_module(text)

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """What each node is directly in."""
        return {below: node for node in walk(self.module) for below in node.children}

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, CodeRange]:
        return _Positions().of(self.module)

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Return where a node is."""
        return self._positions[node]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node is in, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the simple or compound statement around a node."""
        around = (node, *self.ancestors(node))
        return next((each for each in around if isinstance(each, cst.BaseStatement)), node)

    def code(self, node: cst.CSTNode) -> str:
        """Return the source of a node on one line."""
        return " ".join(self.module.code_for_node(node).split())

    def source_at(self, node: cst.CSTNode, place: cst.CSTNode | None = None) -> str:
        """Return the source of an expression, its further lines indented for the block of ``place``, or its own."""
        code = self.module.code_for_node(node)
        blocks = [each for each in self.ancestors(place or node) if isinstance(each, cst.IndentedBlock)]
        indents = (self.module.default_indent if block.indent is None else block.indent for block in reversed(blocks))
        indent = "".join(indents)
        first, *rows = code.split("\n")
        # Lines inside of parentheses come without the indentation of their block; those inside of a string are whole.
        is_text = '"""' in code or "'''" in code
        return code if is_text else "\n".join([first, *(indent + row if row.strip() else row for row in rows)])


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything below it, parents first, in order of the source."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def tail(node: cst.CSTNode | None) -> str | None:
    """Return the last identifier of a name or an attribute."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else None


def is_name(node: cst.CSTNode | None, value: str) -> bool:
    """True if a node is the bare name ``value``."""
    return isinstance(node, cst.Name) and node.value == value


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Return the value of an argument that is given by name."""
    return next((arg.value for arg in call.args if is_name(arg.keyword, name)), None)


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the arguments that are given by position, up to the first ``*args``."""
    stop = next((number for number, arg in enumerate(call.args) if arg.star), len(call.args))
    return [arg.value for arg in call.args[:stop] if arg.keyword is None]


def argument(call: cst.Call, index: int, name: str) -> cst.BaseExpression | None:
    """Return an argument by position or else by name."""
    given = positional(call)
    return given[index] if index < len(given) else keyword(call, name)

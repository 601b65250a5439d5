"""What only some ranks reach, by tests of the rank inside one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from distlint.apis import (
    ENVIRONMENT,
    asks_for_first_rank,
    is_first_rank,
    is_rank,
    is_rank_guard,
    is_world,
)
from distlint.edits import Change
from distlint.source import Source, decorators, dotted, last, number, string

_EQUALITIES = cst.Equal | cst.NotEqual | cst.In | cst.NotIn | cst.Is | cst.IsNot
_ORDERS = cst.LessThan | cst.GreaterThan | cst.LessThanEqual | cst.GreaterThanEqual
_LEAVES = cst.Return | cst.Continue | cst.Break


class Arms(NamedTuple):
    """Which arms of a test only some ranks reach, and whether rank 0 is in the first one."""

    then: bool = False
    orelse: bool = False
    first: bool = True

    @property
    def turned(self) -> Arms:
        """The arms of the negated test."""
        return Arms(self.orelse, self.then, not self.first)


@dataclass(frozen=True)
class Guard:
    """A test of the rank around a node.

    Attributes:
        node: the test itself, or the decorator.
        statement: the whole branch: an ``if``, an expression, or the decorated function.
        first: whether rank 0 is among those that reach the node.
        leaves: whether the other ranks have left the function or loop before.
    """

    node: cst.CSTNode
    statement: cst.CSTNode
    first: bool = True
    leaves: bool = False


def rank_test(source: Source, test: cst.BaseExpression, depth: int = 3) -> Arms:
    """Return which arms of a test only some ranks reach."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        if is_rank_value(source, test.expression):
            return Arms(True, True, True)
        return rank_test(source, test.expression, depth).turned
    if isinstance(test, cst.BooleanOperation):
        left = rank_test(source, test.left, depth)
        right = rank_test(source, test.right, depth)
        # ``not is_initialized() or rank == 0``: where several ranks run, the rank decides.
        if isinstance(test.operator, cst.Or):
            if _is_for_one(source, test.left):
                return right
            if _is_for_one(source, test.right):
                return left
        if isinstance(test.operator, cst.And):
            if _is_for_one(source, test.left) or _is_for_one(source, test.right):
                return Arms()
            first = (left if left.then else right).first
            return Arms(left.then or right.then, left.orelse and right.orelse, first)
        first = (left if left.orelse else right).first
        return Arms(left.then and right.then, left.orelse or right.orelse, first)
    if isinstance(test, cst.Comparison):
        return _comparison(source, test)
    if isinstance(test, cst.Call):
        name = source.name(test.func) or last(test.func)
        given = [last(each.value) for each in test.args]
        yes = is_first_rank(name) and (
            not given or (asks_for_first_rank(name) and not any("group" in each for each in given))
        )
        if dotted(test.func) == "bool" and len(test.args) == 1:
            return rank_test(source, test.args[0].value, depth)
        return Arms(yes, yes)
    if isinstance(test, cst.Name) and depth > 0:
        defined = _assigned(source, test)
        if defined is not None:
            return rank_test(source, defined, depth - 1)
    yes = is_first_rank(dotted(test))
    return Arms(yes, yes)


def _comparison(source: Source, test: cst.Comparison) -> Arms:
    if len(test.comparisons) != 1:
        return Arms()
    target = test.comparisons[0]
    left, right, operator = test.left, target.comparator, target.operator
    if is_rank_value(source, right):
        left, right = right, left
    if not is_rank_value(source, left):
        # ``is_main_process == True`` and the like
        if dotted(right) not in ("True", "False") or not isinstance(operator, _EQUALITIES):
            return Arms()
        arms = rank_test(source, left)
        is_same = isinstance(operator, cst.Equal | cst.Is) == (dotted(right) == "True")
        return arms if is_same else arms.turned
    known = _numbers(right)
    if known is None or not isinstance(operator, _EQUALITIES | _ORDERS):
        return Arms()
    if isinstance(operator, _EQUALITIES) and max(known, default=-1.0) < 0:
        return Arms()  # rank == -1: not distributed at all
    if isinstance(operator, cst.GreaterThan | cst.LessThanEqual) and known[0] < 0:
        return Arms()
    if isinstance(operator, cst.GreaterThanEqual | cst.LessThan) and known[0] <= 0:
        return Arms()
    is_zero_in = 0.0 in known if isinstance(operator, _EQUALITIES) else True
    turned = cst.NotEqual | cst.NotIn | cst.IsNot | cst.GreaterThan | cst.GreaterThanEqual
    return Arms(True, True, is_zero_in != isinstance(operator, turned))


def _numbers(node: cst.BaseExpression) -> list[float] | None:
    """Return a constant number, or those of a display, or None."""
    if isinstance(node, cst.List | cst.Tuple | cst.Set):
        found = [number(each.value) for each in node.elements]
        return [each for each in found if each is not None] if None not in found else None
    text = string(node)
    value = float(text) if text is not None and text.isdecimal() else number(node)
    return None if value is None else [value]


def _is_for_one(source: Source, test: cst.BaseExpression) -> bool:
    """Return whether a test is true where one process runs alone: ``not is_initialized()``."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        asked = test.expression
        return is_world(last(asked.func if isinstance(asked, cst.Call) else asked))
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    left, operator = test.left, test.comparisons[0].operator
    limit = number(test.comparisons[0].comparator)
    if is_rank_value(source, left):
        return limit == -1 and isinstance(operator, cst.Equal)
    about = is_world(last(left.func if isinstance(left, cst.Call) else left))
    small = (cst.Equal, 1), (cst.LessThanEqual, 1), (cst.LessThan, 2)
    return about and (type(operator), limit) in small


def is_rank_value(source: Source, node: cst.BaseExpression) -> bool:
    """Return whether an expression is the number of the rank, by its name or by what made it."""
    if isinstance(node, cst.Call):
        name = source.name(node.func)
        if name == "int" and len(node.args) == 1:
            return is_rank_value(source, node.args[0].value)
        if name in ("os.environ.get", "os.getenv") and node.args:
            return string(node.args[0].value) in ENVIRONMENT
        return not node.args and is_rank(name)
    if isinstance(node, cst.Subscript):
        key = node.slice[0].slice if len(node.slice) == 1 else None
        inner = key.value if isinstance(key, cst.Index) else None
        return source.name(node.value) == "os.environ" and string(inner) in ENVIRONMENT
    if isinstance(node, cst.Name):
        if _is_loop_variable(source, node):
            return False
        defined = _assigned(source, node)
        if isinstance(defined, cst.Call | cst.Subscript | cst.Attribute):
            return is_rank_value(source, defined) or is_rank(node.value)
    return is_rank(dotted(node))


def _assigned(source: Source, name: cst.Name) -> cst.BaseExpression | None:
    """Return the one value that the function of a name gives to it, or None."""
    found = [
        value
        for assign, _, value in source.assigned(source.home(name)).get(name.value, [])
        if source.order(assign) < source.order(name) and not source.is_within(name, assign)
    ]
    return found[0] if len(found) == 1 else None


def _is_loop_variable(source: Source, name: cst.Name) -> bool:
    loops = (each for each in source.ancestors(name) if isinstance(each, cst.For))
    return any(isinstance(t := loop.target, cst.Name) and t.value == name.value for loop in loops)


def _arms(source: Source, test: cst.BaseExpression) -> Arms:
    return source.once("arms", test, lambda: rank_test(source, test))


def guards(source: Source, node: cst.CSTNode) -> Iterator[Guard]:
    """Yield the tests by which only some ranks of a function reach a node, the nearest first."""
    below: cst.CSTNode = node
    for each in source.ancestors(node):
        if isinstance(each, cst.If | cst.IfExp):
            arms = _arms(source, each.test)
            is_test = below is each.test
            if (arms.then and below is each.body) or (
                arms.orelse and not is_test and below is not each.body
            ):
                yield Guard(each.test, each, arms.first == (below is each.body))
        elif isinstance(each, cst.BooleanOperation) and below is each.right:
            arms = _arms(source, each.left)
            if arms.then if isinstance(each.operator, cst.And) else arms.orelse:
                yield Guard(each.left, each, arms.first == isinstance(each.operator, cst.And))
        elif isinstance(each, cst.IndentedBlock):
            yield from _left_before(source, each, below)
        elif isinstance(each, cst.FunctionDef):
            for decorator in decorators(each):
                if is_rank_guard(source.name(decorator)):
                    yield Guard(decorator, each)
            return
        elif isinstance(each, cst.Lambda):
            return
        below = each


def unmatched(
    source: Source, name_of: Callable[[cst.Call], str]
) -> Iterator[tuple[cst.Call, Guard, str]]:
    """Yield the named calls under a test of the rank whose function has none for others."""
    found = [
        (call, guard, name)
        for call in source.nodes(cst.Call)
        if (guard := next(guards(source, call), None)) is not None and (name := name_of(call))
    ]
    for call, guard, name in found:
        function = source.function(call)
        if not any(
            other == name and test.first != guard.first
            for each, test, other in found
            if source.function(each) is function
        ):
            yield call, guard, name


def _left_before(source: Source, suite: cst.IndentedBlock, below: cst.CSTNode) -> Iterator[Guard]:
    """Yield the tests above in a block after which some ranks have returned or gone on."""
    for statement in suite.body:
        if statement is below:
            return
        if not isinstance(statement, cst.If) or isinstance(statement.orelse, cst.If):
            continue
        arms = _arms(source, statement.test)
        # ``rank != 0 or done`` lets rank 0 alone go on.
        then = (arms.then or arms.orelse) and leaves(statement.body)
        orelse = statement.orelse is not None and leaves(statement.orelse.body)
        if then and not orelse:
            yield Guard(statement.test, statement, not arms.first, leaves=True)
        elif orelse and arms.orelse and not leaves(statement.body):
            yield Guard(statement.test, statement, arms.first, leaves=True)


def deciding(source: Source, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the tests by which a function comes to a node: around it, or left by before it."""
    below: cst.CSTNode = node
    for each in source.ancestors(node):
        if isinstance(each, cst.If | cst.IfExp | cst.While) and below is not each.test:
            yield each.test
        elif isinstance(each, cst.BooleanOperation) and below is each.right:
            yield each.left
        elif isinstance(each, cst.IndentedBlock):
            for before in each.body:
                if before is below:
                    break
                if isinstance(before, cst.If) and leaves(before.body):
                    yield before.test
        elif isinstance(each, cst.FunctionDef):
            return
        below = each


def leaves(suite: cst.BaseSuite) -> bool:
    """Return whether a block ends by leaving the function or the turn of its loop."""
    end: cst.CSTNode = suite.body[-1]
    if isinstance(end, cst.SimpleStatementLine):
        end = end.body[-1]
    return isinstance(end, _LEAVES)


def before_test(source: Source, node: cst.CSTNode, guard: Guard) -> list[Change]:
    """Return the changes that put a node's statement before a test, where nothing is between."""
    statement, branch = source.statement(node), guard.statement
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(branch, cst.If):
        return []
    if any(source.inside(branch.test, cst.BooleanOperation, cst.NamedExpr)):
        return []  # the rest of the test would be lost
    body: list[cst.CSTNode] = list(branch.body.body)
    if guard.leaves:
        parent = source.parent(branch)
        around: list[cst.CSTNode] = []
        if isinstance(parent, cst.IndentedBlock):
            around = list(parent.body)
        body = around[around.index(branch) + 1 :] if branch in around else []
    if not body or body[0] is not statement or len(statement.body) != 1:
        return []
    moved = statement.body[0]
    if not isinstance(moved, cst.Expr | cst.Assign) or moved.value is not node:
        return []
    text = source.module.code_for_node(statement.body[0])
    comment = statement.trailing_whitespace.comment
    told = f"{text}  {comment.value}" if comment is not None else text
    if guard.leaves or len(body) > 1:
        return [Change(branch, told, "before"), Change(statement.body[0], "")]
    is_bare = branch.orelse is None and not any(e.comment for e in statement.leading_lines)
    if is_bare and not isinstance(source.parent(branch), cst.If):
        return [Change(branch, text)]  # nothing is left to test
    return [Change(branch, text, "before"), Change(statement.body[0], "")]

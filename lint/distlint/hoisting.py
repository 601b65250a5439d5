"""Moving a collective in front of the rank guard that hides it, and whether that changes anything else."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from distlint.api import unbound
from distlint.concrete import ConcreteTree
from distlint.model import Change, Repair
from distlint.nodes import contains, names_in, names_set, within
from distlint.syntax import FunctionNode, dotted

# What hands back a new value and leaves everything else alone, so that the other ranks may make it unseen; and what
# that value is called.
_HARMLESS = {
    "all_gather": "gathered",
    "barrier": "",
    "compute": "computed",
    "gather": "gathered",
    "gather_for_metrics": "gathered",
    "get_state_dict": "state_dict",
    "pad_across_processes": "padded",
    "wait_for_everyone": "",
}
# What every rank is meant to make too, but which writes files.
_WRITING = frozenset({"save", "save_16bit_model", "save_checkpoint", "save_model", "save_state"})
_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_MAYBE = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
_BLOCKS = ("body", "orelse", "finalbody")


class _Block(NamedTuple):
    """A block around the call.

    Attributes:
        owner: the statement, function or module that it belongs to.
        before: its statements before the one that the call is in.
        statement: that one.
    """

    owner: ast.AST
    before: Sequence[ast.stmt]
    statement: ast.stmt


def hoist(
    function: FunctionNode, call: ast.expr, label: str
) -> Callable[[ConcreteTree, cst.CSTNode], Repair | None] | None:
    """Make a call on every rank, right before the branch on the rank around it; None where that may do something else.

    It is safe where the call is the first thing that happens in the branch, needs nothing that only this branch has,
    and leaves the other ranks as they were. That nothing but one plain test of the rank keeps ranks from it, the
    caller knows.
    """
    *around, inner = _blocks(function.node, call)
    branch = inner.owner
    if not isinstance(call, ast.Call) or not isinstance(branch, ast.If) or inner.statement not in branch.body:
        return None
    if _is_elif(around[-1]) or not _is_first(inner, call) or not _can_be_made_before(function, around, call):
        return None
    name = _HARMLESS.get(label, "saved" if label in _WRITING else None)
    if name is None:
        return None
    full = function.module.qualify(call.func, function) or unbound(dotted(call.func))
    is_safe = label in _HARMLESS and not full.startswith("torch.")
    used = names_in(function.module.tree)
    name = name or f"{ast.unparse(call.func).rpartition('.')[2]}_result"
    fresh = next(each for each in (name, *(f"{name}_{number}" for number in range(2, 99))) if each not in used)
    return lambda tree, node: Repair(is_safe, _changes(tree, node, fresh))


def _blocks(owner: ast.AST, call: ast.expr) -> Iterator[_Block]:
    """The blocks around a call, outermost first."""
    for name in _BLOCKS:
        block = getattr(owner, name, ())
        for number, statement in enumerate(block):
            if contains(statement, call):
                yield _Block(owner, block[:number], statement)
                yield from _blocks(statement, call)


def _is_elif(around: _Block) -> bool:
    """Whether the branch continues another one."""
    above = around.owner
    is_else = isinstance(above, ast.If) and above.orelse == [around.statement]
    return is_else and isinstance(above, ast.If) and above.col_offset == around.statement.col_offset


def _is_first(inner: _Block, call: ast.Call) -> bool:
    """Whether nothing with an effect comes before the call in its branch."""
    if not isinstance(inner.statement, _SIMPLE) or not all(map(_only_names, inner.before)):
        return False
    place = call.lineno, call.col_offset
    for node in ast.walk(inner.statement):
        is_around = contains(node, call)
        if isinstance(node, _MAYBE) and is_around:
            return False
        if isinstance(node, _EFFECTS) and not is_around and (node.lineno, node.col_offset) < place:
            return False
    return True


def _only_names(statement: ast.stmt) -> bool:
    """``x = y``: a statement that a moved call need not wait for."""
    is_plain = isinstance(statement, ast.Assign) and all(isinstance(each, ast.Name) for each in statement.targets)
    return is_plain and not any(isinstance(each, _EFFECTS) for each in ast.walk(statement))


def _can_be_made_before(function: FunctionNode, around: Sequence[_Block], call: ast.Call) -> bool:
    """Whether receiver and arguments can be had, without effect, where the branch begins."""
    parts = [call.func, *call.args, *(each.value for each in call.keywords)]
    nodes = [node for part in parts for node in ast.walk(part)]
    if any(isinstance(node, _EFFECTS + _MAYBE) for node in nodes):
        return False
    known = {each.arg for each in function.parameters}
    for block in around:
        known |= _bound(block.owner, is_whole=False).union(*map(_bound, block.before))
    unknown = {node.id for node in nodes if isinstance(node, ast.Name)} - known
    return unknown.isdisjoint(_bound(function.node)) and _unchanged(nodes, around[-1].statement)


def _unchanged(nodes: Sequence[ast.AST], branch: ast.stmt) -> bool:
    """Whether no name of the call gets a value in the branch."""
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names.isdisjoint(names_set(branch))


def _bound(node: ast.AST, is_whole: bool = True) -> set[str]:
    """Names that get a value in a function; on every way through a statement; of a block's owner, before its block."""
    if isinstance(node, ast.For | ast.AsyncFor) and not is_whole:
        return names_set(node.target)
    if isinstance(node, ast.With | ast.AsyncWith) and not is_whole:
        return {name for item in node.items if item.optional_vars for name in names_set(item.optional_vars)}
    if not is_whole or isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.Match):
        return set()
    return names_set(node) | {each.name for each in within(node, ast.FunctionDef)}


def _changes(tree: ConcreteTree, call: cst.CSTNode, name: str) -> tuple[Change, ...]:
    branch = next(above for above in tree.ancestors(call) if isinstance(above, cst.If))
    code = tree.source_at(call, branch)
    statement = tree.parents[call]
    if not isinstance(statement, cst.Expr):
        return (Change(branch, f"{name} = {code}", "before"), Change(call, name))
    is_all = isinstance(branch.body, cst.IndentedBlock) and len(branch.body.body) == 1
    without = Change(statement, "pass") if is_all else Change(tree.parents[statement], "")
    return (Change(branch, code, "before"), without)

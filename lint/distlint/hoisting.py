"""Moving a collective in front of the rank guard that hides it, and whether that changes anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.rewrite import source_at
from distlint.facts.tree import names_in, statements, tail, walk
from distlint.model import Change, Repair

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

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
_EFFECTS = (cst.Call, cst.Await, cst.Yield, cst.NamedExpr)
_MAYBE = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)


def hoist(facts: ModuleFacts, call: cst.CSTNode, label: str) -> Repair | None:
    """Make a call on every rank, right before the branch on the rank around it; None where that may do something else.

    It is safe where the call is the first thing that happens in the branch, needs nothing that only this branch has,
    and leaves the other ranks as they were. That nothing but one plain test of the rank keeps ranks from it, the
    caller knows.
    """
    name = _HARMLESS.get(label)
    branch = next((above for above in facts.ancestors(call) if isinstance(above, cst.If)), None)
    if not isinstance(call, cst.Call) or branch is None or (name is None and label not in _WRITING):
        return None
    if not isinstance(facts.parents[branch], cst.IndentedBlock | cst.Module):
        return None  # an elif
    if not _is_first(facts, call, branch) or not _can_be_made_before(facts, call, branch):
        return None
    is_framework = not (facts.resolve(call.func) or "").startswith("torch.")
    return Repair(name is not None and is_framework, _changes(facts, call, branch, name or "saved"))


def _is_first(facts: ModuleFacts, call: cst.Call, branch: cst.If) -> bool:
    """Whether nothing with an effect comes before the call in its branch."""
    for statement in statements(branch.body):
        inside = list(walk(statement))
        if not isinstance(statement, cst.SimpleStatementLine):
            return False
        if call in inside:
            return len(statement.body) == 1 and _is_evaluated_first(facts, call, statement)
        if any(isinstance(node, _EFFECTS) for node in inside) or not _only_names(statement):
            return False
    return False


def _only_names(statement: cst.SimpleStatementLine) -> bool:
    """``x = y``: a statement that a moved call need not wait for."""
    parts = [part for part in statement.body if isinstance(part, cst.Assign)]
    targets = [target.target for part in parts for target in part.targets]
    return len(parts) == len(statement.body) and all(isinstance(target, cst.Name) for target in targets)


def _is_evaluated_first(facts: ModuleFacts, call: cst.Call, statement: cst.CSTNode) -> bool:
    around = [call]
    for above in facts.ancestors(call):
        if isinstance(above, _MAYBE):
            return False
        if above is statement:
            break
        around.append(above)  # type: ignore[arg-type]
    place = facts.order[call]
    before = [node for node in walk(statement) if facts.order[node] < place and node not in around]
    return not any(isinstance(node, _EFFECTS) for node in before)


def _can_be_made_before(facts: ModuleFacts, call: cst.Call, branch: cst.If) -> bool:
    """Whether receiver and arguments can be had, without effect, where the branch begins."""
    parts = [call.func, *(arg.value for arg in call.args)]
    nodes = [node for part in parts for node in walk(part)]
    if any(isinstance(node, _EFFECTS) for node in nodes) or any(isinstance(node, _MAYBE) for node in nodes):
        return False
    names = [node for node in nodes if isinstance(node, cst.Name) and _is_variable(facts, node)]
    return all(_is_known_before(facts, name, branch) for name in names)


def _is_variable(facts: ModuleFacts, name: cst.Name) -> bool:
    parent = facts.parents[name]
    is_member = isinstance(parent, cst.Attribute) and parent.attr is name
    return not is_member and not (isinstance(parent, cst.Arg) and parent.keyword is name)


def _is_known_before(facts: ModuleFacts, name: cst.Name, branch: cst.If) -> bool:
    """Whether a name has its value before the branch, on every way there."""
    found = reaching(facts, name)
    if not found:
        return bool(facts.scope(name).lookup(name.value))  # of the module
    blocks = [branch, *facts.ancestors(branch)]
    for definition in found:
        statement = facts.statement(definition.node)
        if isinstance(definition.node, cst.Param) or (isinstance(statement, cst.For) and statement in blocks):
            return True
        if facts.parents[statement] in blocks and branch.body is not facts.parents[statement]:
            return facts.order[statement] < facts.order[branch]
        if branch in facts.ancestors(statement):
            return False
    return False


def _changes(facts: ModuleFacts, call: cst.Call, branch: cst.If, name: str) -> tuple[Change, ...]:
    code = source_at(facts, call, branch)
    statement = facts.parents[call]
    if isinstance(statement, cst.Expr):
        return (Change(branch, code, "before"), _without(facts, statement, branch))
    name = _fresh(facts, call, name or f"{tail(call.func)}_result")
    return (Change(branch, f"{name} = {code}", "before"), Change(call, name))


def _without(facts: ModuleFacts, statement: cst.Expr, branch: cst.If) -> Change:
    """The branch without a statement that was all that stood on its line."""
    if len(statements(branch.body)) == 1:
        return Change(statement, "pass")
    return Change(facts.parents[statement], "")


def _fresh(facts: ModuleFacts, call: cst.Call, name: str) -> str:
    """``name``, or with a number, so that it hides no other."""
    used = names_in(facts.function_of(call) or facts.module)
    number, chosen = 1, name
    while chosen in used or facts.scope(call).lookup(chosen):
        number += 1
        chosen = f"{name}_{number}"
    return chosen

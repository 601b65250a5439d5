"""Which code validation and test reach: hooks, and helpers that they call with a stage to tell by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.tree import dotted, positional, statements, tail, text_of, walk, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

EVALUATION_HOOKS = frozenset(
    {f"{stage}_{end}" for stage in ("validation", "test") for end in ("step", "epoch_end")}
    | {f"on_{stage}_{end}" for stage in ("validation", "test") for end in ("batch_end", "epoch_end", "end")}
)
_DEEPEST = 4
# What these say of the stage while an evaluation runs.
_STATES = {
    "training": False,
    "sanity_checking": False,
    "is_train": False,
    "is_training": False,
    "train": False,
    "training_mode": False,
}
_WORDS = frozenset({"train", "training", "fit", "val", "valid", "validation", "validate", "test", "eval", "predict"})
_ASKS = _WORDS | {"stage", "split", "phase", "mode", "subset", "validating", "testing", "train_mode"}

Value = str | bool | None
_CONSTANTS: dict[str, Value] = {"True": True, "False": False, "None": None}
Environment = Mapping[str, Value]


@dataclass(frozen=True)
class Way:
    """How a method is reached: what its parameters are known to be, and the call that led here.

    Attributes:
        known: literal arguments by the name of the parameter.
        call: None for a hook.
    """

    known: Environment
    call: cst.Call | None = None


class Stages:
    """Finds what evaluation reaches in one module.

    Args:
        facts: the module.
        hooks: the names of the methods where an evaluation begins.
    """

    def __init__(self, facts: ModuleFacts, hooks: frozenset[str] = EVALUATION_HOOKS) -> None:
        self._facts = facts
        self._hooks = hooks
        self._ways: dict[cst.FunctionDef, list[Way]] = {}
        for function in facts.nodes(cst.FunctionDef):
            if function.name.value in hooks:
                self._reach(function, Way({}), 0)

    def ways(self, function: cst.FunctionDef | None) -> list[Way]:
        """How evaluation comes to a function; empty when it does not."""
        return self._ways.get(function, []) if function is not None else []

    def is_evaluated(self, node: cst.CSTNode) -> bool:
        """Whether an evaluation reaches a place, as far as stages tell."""
        function = self._facts.function_of(node)
        return function is not None and any(self._passes(node, function, way.known) for way in self.ways(function))

    def _reach(self, function: cst.FunctionDef, way: Way, depth: int) -> None:
        found = self._ways.setdefault(function, [])
        if depth > _DEEPEST or any(each.known == way.known for each in found):
            return
        found.append(way)
        for call in walk_scope(function.body):
            if not isinstance(call, cst.Call):
                continue
            helper = self._facts.local_function(call)
            if helper is None or helper is function or helper.name.value in self._hooks:
                continue
            if self._passes(call, function, way.known):
                self._reach(helper, Way(self._bind(helper, call, way.known), call), depth + 1)

    def _bind(self, helper: cst.FunctionDef, call: cst.Call, known: Environment) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, value in arguments(self._facts, helper, call):
            if isinstance(value, cst.Name) and value.value in known:
                found[name] = known[value.value]
            elif is_literal(value):
                found[name] = literal(value)
        return found

    def _passes(self, node: cst.CSTNode, function: cst.FunctionDef, known: Environment) -> bool:
        """Whether the tests on the way to a node let this evaluation pass; a stage that is unknown does not."""
        below = node
        for above in self._facts.ancestors(node):
            if isinstance(above, cst.If) and below is not above.test:
                if not self._may_take(above.test, below is above.body, known):
                    return False
            elif isinstance(above, cst.IndentedBlock) and self._has_left(above, below, known):
                return False
            if above is function:
                break
            below = above
        return True

    def _may_take(self, test: cst.BaseExpression, arm: bool, known: Environment) -> bool:
        outcome = self.decide(test, known)
        return not tells_stage(test) if outcome is None else outcome is arm

    def _has_left(self, block: cst.IndentedBlock, below: cst.CSTNode, known: Environment) -> bool:
        """``if stage == "train": return …`` before the node, or the like."""
        for statement in statements(block):
            if statement is below:
                return False
            if isinstance(statement, cst.If) and isinstance(statement.body, cst.IndentedBlock):
                last = statement.body.body[-1]
                leaves = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return | cst.Raise)
                if leaves and self.decide(statement.test, known) is True:
                    return True
        return False

    def decide(self, test: cst.BaseExpression, known: Environment) -> bool | None:
        """The outcome of a test of the stage in an evaluation; None when it is not known."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self.decide(test.expression, known)
            return None if inner is None else not inner
        if isinstance(test, cst.BooleanOperation):
            left, right = self.decide(test.left, known), self.decide(test.right, known)
            decisive = isinstance(test.operator, cst.Or)
            if left is decisive or right is decisive:
                return decisive
            return None if left is None or right is None else not decisive
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return _compare(test.left, test.comparisons[0], known)
        if isinstance(test, cst.Name):
            return bool(known[test.value]) if test.value in known else _STATES.get(test.value)
        if isinstance(test, cst.Attribute):
            return _STATES.get(test.attr.value) if _is_state(test) else None
        if isinstance(test, cst.Call) and tail(test.func) == "startswith" and isinstance(test.func, cst.Attribute):
            given, subject = positional(test), test.func.value
            if isinstance(subject, cst.Name) and isinstance(known.get(subject.value), str) and given:
                return str(known[subject.value]).startswith(text_of(given[0]) or "\0")
        return None


def _is_state(node: cst.Attribute) -> bool:
    """``self.training``, ``self.trainer.training`` and the like, not a field of a configuration."""
    return (dotted(node.value) or "").rpartition(".")[2] in ("self", "trainer", "pl_module", "model")


def _compare(left: cst.BaseExpression, target: cst.ComparisonTarget, known: Environment) -> bool | None:
    if not isinstance(left, cst.Name) or left.value not in known:
        return None
    value, other, operator = known[left.value], target.comparator, target.operator
    if isinstance(operator, cst.Equal | cst.NotEqual | cst.Is | cst.IsNot) and is_literal(other):
        return (value == literal(other)) is isinstance(operator, cst.Equal | cst.Is)
    if isinstance(operator, cst.In | cst.NotIn) and isinstance(other, cst.List | cst.Tuple | cst.Set):
        parts = [element.value for element in other.elements]
        if all(is_literal(part) for part in parts):
            return (value in [literal(part) for part in parts]) is isinstance(operator, cst.In)
    return None


def tells_stage(test: cst.BaseExpression) -> bool:
    """Whether a test seems to ask for the stage: it compares with the name of one, or is called so."""
    for node in walk(test):
        if isinstance(node, cst.SimpleString) and (text_of(node) or "").lower().rstrip("/_") in _WORDS:
            return True
        if isinstance(node, cst.Name) and node.value.lower().removeprefix("is_").removeprefix("in_") in _ASKS:
            return True
    return False


def is_literal(node: cst.BaseExpression) -> bool:
    """A string, True, False or None as written."""
    return isinstance(node, cst.SimpleString) or (isinstance(node, cst.Name) and node.value in _CONSTANTS)


def literal(node: cst.BaseExpression) -> Value:
    """The value of a literal."""
    return _CONSTANTS[node.value] if isinstance(node, cst.Name) else text_of(node)


def arguments(
    facts: ModuleFacts, function: cst.FunctionDef, call: cst.Call
) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Parameters of a function of this module with what a call, or their default, gives them."""
    params = [*function.params.params]
    if facts.class_of(function) is not None and isinstance(call.func, cst.Attribute):
        params = params[1:]
    given = dict(zip((param.name.value for param in params), positional(call), strict=False))
    given |= {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    for param in (*params, *function.params.kwonly_params):
        value = given.get(param.name.value, param.default)
        if value is not None:
            yield param.name.value, value

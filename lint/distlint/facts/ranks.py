"""Conditions that differ between ranks, and how each rank decides them.

A test is brought to *keys*: ``rank==0``, ``local_rank==0``, ``rank==src``, … A ``Role`` says for every key
whether it holds. Tests that are the same on every rank become opaque texts; tests of *whether* the job is
distributed are decided as in a distributed job, since a job of one process cannot hang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.comparisons import compare_order, is_negative, is_without_group, operands
from distlint.facts.rank_names import (
    DISTRIBUTED_FLAGS,
    FLAGS,
    NOT_RANKS,
    RANK_ENVIRONMENT,
    RANKS,
    WORLD_SIZES,
    ZERO_FLAGS,
)
from distlint.facts.roles import Role, Same, Truth, negate
from distlint.facts.tree import dotted, number, positional, tail, text_of, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


class RankTests:
    """Decides tests for a role.

    Args:
        facts: the module.

    Attributes:
        of_ranks: whether it is tests of the rank that are decided; then a decorator is one too, and the end of
            the job is a way to compare.
    """

    of_ranks = True

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._key_cache: dict[cst.CSTNode, tuple[str, bool] | None] = {}

    def keys(self, test: cst.BaseExpression) -> set[str]:
        """The rank keys that decide a test."""
        found: set[str] = set()
        self._collect(test, found, 0)
        return found

    def is_plain(self, test: cst.BaseExpression) -> bool:
        """Whether a test asks for one rank and nothing else, ``rank == 0`` or ``is_global_zero``."""
        if isinstance(test, cst.Comparison) and not isinstance(test.comparisons[0].operator, cst.Equal):
            return False
        atom = self._atom(test)
        return atom is not None and atom[1]

    def decide(self, test: cst.BaseExpression, role: Role, depth: int = 0) -> Truth:
        """What a rank of this role makes of the test."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return negate(self.decide(test.expression, role, depth))
        if isinstance(test, cst.BooleanOperation):
            return self._decide_both(test, role, depth)
        if isinstance(test, cst.IfExp):
            chosen = self.decide(test.test, role, depth)
            if isinstance(chosen, bool):
                return self.decide(test.body if chosen else test.orelse, role, depth)
        if isinstance(test, cst.NamedExpr):
            return self.decide(test.value, role, depth)
        if isinstance(test, cst.Name) and test.value in ("True", "False"):
            return test.value == "True"
        atom = self._atom(test)
        if atom is not None:
            key, positive = atom
            return role.get(key, False) == positive
        world = self._world(test)
        if world is not None:
            return world
        derived = self._derived(test) if depth < 4 else None
        if derived is not None and (self.keys(derived) or self._world(derived) is not None):
            return self.decide(derived, role, depth + 1)
        return Same(self._facts.code(test))

    def _decide_both(self, test: cst.BooleanOperation, role: Role, depth: int) -> Truth:
        is_or = isinstance(test.operator, cst.Or)
        if self._is_right_guard(test):
            return Same(self._facts.code(test))
        if self.of_ranks and not is_or and self._is_alone(test):
            return False
        left, right = self.decide(test.left, role, depth), self.decide(test.right, role, depth)
        for value in (left, right):
            if value is is_or:
                return is_or
        known = [value for value in (left, right) if isinstance(value, Same)]
        if not known:
            return not is_or
        if len(known) == 1 or known[0] == known[1]:
            return known[0]
        joined = (" or " if is_or else " and ").join(f"({'not ' * item.negated}{item.text})" for item in known)
        return Same(joined)

    def _is_right_guard(self, test: cst.BooleanOperation) -> bool:
        """``sharded or is_main_process``, or its negation: every rank where all are needed, else the first."""
        parts = list(operands(test, type(test.operator)))
        is_and = isinstance(test.operator, cst.And)
        if is_and and not (all(is_negative(part) for part in parts) and self._is_early_exit(test)):
            return False
        ranked = [bool(self.keys(part)) for part in parts]
        settled = [isinstance(self.decide(part, {}), bool) for part in parts]
        return any(ranked) and any(not rank and not sure for rank, sure in zip(ranked, settled, strict=True))

    def _is_alone(self, test: cst.BooleanOperation) -> bool:
        """``group is None and is_main_process``: the way of a single process, which has nobody to wait for."""
        parts = operands(test, cst.And)
        return any(is_without_group(part) for part in parts) and any(self.keys(part) for part in parts)

    def _is_early_exit(self, test: cst.BaseExpression) -> bool:
        """Whether those for whom a test holds do nothing but leave; or it is part of, or a name for, something else."""
        branch = self._facts.parents.get(test)
        if not isinstance(branch, cst.If):
            return True
        return any(isinstance(node, cst.Return | cst.Continue | cst.Raise) for node in walk_scope(branch.body))

    def _collect(self, test: cst.BaseExpression, found: set[str], depth: int) -> None:
        atom = self._atom(test)
        if atom is not None:
            found.add(atom[0])
            return
        if isinstance(test, cst.UnaryOperation):
            self._collect(test.expression, found, depth)
        elif isinstance(test, cst.BooleanOperation):
            self._collect(test.left, found, depth)
            self._collect(test.right, found, depth)
        elif isinstance(test, cst.IfExp):
            for part in (test.test, test.body, test.orelse):
                self._collect(part, found, depth)
        elif isinstance(test, cst.NamedExpr):
            self._collect(test.value, found, depth)
        elif isinstance(test, cst.Name | cst.Attribute | cst.Call) and depth < 4:
            derived = self._derived(test)
            if derived is not None:
                self._collect(derived, found, depth + 1)

    def _atom(self, test: cst.BaseExpression) -> tuple[str, bool] | None:
        """The rank key of a test without operators, and whether the test holds when the key does."""
        if test not in self._key_cache:
            self._key_cache[test] = self._find_atom(test)
        return self._key_cache[test]

    def _find_atom(self, test: cst.BaseExpression) -> tuple[str, bool] | None:
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            target = test.comparisons[0]
            return self._compare(test.left, target.operator, target.comparator)
        if not isinstance(test, cst.Name | cst.Attribute | cst.Call):
            return None
        name = tail(test) or ""
        rank = self.rank(test)
        if rank is not None:
            return f"{rank}==0", False
        if name in FLAGS:
            return FLAGS[name], True
        if name in ZERO_FLAGS and self._may_be_flag(test):
            return ZERO_FLAGS[name], True
        return None

    def _may_be_flag(self, test: cst.BaseExpression) -> bool:
        """A conventional name is believed unless the file defines it by something else."""
        derived = self._derived(test)
        return derived is None or not isinstance(derived, cst.SimpleString | cst.Integer | cst.Comparison)

    def _compare(
        self, left: cst.BaseExpression, operator: cst.BaseCompOp, right: cst.BaseExpression
    ) -> tuple[str, bool] | None:
        rank, other, swapped = self.rank(left), right, False
        if rank is None:
            rank, other, swapped = self.rank(right), left, True
        if rank is None:
            return None
        if isinstance(operator, cst.In | cst.NotIn):
            return self._compare_many(rank, other, isinstance(operator, cst.In))
        value = number(other)
        if value is None and (text_of(other) or "").isdigit():  # os.environ["RANK"] == "0"
            value = int(text_of(other) or "")
        if isinstance(operator, cst.Equal | cst.NotEqual | cst.Is | cst.IsNot):
            positive = isinstance(operator, cst.Equal | cst.Is)
            if value == -1 or (isinstance(other, cst.Name) and other.value == "None"):
                return None
            return f"{rank}=={self._facts.code(other) if value is None else value}", positive
        return compare_order(rank, operator, value, self._facts.code(other), swapped)

    def _compare_many(self, rank: str, other: cst.BaseExpression, positive: bool) -> tuple[str, bool] | None:
        if isinstance(other, cst.List | cst.Tuple | cst.Set):
            values = {number(element.value) for element in other.elements}
            if values <= {0, -1} and 0 in values:
                return f"{rank}==0", positive
        return f"{rank} in {self._facts.code(other)}", positive

    def rank(self, node: cst.BaseExpression, depth: int = 0) -> str | None:
        """``rank`` or ``local_rank`` when the expression is this process's number in the world."""
        if isinstance(node, cst.Call):
            given = positional(node)
            if tail(node.func) == "int" and given:
                return self.rank(given[0], depth)
            if tail(node.func) in ("get", "getenv") and given:
                return RANK_ENVIRONMENT.get(text_of(given[0]) or "")
            full = self._facts.resolve(node.func) or ""
            if full == "horovod.torch.rank" or (tail(node.func) == "rank" and full.startswith("horovod")):
                return "rank"
            if given or node.args or tail(node.func) == "rank":
                return None  # the rank inside a group, or a tensor's
        if isinstance(node, cst.Subscript) and dotted(node.value) in ("os.environ", "environ"):
            index = node.slice[0].slice
            return RANK_ENVIRONMENT.get(text_of(index.value) or "") if isinstance(index, cst.Index) else None
        if not isinstance(node, cst.Name | cst.Attribute | cst.Call):
            return None
        derived = self._derived(node) if not isinstance(node, cst.Call) else None
        if derived is not None and depth < 4:
            return self._rank_of_value(node, derived, depth + 1)
        return RANKS.get(tail(node) or "")

    def _rank_of_value(self, node: cst.BaseExpression, value: cst.BaseExpression, depth: int) -> str | None:
        """The rank that ``node`` is, given what is assigned to it."""
        if isinstance(value, cst.IfExp):
            return self.rank(value.body, depth) or self.rank(value.orelse, depth)
        found = self.rank(value, depth)
        if found is not None or isinstance(value, cst.Integer):
            return found
        if isinstance(value, cst.Call) and (tail(value.func) in NOT_RANKS or tail(value.func) in RANKS):
            return None  # a tensor's rank, or the rank inside a group
        return RANKS.get(tail(node) or "")

    def _world(self, test: cst.BaseExpression) -> bool | None:
        """The outcome, in a distributed job, of a test of whether the job is one."""
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return self._compare_world(test.left, test.comparisons[0])
        name = tail(test)
        full = self._facts.resolve(test.func if isinstance(test, cst.Call) else test) or ""
        if full == "torch.distributed.is_available" or name in DISTRIBUTED_FLAGS:
            return True
        return None

    def _compare_world(self, left: cst.BaseExpression, target: cst.ComparisonTarget) -> bool | None:
        operator, value = target.operator, number(target.comparator)
        if self.rank(left) is not None:
            if value == -1 or (value == 0 and isinstance(operator, cst.GreaterThanEqual)):
                return isinstance(operator, cst.NotEqual | cst.GreaterThan | cst.GreaterThanEqual)
            if isinstance(target.comparator, cst.Name) and target.comparator.value == "None":
                return isinstance(operator, cst.IsNot | cst.NotEqual)
            return (False if isinstance(operator, cst.LessThan) else None) if value == 0 else None
        if tail(left) not in WORLD_SIZES or value is None or value > 2:
            return None
        if isinstance(operator, cst.Equal | cst.NotEqual):
            return isinstance(operator, cst.NotEqual) if value <= 1 else None
        if isinstance(operator, cst.GreaterThan | cst.GreaterThanEqual):
            return True
        return False if isinstance(operator, cst.LessThan | cst.LessThanEqual) and value <= 2 else None

    def _derived(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """What a variable, an attribute of ``self`` or a function of this file stands for."""
        if isinstance(node, cst.Name):
            bindings = self._facts.scope(node).lookup(node.value)
            if len(bindings) == 1 and bindings[0].kind == "value" and not bindings[0].steps:
                return bindings[0].value
            return None
        if isinstance(node, cst.Attribute):
            name, owner = self._facts.self_attribute(node), self._facts.owner(node)
            if name is None or owner is None:
                return None
            values = owner.values(name)
            method = owner.method(name)
            if method is not None and not values:
                return self._returned(method)
            return values[0] if len(values) == 1 else None
        if isinstance(node, cst.Call):
            function = self._facts.local_function(node)
            return None if function is None else self._returned(function)
        return None

    def _returned(self, function: cst.FunctionDef) -> cst.BaseExpression | None:
        values = self._facts.returns(function)
        return values[-1] if values and len(values) <= 2 else None

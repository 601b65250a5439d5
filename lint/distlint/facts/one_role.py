"""One function as one kind of rank goes through it.

Every statement is given what comes after it, so an early return simply drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.project import FunctionSummary
from distlint.facts.roles import Role, Same, first
from distlint.facts.sequences import Sequence, Sequences, events_for_callers
from distlint.facts.tree import children, dotted, statements

if TYPE_CHECKING:
    from distlint.facts.projection import Projector

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
_DEEPEST_HELPER = 6


class Projection:
    """One function for one role.

    Args:
        projector: knows the collectives and decides tests.
        make: makes the sequences.
        region: the function, or the module.
        role: the kind of rank.
        stack: the helpers that are being gone through already.
    """

    def __init__(
        self,
        projector: Projector,
        make: Sequences,
        region: cst.FunctionDef | cst.Module,
        role: Role,
        stack: tuple[cst.FunctionDef, ...] = (),
    ) -> None:
        self._all = projector
        self._make = make
        self._region = region
        self._role = role
        self._stack = stack
        self._leave: Sequence | None = None  # where return goes inside of a loop
        self._loops: list[tuple[Sequence, Sequence]] = []

    def run(self) -> Sequence:
        """The sequence of the whole region."""
        body = self._region if isinstance(self._region, cst.Module) else self._region.body
        return self._block(body, self._make.end)

    def _block(self, body: cst.CSTNode, after: Sequence) -> Sequence:
        for statement in reversed(statements(body)):
            after = self._statement(statement, after)
        return after

    def _statement(self, node: cst.CSTNode, after: Sequence) -> Sequence:
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            for part in reversed(node.body):
                after = self._small(part, after)
            return after
        if isinstance(node, cst.If):
            return self._if(node, after)
        if isinstance(node, cst.Else | cst.Finally):
            return self._block(node.body, after)
        if isinstance(node, cst.With):
            after = self._block(node.body, after)
            for item in reversed(node.items):
                after = self._expression(item.item, after)
            return after
        if isinstance(node, cst.For | cst.While):
            return self._loop(node, after)
        if isinstance(node, cst.Try | cst.TryStar):
            return self._try(node, after)
        if isinstance(node, cst.Match):
            for number, case in enumerate(reversed(node.cases)):
                arm = self._block(case.body, after)
                after = self._make.either(f"{self._text(node.subject)} case {number}", arm, after, stable=False)
            return self._expression(node.subject, after)
        return after

    def _small(self, node: cst.CSTNode, after: Sequence) -> Sequence:
        if isinstance(node, cst.Return):
            after = self._make.end if self._leave is None else self._leave
        elif isinstance(node, cst.Raise) or (
            isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and dotted(node.value.func) in _EXITS
        ):
            return self._make.abort
        elif isinstance(node, cst.Break) and self._loops:
            return self._loops[-1][0]
        elif isinstance(node, cst.Continue) and self._loops:
            return self._loops[-1][1]
        return self._expression(node, after)

    def _branch(self, test: cst.BaseExpression, then: Sequence, orelse: Sequence) -> Sequence:
        """The way on after a test of which neither arm has been chosen yet."""
        if isinstance(test, cst.BooleanOperation) and self._all.holds_name(test, self._region):
            right = self._branch(test.right, then, orelse)
            if isinstance(test.operator, cst.And):
                return self._branch(test.left, right, orelse)
            return self._branch(test.left, then, right)
        outcome = self._all.tests.decide(test, self._role)
        if isinstance(outcome, Same):
            if outcome.negated:
                then, orelse = orelse, then
            stable = self._all.is_stable(test, self._region)
            chosen = self._make.either(outcome.text, then, orelse, stable=stable)
        else:
            chosen, other = (then, orelse) if outcome else (orelse, then)
            if not self._all.tests.of_ranks and chosen.number == self._make.abort.number:
                chosen = other
        return self._expression(test, chosen)

    def _if(self, node: cst.If, after: Sequence) -> Sequence:
        orelse = after if node.orelse is None else self._statement(node.orelse, after)
        return self._branch(node.test, self._block(node.body, after), orelse)

    def _loop(self, node: cst.For | cst.While, after: Sequence) -> Sequence:
        rest = after if node.orelse is None else self._statement(node.orelse, after)
        make, leave = self._make, self._leave
        self._leave = make.leave_function
        self._loops.append((make.leave_loop, make.next_turn))
        body = self._block(node.body, make.next_turn)
        if isinstance(node, cst.While):
            body = self._expression(node.test, body)
        self._loops.pop()
        self._leave = leave
        sequence = make.loop(body, rest)
        return self._expression(node.iter, sequence) if isinstance(node, cst.For) else sequence

    def _try(self, node: cst.Try | cst.TryStar, after: Sequence) -> Sequence:
        if node.finalbody is not None:
            after = self._block(node.finalbody.body, after)
        normal = after if node.orelse is None else self._block(node.orelse.body, after)
        normal = self._block(node.body, normal)
        handlers: tuple[cst.ExceptHandler | cst.ExceptStarHandler, ...] = (*node.handlers,)
        for number, handler in enumerate(handlers):
            if self._all.is_marked(handler):
                other = self._block(handler.body, after)
                normal = self._make.either(f"except {number} of {id(node)}", other, normal, stable=False)
        return normal

    def _expression(self, node: cst.CSTNode, after: Sequence) -> Sequence:
        """Events of an expression in the order in which it is evaluated, then ``after``."""
        if not self._all.is_marked(node) or isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            return after
        if isinstance(node, cst.IfExp):
            then, orelse = self._expression(node.body, after), self._expression(node.orelse, after)
            return self._branch(node.test, then, orelse)
        if isinstance(node, cst.BooleanOperation):
            right = self._expression(node.right, after)
            is_and = isinstance(node.operator, cst.And)
            return self._branch(node.left, right if is_and else after, after if is_and else right)
        if isinstance(node, cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp):
            return self._comprehension(node, after)
        if isinstance(node, cst.Call):
            after = self.call(node, after)
        for child in reversed(children(node)):
            after = self._expression(child, after)
        return after

    def _comprehension(
        self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, after: Sequence
    ) -> Sequence:
        body = self._make.next_turn
        for child in reversed(children(node)):
            if child is not node.for_in:
                body = self._expression(child, body)
        after = self._make.loop(body, after)
        return self._expression(node.for_in.iter, after)

    def call(self, node: cst.Call, after: Sequence) -> Sequence:
        """What a call does, then ``after``."""
        operation = self._all.operations.get(node)
        if isinstance(operation, str):
            return self._make.event(operation, node, after)
        if isinstance(operation, FunctionSummary):
            for name in reversed(operation.collectives):
                after = self._make.event(name, node, after)
            return after
        if operation is None or operation in self._stack or len(self._stack) > _DEEPEST_HELPER:
            return after
        helper = Projection(self._all, self._make, operation, first(self._role), (*self._stack, operation)).run()
        return self._inline(events_for_callers(helper, parameters(operation)), node, after)

    def _inline(self, events: tuple[Sequence, ...], call: cst.Call, after: Sequence) -> Sequence:
        """The events of a helper at the place of its call; which way it takes is the helper's own matter."""
        for event in reversed(events):
            after = self._make.event(event.label, call, after)
        return after

    def _text(self, node: cst.CSTNode) -> str:
        return self._all.facts.code(node)


def parameters(function: cst.FunctionDef) -> set[str]:
    """The names of a function's parameters, without the receiver of a method."""
    found = {param.name.value for param in children(function.params) if isinstance(param, cst.Param)}
    return found - {"self", "cls"}

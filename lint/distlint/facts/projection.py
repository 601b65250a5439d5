"""What each kind of rank does in a function: its sequence of collectives, read backwards from the end.

Every statement is given what comes after it, so an early return simply drops it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.comparisons import bare_names
from distlint.facts.project import FunctionSummary
from distlint.facts.rank_names import GUARD_DECORATORS
from distlint.facts.ranks import RankTests
from distlint.facts.roles import Role, Same, first
from distlint.facts.sequences import Sequence, Sequences, events_for_callers, visit
from distlint.facts.tree import children, dotted, names_in, statements, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts
    from distlint.facts.operations import Operations

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
_DEEPEST_HELPER = 6


class Projector:
    """Projects functions of one module onto roles.

    Args:
        facts: the module.
        operations: the calls that are events; the module's collectives if None.
        tests: which tests ranks may decide differently; those of the rank if None.
    """

    def __init__(
        self, facts: ModuleFacts, operations: Operations | None = None, tests: RankTests | None = None
    ) -> None:
        self.facts = facts
        self.tests = RankTests(facts) if tests is None else tests
        self.operations = facts.operations if operations is None else operations
        self._make = Sequences()
        self._marked: set[cst.CSTNode] = set()
        self._bound: dict[cst.CSTNode, Counter[str]] = {}
        for call in self.operations:
            self._mark(call)

    def _mark(self, call: cst.Call) -> None:
        self._marked.add(call)
        for above in self.facts.ancestors(call):
            if above in self._marked:
                return
            self._marked.add(above)

    def regions(self) -> list[cst.FunctionDef | cst.Module]:
        """The functions with a collective in them, and the module if there is one outside of functions."""
        found = dict.fromkeys(self.facts.function_of(call) or self.facts.module for call in self.operations)
        return list(found)

    def guards(self, region: cst.FunctionDef | cst.Module) -> list[tuple[cst.BaseExpression, set[str]]]:
        """Every test in a region that ranks may decide differently, with its keys, in source order."""
        found: list[tuple[cst.BaseExpression, set[str]]] = []
        stack: list[cst.CSTNode] = [region]
        while stack:
            node = stack.pop()
            if node is not region and isinstance(node, cst.FunctionDef | cst.Lambda):
                continue
            test = node.test if isinstance(node, cst.If | cst.IfExp | cst.While) else None
            if isinstance(node, cst.BooleanOperation):
                test = node.left
            if test is not None and (keys := self.tests.keys(test)):
                found.append((test, keys))
            stack.extend(reversed(children(node)))
        return found

    def decorator_key(self, region: cst.FunctionDef | cst.Module) -> tuple[cst.Decorator, str] | None:
        """The decorator that lets the first rank alone run a function."""
        if not isinstance(region, cst.FunctionDef) or not self.tests.of_ranks:
            return None
        for decorator in region.decorators:
            expression = decorator.decorator
            names = [tail(expression)]
            if isinstance(expression, cst.Call) and tail(expression) != "parametrize":
                names += [text_of(arg.value) for arg in expression.args]
            for name in names:
                if name in GUARD_DECORATORS:
                    return decorator, GUARD_DECORATORS[name]
        return None

    def project(self, region: cst.FunctionDef | cst.Module, role: Role) -> Sequence:
        """The collectives that a rank of this role makes in a region."""
        guard = self.decorator_key(region)
        if guard is not None and not role.get(guard[1], False):
            return self._make.end
        return _Projection(self, self._make, region, role).run()

    def project_first(self, function: cst.FunctionDef) -> Sequence:
        """The collectives that the first rank makes in a function: what its callers are told, whoever they are."""
        return self.project(function, first({}))

    def same(self, first: Sequence, second: Sequence) -> bool:
        """Whether two sequences of one region are equal, whatever the tests say that are the same on every rank."""
        return self._make.same(first, second)

    def is_stable(self, test: cst.BaseExpression, region: cst.FunctionDef | cst.Module) -> bool:
        """Whether a test made of names keeps its outcome within the region."""
        if region not in self._bound:
            found: Counter[str] = Counter()
            for name, bindings in self.facts.own_scope(region).bindings.items():
                found[name] += len(bindings)
            self._bound[region] = found
        if any(isinstance(node, cst.Call | cst.Subscript) for node in walk(test)):
            return False
        return all(self._bound[region][name] <= 1 for name in names_in(test))

    def holds_name(self, test: cst.BooleanOperation, region: cst.FunctionDef | cst.Module) -> bool:
        """Whether a test of no rank has a variable among its parts that later tests may ask again: ``a and not b``."""
        if self.tests.keys(test) or self.is_marked(test):
            return False
        return any(self.is_stable(name, region) for name in bare_names(test))

    def label(self, call: cst.Call) -> str:
        """What a call does first: itself, or the function that it reaches."""
        events = (node for node in visit(self._events(call)) if node.kind == "event")
        return next((event.label for event in events), "")

    def _events(self, call: cst.Call) -> Sequence:
        return _Projection(self, self._make, self.facts.module, {})._call(call, self._make.end)

    def is_marked(self, node: cst.CSTNode) -> bool:
        """Whether a collective is somewhere in ``node``."""
        return node in self._marked


class _Projection:
    """One function for one role."""

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
            after = self._call(node, after)
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

    def _call(self, node: cst.Call, after: Sequence) -> Sequence:
        operation = self._all.operations.get(node)
        if isinstance(operation, str):
            return self._make.event(operation, node, after)
        if isinstance(operation, FunctionSummary):
            for name in reversed(operation.collectives):
                after = self._make.event(name, node, after)
            return after
        if operation is None or operation in self._stack or len(self._stack) > _DEEPEST_HELPER:
            return after
        helper = _Projection(self._all, self._make, operation, first(self._role), (*self._stack, operation)).run()
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

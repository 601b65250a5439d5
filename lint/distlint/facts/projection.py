"""What each kind of rank does in a function: its sequence of collectives, read backwards from the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.comparisons import bare_names
from distlint.facts.one_role import Projection
from distlint.facts.rank_names import GUARD_DECORATORS
from distlint.facts.ranks import RankTests
from distlint.facts.roles import Role, first
from distlint.facts.sequences import Sequence, Sequences, visit
from distlint.facts.tree import children, names_in, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts
    from distlint.facts.operations import Operations


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
        self._make, self._naive = Sequences(), Sequences(learn=False)
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
        return self._project(self._make, region, role)

    def _project(self, make: Sequences, region: cst.FunctionDef | cst.Module, role: Role) -> Sequence:
        guard = self.decorator_key(region)
        if guard is not None and not role.get(guard[1], False):
            return make.end
        return Projection(self, make, region, role).run()

    def project_first(self, function: cst.FunctionDef) -> Sequence:
        """The collectives that the first rank makes in a function: what its callers are told, whoever they are."""
        return self.project(function, first({}))

    def same(self, first: Sequence, second: Sequence) -> bool:
        """Whether two sequences of one region are equal, whatever the tests say that are the same on every rank."""
        return self._make.same(first, second)

    def are_alike(self, region: cst.FunctionDef | cst.Module, first: Role, second: Role) -> bool:
        """Whether two roles do the same where nothing is learnt from a test that some ranks fail with an exception.

        ``if rank == 0 and not resume: raise`` tells nothing of the other ranks' ``resume``: the job ends.
        """
        return self._naive.same(*(self._project(self._naive, region, role) for role in (first, second)))

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
        return Projection(self, self._make, self.facts.module, {}).call(call, self._make.end)

    def is_marked(self, node: cst.CSTNode) -> bool:
        """Whether a collective is somewhere in ``node``."""
        return node in self._marked

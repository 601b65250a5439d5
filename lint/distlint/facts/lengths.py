"""How often a loop turns, where that is a matter of one rank; and in which order, where it is one of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.data_tests import DataTests
from distlint.facts.flow import reaching
from distlint.facts.invariance import is_gathered
from distlint.facts.rank_names import WORLD_SIZES
from distlint.facts.ranks import RankTests
from distlint.facts.tree import is_name, keyword, positional, tail, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

Loop = cst.For | cst.While | cst.CompFor
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)
_DEEPEST = 6
WRAPPERS = frozenset({"enumerate", "iter", "list", "reversed", "sorted", "tqdm", "track", "trange", "tuple", "zip"})
_SPLITS = frozenset({"array_split", "chunk", "chunks", "split", "tensor_split"})


def loops_around(facts: ModuleFacts, call: cst.CSTNode) -> Iterator[tuple[Loop, cst.BaseExpression]]:
    """The loops of a call's own function that it is inside of, each with what decides its turns."""
    below = call
    for above in facts.ancestors(call):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return
        if isinstance(above, cst.For) and below is above.body:
            yield above, above.iter
        elif isinstance(above, cst.While) and below in (above.body, above.test):
            yield above, above.test
        elif isinstance(above, _COMPREHENSIONS) and below is not above.for_in:
            yield above.for_in, above.for_in.iter
        below = above


class Lengths:
    """Judges the loops of one module.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._ranks = RankTests(facts)
        self._tests = DataTests(facts)
        self._locality = facts.locality

    def is_local(self, loop: Loop) -> bool:
        """Whether ranks may make different numbers of turns."""
        if isinstance(loop, cst.While):
            return bool(self._tests.keys(loop.test)) and not self._is_agreed(loop)
        return self._is_local_length(loop.iter)

    def _is_agreed(self, loop: cst.While) -> bool:
        """Whether the loop itself brings together a value that it is tested by."""
        tested = [node for node in walk_scope(loop.test) if isinstance(node, cst.Name)]
        for node in walk_scope(loop.body):
            if not isinstance(node, cst.Assign | cst.AugAssign):
                continue
            targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else [node.target]
            names = [name for name in tested if any(is_name(target, name.value) for target in targets)]
            if names and (is_gathered(self._facts, node.value) or not self._locality.is_value(node.value)):
                return True
        return False

    def _is_local_length(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        if depth > _DEEPEST:
            return False
        depth += 1
        if isinstance(node, cst.Call) and tail(node.func) in WRAPPERS and positional(node):
            return any(self._is_local_length(each, depth) for each in positional(node))
        if isinstance(node, cst.Call) and tail(node.func) == "range":
            return self._is_local_range(positional(node))
        if isinstance(node, cst.Name):
            return self._is_local_name(node, depth)
        if isinstance(node, cst.Subscript) and len(node.slice) == 1:
            index = node.slice[0].slice
            if isinstance(index, cst.Slice):
                return index.step is not None and index.lower is not None and self._is_rank(index.lower)
            is_split = isinstance(node.value, cst.Call) and tail(node.value.func) in _SPLITS
            if is_split and isinstance(index, cst.Index) and self._is_rank(index.value):
                return True
        return self._locality.is_selection(node) and not is_gathered(self._facts, node)

    def _is_local_name(self, node: cst.Name, depth: int) -> bool:
        bindings = self._facts.scope(node).lookup(node.value)
        if bindings and all(self._is_share(binding.node) for binding in bindings):
            return True
        values = [each.value for each in reaching(self._facts, node) if not each.steps]
        return bool(values) and all(value is not None and self._is_local_length(value, depth) for value in values)

    def _is_share(self, name: cst.CSTNode) -> bool:
        """``with accelerator.split_between_processes(everything) as name``."""
        for above in self._facts.ancestors(name):
            if isinstance(above, cst.WithItem):
                call = above.item
                if not isinstance(call, cst.Call) or tail(call.func) != "split_between_processes":
                    return False
                given = positional(call)
                is_whole = keyword(call, "apply_padding") is None and len(given) < 2
                return is_whole and not any(self._is_cut_to_fit(each) for each in given)
            if isinstance(above, cst.BaseStatement):
                return False
        return False

    def _is_cut_to_fit(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        """``files[: len(files) - len(files) % world_size]``: every rank gets as many of them."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, cst.Name):
            values = [each.value for each in reaching(self._facts, node) if not each.steps]
            return bool(values) and all(each is not None and self._is_cut_to_fit(each, depth + 1) for each in values)
        index = node.slice[0].slice if isinstance(node, cst.Subscript) else None
        return isinstance(index, cst.Slice) and index.upper is not None and self._divides(index.upper, depth + 1)

    def _divides(self, node: cst.BaseExpression, depth: int) -> bool:
        """Whether a number is worked out by a division by the number of ranks."""
        if isinstance(node, cst.Name) and depth <= _DEEPEST:
            values = [each.value for each in reaching(self._facts, node) if not each.steps]
            return bool(values) and all(each is not None and self._divides(each, depth + 1) for each in values)
        divisions = (each for each in walk_scope(node) if isinstance(each, cst.BinaryOperation))
        return any(
            isinstance(each.operator, cst.Modulo | cst.FloorDivide) and tail(each.right) in WORLD_SIZES
            for each in divisions
        )

    def _is_local_range(self, given: list[cst.BaseExpression]) -> bool:
        if len(given) == 3:
            return self._is_rank(given[0])
        ends = [end for end in given if not is_gathered(self._facts, end)]
        return any(self._locality.is_value(end) and not self._is_batch_size(end) for end in ends)

    def _is_batch_size(self, end: cst.BaseExpression) -> bool:
        """An entry of a batch that is used as it comes is as likely a setting."""
        return not any(isinstance(node, cst.Call) for node in walk_scope(end))

    def _is_rank(self, node: cst.BaseExpression) -> bool:
        return self._ranks.rank(node) is not None

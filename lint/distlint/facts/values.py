"""What a logged value is: the mean of which metric, seen through the data flow of one file.

The answer is a verdict only where the value is known to be non-averageable; in every other case it is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint import averageable
from distlint.facts.flow import Definition, reaching
from distlint.facts.invariance import is_gathered
from distlint.facts.metric_calls import (
    TRANSPARENT,
    Verdict,
    collection_metric,
    exponential,
    library_metric,
    root,
)
from distlint.facts.metric_objects import receiver
from distlint.facts.own_metrics import own_metric, unpacked_metric
from distlint.facts.tree import is_name, positional, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

Steps = tuple[int | str, ...]
_DEEPEST = 24
_DICTS = frozenset({"dict", "OrderedDict"})
_EXP = frozenset({"torch.exp", "math.exp", "numpy.exp"})
_SQRT = frozenset({"torch.sqrt", "math.sqrt", "numpy.sqrt"})


class Values:
    """Judges expressions of one module.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts

    def judge(self, node: cst.BaseExpression | None, steps: Steps = (), depth: int = 0) -> Verdict | None:
        """The verdict on an expression, taken apart by ``steps`` (indexes, keys and ``"iter"``)."""
        if node is None or depth > _DEEPEST:
            return None
        depth += 1
        if isinstance(node, cst.Name):
            found = self._first(self._definition(each, steps, depth) for each in reaching(self._facts, node))
            return found if found is not None or steps else unpacked_metric(self._facts, node)
        if isinstance(node, cst.Call):
            return self._call(node, steps, depth)
        if isinstance(node, cst.Subscript):
            return self._subscript(node, steps, depth)
        if isinstance(node, cst.Tuple | cst.List):
            return self._elements(node, steps, depth)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            inner = steps[1:] if steps[:1] == ("iter",) else steps
            return self.judge(node.elt, inner, depth)
        if isinstance(node, cst.IfExp):
            return self._first(self.judge(each, steps, depth) for each in (node.body, node.orelse))
        if isinstance(node, cst.BinaryOperation):
            return self._binary(node, steps, depth)
        if isinstance(node, cst.Attribute) and node.attr.value in ("statistic", "correlation"):
            return self.judge(node.value, steps, depth)
        return None

    @staticmethod
    def _first(verdicts: Iterator[Verdict | None]) -> Verdict | None:
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def _definition(self, definition: Definition, steps: Steps, depth: int) -> Verdict | None:
        return self.judge(definition.value, (*definition.steps, *steps), depth)

    def _elements(self, node: cst.Tuple | cst.List, steps: Steps, depth: int) -> Verdict | None:
        first, *rest = steps or ("iter",)
        if isinstance(first, int) and first < len(node.elements):
            return self.judge(node.elements[first].value, tuple(rest), depth)
        if first == "iter":
            return self._first(self.judge(each.value, tuple(rest), depth) for each in node.elements)
        return None

    def _binary(self, node: cst.BinaryOperation, steps: Steps, depth: int) -> Verdict | None:
        if (
            isinstance(node.operator, cst.Power)
            and isinstance(node.right, cst.Float)
            and node.right.value in ("0.5", ".5")
        ):
            return root(self._facts, node, node.left)
        left = self.judge(node.left, steps, depth)
        if isinstance(node.operator, cst.Multiply) and isinstance(node.left, cst.BaseNumber):
            return self.judge(node.right, steps, depth)
        if isinstance(node.operator, cst.Divide | cst.Multiply):
            return left if isinstance(node.right, cst.BaseNumber | cst.Call) else None
        if isinstance(node.operator, cst.Add | cst.Subtract):
            return left or self.judge(node.right, steps, depth)
        return None

    def _subscript(self, node: cst.Subscript, steps: Steps, depth: int) -> Verdict | None:
        if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
            return None
        index = node.slice[0].slice.value
        if isinstance(index, cst.Integer):
            return self.judge(node.value, (int(index.value), *steps), depth)
        ways = (self._entry, self._step_output, self._library_entry)
        return self._first(way(node.value, index, depth) for way in ways)

    def _entry(self, base: cst.BaseExpression, index: cst.BaseExpression, depth: int) -> Verdict | None:
        wanted = self._facts.code(index)
        found = (
            value for key, value in self.entries(base, depth) if key is not None and self._facts.code(key) == wanted
        )
        return self._first(self.judge(value, (), depth) for value in found)

    def _library_entry(self, base: cst.BaseExpression, index: cst.BaseExpression, _depth: int) -> Verdict | None:
        """``acc_and_f1(…)["f1"]``: one of several metrics of a library's function."""
        key = text_of(index) or ""
        entry = averageable.named(key)
        reason = entry.reason if entry is not None and entry.kind == "not averageable" else None
        found: list[cst.BaseExpression | None] = [base]
        if isinstance(base, cst.Name):
            found = [each.value for each in reaching(self._facts, base) if not each.steps]
        for call in found if reason is not None else ():
            if not isinstance(call, cst.Call) or is_gathered(self._facts, call):
                continue
            if self._facts.resolve(call.func) in averageable.DICT_FUNCTIONS:
                return Verdict(key, reason or "", call)
        return None

    def entries(
        self, node: cst.BaseExpression | None, depth: int = 0
    ) -> Iterator[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
        """Keys and values of a dict, as far as they can be seen."""
        if node is None or depth > _DEEPEST:
            return
        depth += 1
        if isinstance(node, cst.Dict):
            for element in node.elements:
                if isinstance(element, cst.DictElement):
                    yield element.key, element.value
                else:
                    yield from self.entries(element.value, depth)
        elif isinstance(node, cst.Call) and tail(node.func) in _DICTS:
            for arg in node.args:
                if arg.keyword is not None:
                    yield cst.SimpleString(repr(arg.keyword.value)), arg.value
                else:
                    yield from self.entries(arg.value, depth)
        elif isinstance(node, cst.DictComp):
            items = node.for_in.iter
            if isinstance(items, cst.Call) and tail(items.func) == "items" and isinstance(items.func, cst.Attribute):
                yield from self.entries(items.func.value, depth)
        elif isinstance(node, cst.Name):
            for definition in reaching(self._facts, node):
                if not definition.steps:
                    yield from self.entries(definition.value, depth)
            yield from self._stored(node)

    def _stored(self, name: cst.Name) -> Iterator[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
        """``name[key] = value`` between its definition and its use."""
        function, place = self._facts.function_of(name), self._facts.order[name]
        for node in self._facts.nodes(cst.Assign):
            if self._facts.order[node] >= place or self._facts.function_of(node) is not function:
                continue
            for target in node.targets:
                where = target.target
                if isinstance(where, cst.Subscript) and is_name(where.value, name.value) and len(where.slice) == 1:
                    index = where.slice[0].slice
                    yield (index.value if isinstance(index, cst.Index) else None), node.value

    def _step_output(self, base: cst.BaseExpression, index: cst.BaseExpression, depth: int) -> Verdict | None:
        """``x["f1"] for x in outputs`` of an epoch-end hook: what the class's step returns under that key."""
        method, owner = self._facts.method_of(base), self._facts.owner(base)
        if method is None or owner is None or not method.name.value.endswith("_epoch_end"):
            return None
        if not isinstance(base, cst.Name) or not self._is_output(method, base):
            return None
        step = owner.method(method.name.value.removeprefix("on_").replace("_epoch_end", "_step"))
        wanted = text_of(index)
        for value in self._facts.returns(step) if step is not None and wanted else ():
            for key, entry in self.entries(value, depth):
                if text_of(key) == wanted and (found := self.judge(entry, (), depth)) is not None:
                    return found
        return None

    def _is_output(self, method: cst.FunctionDef, name: cst.Name) -> bool:
        """Whether a name runs over the hook's own parameter, or is one element of it."""
        params = {param.name.value for param in method.params.params[1:]}
        for definition in reaching(self._facts, name):
            if definition.steps == ("iter",) and isinstance(definition.value, cst.Name):
                return definition.value.value in params
        return False

    def _call(self, node: cst.Call, steps: Steps, depth: int) -> Verdict | None:
        name, full = tail(node.func), self._facts.resolve(node.func) or ""
        given = positional(node)
        if is_gathered(self._facts, node):
            return None
        verdict = library_metric(self._facts, node)
        if verdict is not None:
            return verdict
        if full in _EXP or (name == "exp" and isinstance(node.func, cst.Attribute) and not node.args):
            return exponential(self._facts, node, given[0] if given else receiver(node))
        if full in _SQRT or (name == "sqrt" and isinstance(node.func, cst.Attribute) and not node.args):
            return root(self._facts, node, given[0] if given else receiver(node))
        if name in ("items", "values") and steps[:1] == ("iter",) and isinstance(node.func, cst.Attribute):
            return self._iterated(node.func.value, name, steps[1:], depth)
        if name == "zip" and steps[:1] == ("iter",) and len(steps) > 1 and isinstance(steps[1], int):
            place = steps[1]
            return self.judge(given[place], ("iter", *steps[2:]), depth) if place < len(given) else None
        if name == "mean" and self._is_exp(receiver(node)):
            return None  # of many: one value an example
        if name in TRANSPARENT or full == "builtins.sum":
            is_method = isinstance(node.func, cst.Attribute) and (not full or full.startswith("builtins."))
            return self.judge(receiver(node) if is_method else next(iter(given), None), steps, depth)
        function = self._facts.local_function(node)
        if function is not None:
            returned = (self.judge(value, steps, depth + 2) for value in self._facts.returns(function))
            found = self._first(returned)
            if found is not None:
                return found
        return own_metric(self._facts, node) if not steps else None

    def _is_exp(self, node: cst.BaseExpression | None) -> bool:
        return isinstance(node, cst.Call) and tail(node.func) == "exp"

    def _iterated(self, base: cst.BaseExpression, name: str, steps: Steps, depth: int) -> Verdict | None:
        if name == "items":
            if steps[:1] != (1,):
                return None
            steps = steps[1:]
        found = collection_metric(self._facts, base)
        return found or self._first(self.judge(value, steps, depth) for _, value in self.entries(base, depth))

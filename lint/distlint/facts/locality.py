"""What is a matter of one rank's own data: values made from its batches, tests of them, and lengths that follow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import STEP_HOOKS
from distlint.facts.entries import is_passed_through
from distlint.facts.flow import Definition, reaching
from distlint.facts.invariance import is_gathered
from distlint.facts.tensor_names import SAME
from distlint.facts.tree import is_name, positional, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST = 12
_BATCH_HOOKS = STEP_HOOKS | {"shared_step"}
_BATCH_NUMBERS = re.compile(r"(_idx|_id|_nb|_index|^idx|^index)$")
_LOADER = re.compile(r"(loader|dl|data_iter|dataloaders?)$", re.IGNORECASE)
# Anything that may have brought the ranks together: a name that says so is believed.
_MAY_SYNC = re.compile(r"reduce|gather|sync|broadcast|dist|world|average|avg|all_|rank|consensus", re.IGNORECASE)
_STRUCTURE = frozenset(
    {
        "callable",
        "device",
        "dim",
        "dtype",
        "endswith",
        "get",
        "getattr",
        "hasattr",
        "id",
        "is_cuda",
        "is_tensor",
        "isinstance",
        "issubclass",
        "keys",
        "nelement",
        "ndim",
        "ndimension",
        "next",
        "numel",
        "requires_grad",
        "shape",
        "size",
        "startswith",
        "str",
        "type",
    }
)
_LENGTHS = frozenset({"len", "numel", "nelement", "size", "shape"})
_SELECTIONS = frozenset({"argwhere", "flatnonzero", "masked_select", "nonzero", "unique", "unique_consecutive"})
_TRUTHS = frozenset(
    {"all", "allclose", "any", "bool", "equal", "isclose", "isfinite", "isinf", "isnan", "is_nonzero", "item"}
)
_CLOCKS = frozenset(
    {"time.time", "time.monotonic", "time.perf_counter", "timeit.default_timer", "datetime.datetime.now"}
)
_WRAPPERS = frozenset({"enumerate", "iter", "log_every", "tqdm", "track", "zip"})
# What has as many elements as it is given.
_PASSING = SAME | {"flatten", "list", "numpy", "sorted", "squeeze", "tolist", "view"}


class Locality:
    """Judges expressions of one module; what cannot be known counts as the same on every rank.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._open: set[cst.CSTNode] = set()
        self._known: dict[cst.CSTNode, bool] = {}

    def decides(self, test: cst.BaseExpression) -> bool:
        """Whether the outcome of a test without ``and``, ``or`` and ``not`` is a matter of this rank's data."""
        if isinstance(test, cst.Comparison):
            return self._compares(test)
        if isinstance(test, cst.Call):
            return self._calls_truth(test)
        if isinstance(test, cst.Name):
            values = [each.value for each in reaching(self._facts, test) if not each.steps]
            tests = [value for value in values if isinstance(value, cst.Comparison | cst.Call)]
            return bool(tests) and len(tests) == len(values) and any(self.decides(value) for value in tests)
        return False

    def _compares(self, test: cst.Comparison) -> bool:
        sides = [test.left, *(target.comparator for target in test.comparisons)]
        if not all(isinstance(target.operator, _ORDERS) for target in test.comparisons):
            return False
        if any(text_of(side) is not None or is_name(side, "None") for side in sides):
            return False
        if is_gathered(self._facts, test):
            return False
        return any(self.is_value(side) or self.is_elapsed(side) for side in sides)

    def _calls_truth(self, test: cst.Call) -> bool:
        is_builtin = (self._facts.resolve(test.func) or "").startswith("builtins.")  # any(list): a matter of structure
        if tail(test.func) not in _TRUTHS or is_builtin or is_gathered(self._facts, test):
            return False
        return self._is_fed(test)

    def is_elapsed(self, node: cst.BaseExpression) -> bool:
        """A difference of times, by this rank's clock."""
        if isinstance(node, cst.Name):
            values = [each.value for each in reaching(self._facts, node) if each.value is not None]
            return any(isinstance(value, cst.BinaryOperation) and self.is_elapsed(value) for value in values)
        if not isinstance(node, cst.BinaryOperation):
            return False
        return any(isinstance(part, cst.Call) and self._facts.resolve(part.func) in _CLOCKS for part in walk(node))

    def is_value(self, node: cst.BaseExpression | None, depth: int = 0) -> bool:
        """Whether an expression is a number or tensor that is computed from this rank's batches."""
        if node is None or depth > _DEEPEST or node in self._open:
            return False
        if node not in self._known:
            self._open.add(node)
            self._known[node] = self._is_value(node, depth + 1)
            self._open.discard(node)
        return self._known[node]

    def _is_value(self, node: cst.BaseExpression, depth: int) -> bool:
        if isinstance(node, cst.Name):
            return self._is_local_name(node, depth)
        if isinstance(node, cst.Call):
            name = tail(node.func) or ""
            if name == "next" and positional(node):
                return self._is_iterator(positional(node)[0])
            if name in _LENGTHS and self._is_length_of_selection(node, depth):
                return True
            return self._is_fed(node, depth)
        if isinstance(node, cst.Attribute):
            return node.attr.value not in _STRUCTURE and self.is_value(node.value, depth)
        if isinstance(node, cst.Subscript):
            if isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape":
                return self.is_selection(node.value.value, depth)
            return self.is_value(node.value, depth) and not is_passed_through(self._facts, node, self.is_value)
        if isinstance(node, cst.BinaryOperation):
            return self.is_value(node.left, depth) or self.is_value(node.right, depth)
        if isinstance(node, cst.UnaryOperation):
            return self.is_value(node.expression, depth)
        if isinstance(node, cst.Comparison):
            return self._compares(node)
        if isinstance(node, cst.IfExp):
            return self.is_value(node.body, depth) or self.is_value(node.orelse, depth)
        if isinstance(node, cst.List | cst.Tuple):
            return any(self.is_value(element.value, depth) for element in node.elements)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            return self.is_value(node.elt, depth)
        return False

    def _is_fed(self, call: cst.Call, depth: int = 0) -> bool:
        """Whether a call computes from local values, and is not known or named to bring ranks together."""
        name = tail(call.func) or ""
        if name in _STRUCTURE or name in _LENGTHS or _MAY_SYNC.search(name):
            return False
        if call in self._facts.synced_operations:
            return False
        if isinstance(call.func, cst.Attribute) and self.is_value(call.func.value, depth):
            return True
        return any(self.is_value(arg.value, depth) for arg in call.args)

    def _is_local_name(self, name: cst.Name, depth: int) -> bool:
        if _MAY_SYNC.search(name.value) or is_gathered(self._facts, name):
            return False
        definitions = reaching(self._facts, name)
        if any(self._is_local_definition(definition, depth) for definition in definitions):
            return True
        return bool(definitions) and self._is_collected(name, definitions, depth)

    def _is_local_definition(self, definition: Definition, depth: int) -> bool:
        if isinstance(definition.node, cst.Param):
            return self._is_batch(definition.node)
        if isinstance(definition.node, cst.AugAssign):
            return self.is_value(definition.node.value, depth)
        if "unknown" in definition.steps:
            return False  # first, *rest = …: a list
        if definition.steps[:1] == ("iter",) and definition.value is not None:
            return self._iterates(definition, depth)
        return self.is_value(definition.value, depth)

    def _iterates(self, definition: Definition, depth: int) -> bool:
        """A batch of a loader, however it is wrapped; or one element of a local value."""
        base, steps = self._wrapped(definition.value), definition.steps[1:]
        while isinstance(base, cst.Call) and tail(base.func) in _WRAPPERS and positional(base):
            given, first = positional(base), steps[0] if steps else 0
            if tail(base.func) == "enumerate" and steps and first == 0:
                return False
            place = first if tail(base.func) == "zip" else 0
            if tail(base.func) in ("enumerate", "zip"):
                steps = steps[1:]
            base = self._wrapped(given[place]) if isinstance(place, int) and place < len(given) else None
        return base is not None and (self._is_loader(base) or self.is_value(base, depth))

    def _wrapped(self, node: cst.BaseExpression | None) -> cst.BaseExpression | None:
        """What a name stands for, where that wraps what is iterated over: ``batches = enumerate(loader)``."""
        if isinstance(node, cst.Name):
            found = [each.value for each in reaching(self._facts, node) if not each.steps]
            if len(found) == 1 and isinstance(found[0], cst.Call) and tail(found[0].func) in _WRAPPERS:
                return found[0]
        return node

    def _is_iterator(self, node: cst.BaseExpression) -> bool:
        """``iter(loader)``, or a name for it."""
        if isinstance(node, cst.Name):
            return any(each.value is not None and self._is_iterator(each.value) for each in reaching(self._facts, node))
        is_made = isinstance(node, cst.Call) and tail(node.func) in _WRAPPERS and bool(positional(node))
        return self._is_loader(positional(node)[0] if is_made and isinstance(node, cst.Call) else node)

    def _is_loader(self, node: cst.BaseExpression) -> bool:
        name = tail(node)
        return name is not None and _LOADER.search(name) is not None

    def _is_batch(self, param: cst.Param) -> bool:
        """The batch that Lightning hands to a step hook."""
        function = self._facts.function_of(param)
        owner = self._facts.owner(param)
        if function is None or owner is None or function.name.value not in _BATCH_HOOKS:
            return False
        name = param.name.value
        return "lightning" in owner.kinds and not _BATCH_NUMBERS.search(name) and name != "self"

    def _is_collected(self, name: cst.Name, definitions: list[Definition], depth: int) -> bool:
        """A list that local values were appended to."""
        if not any(isinstance(each.value, cst.List) for each in definitions):
            return False
        function, place = self._facts.function_of(name), self._facts.order[name]
        for call in self._facts.nodes(cst.Call):
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value not in ("append", "extend"):
                continue
            if not is_name(func.value, name.value) or self._facts.order[call] >= place:
                continue
            if self._facts.function_of(call) is function and any(self.is_value(a.value, depth) for a in call.args):
                return True
        return False

    def _is_length_of_selection(self, node: cst.Call, depth: int) -> bool:
        measured = positional(node)[0] if tail(node.func) == "len" and positional(node) else None
        if measured is None and isinstance(node.func, cst.Attribute):
            measured = node.func.value
        return measured is not None and self.is_selection(measured, depth)

    def is_selection(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        """Whether an expression has as many elements as some of this rank's examples meet a condition."""
        if depth > _DEEPEST:
            return False
        depth += 1
        if isinstance(node, cst.Name):
            found = [each.value for each in reaching(self._facts, node) if not each.steps]
            return any(value is not None and self.is_selection(value, depth) for value in found)
        if isinstance(node, cst.Call):
            name, given = tail(node.func), positional(node)
            base = node.func.value if isinstance(node.func, cst.Attribute) else None
            is_method = base is not None and self._facts.resolve(node.func) is None
            chosen = base if is_method else (given[0] if given else None)
            if name in _SELECTIONS or (name == "where" and len(given) == 1):
                return chosen is not None and self.is_value(chosen, depth)
            return name in _PASSING and chosen is not None and self.is_selection(chosen, depth)
        if isinstance(node, cst.Subscript) and len(node.slice) == 1:
            index = node.slice[0].slice
            return isinstance(index, cst.Index) and self._is_mask(index.value, depth)
        return isinstance(node, cst.ListComp) and self._is_filtered(node)

    def _is_mask(self, node: cst.BaseExpression, depth: int) -> bool:
        if isinstance(node, cst.Name):
            found = [each.value for each in reaching(self._facts, node) if not each.steps]
            return any(value is not None and self._is_mask(value, depth + 1) for value in found) and depth < _DEEPEST
        if isinstance(node, cst.UnaryOperation):
            return self._is_mask(node.expression, depth)
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.BitAnd | cst.BitOr) and self._is_mask(node.left, depth)
        return isinstance(node, cst.Comparison) and self._compares(node)

    def _is_filtered(self, node: cst.ListComp) -> bool:
        return any(self.decides(each.test) for each in node.for_in.ifs)


_ORDERS = (
    cst.Equal,
    cst.NotEqual,
    cst.LessThan,
    cst.LessThanEqual,
    cst.GreaterThan,
    cst.GreaterThanEqual,
)

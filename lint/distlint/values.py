"""What an expression of one file is: a loss, this rank's share, a metric and more."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from distlint.apis import EVALUATION, REDUCING, STEPS, names_loss
from distlint.calls import (
    KEEPS,
    QUANTILES,
    brings_together,
    is_opaque,
    listed,
    made,
    quantile,
    root,
)
from distlint.collectives import called, collective
from distlint.definitions import (
    Definition,
    bindings,
    comprehended,
    constant_key,
    only_index,
    reaching,
)
from distlint.origins import appended, is_agreed, is_loader, is_per_element, is_ratio_of_counts
from distlint.source import (
    Source,
    argument,
    dotted,
    last,
    number,
    object_of,
    parameters,
    positional,
    self_attribute,
    string,
)
from distlint.value import (
    CONSTANT,
    EXP,
    LOSS,
    METRIC,
    RATIO,
    REDUCED,
    RESULT,
    SHARE,
    UNKNOWN,
    Value,
    combined,
    joined,
    kept,
    same,
    tuple_of,
)

_LIBRARIES = ("torch", "numpy", "math", "torch.nn.functional")
_DEEPEST = 80


def values_of(source: Source) -> Values:
    """Return what answers for a file, one for all rules."""
    return source.once("values", source.module, lambda: Values(source))


class Values:
    """Answers what expressions of one file are.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[cst.CSTNode, Value] = {}
        self._bound: dict[str, Value] | None = None  # the arguments, inside of a called function
        self._known_inside: dict[cst.CSTNode, Value] = {}  # of that function
        self._open: dict[cst.CSTNode, int] = {}  # what is being asked for, with how deep it is
        self._lowest = 0  # the least deep of these that an answer has met again

    def of(self, node: cst.BaseExpression | None) -> Value:
        """Return what is known of an expression."""
        if node is None:
            return UNKNOWN
        known = self._known if self._bound is None else self._known_inside
        if node in known:
            return known[node]
        depth = len(self._open)
        if node in self._open:
            self._lowest = min(self._lowest, self._open[node])
            return CONSTANT  # made from itself, in a loop: adds nothing
        if depth > _DEEPEST:
            return UNKNOWN
        lowest, self._lowest = self._lowest, depth
        self._open[node] = depth
        try:
            found = self._of(node)
        finally:
            del self._open[node]
        if self._lowest >= depth or depth == 0:
            known[node] = found  # else it is known in full only with what it is a part of
            self._lowest = lowest
        self._lowest = min(self._lowest, lowest)
        return found

    def _of(self, node: cst.BaseExpression) -> Value:
        match node:
            case cst.Name():
                return self._name(node)
            case cst.Attribute():
                return self._attribute(node)
            case cst.Subscript():
                return self._subscript(node)
            case cst.Call():
                return self._call(node)
            case cst.BinaryOperation():
                return self._arithmetic(node)
            case cst.Comparison():
                sides = [node.left, *(each.comparator for each in node.comparisons)]
                return SHARE if SHARE in map(self.of, sides) else UNKNOWN
            case cst.IfExp(body=left, orelse=right) | cst.BooleanOperation(left=left, right=right):
                return joined([self.of(left), self.of(right)])
            case cst.Dict():
                return Value(items=self._items(node))
            case (
                cst.UnaryOperation(expression=inner)
                | cst.ListComp(elt=inner)
                | cst.GeneratorExp(elt=inner)
                | cst.SetComp(elt=inner)
                | cst.DictComp(value=inner)
                | cst.StarredElement(value=inner)
                | cst.NamedExpr(value=inner)
            ):
                return self.of(inner)
            case cst.Tuple():
                return tuple_of([self.of(each.value) for each in node.elements])
            case cst.List():
                return joined([self.of(each.value) for each in node.elements])
            case cst.SimpleString() | cst.Integer() | cst.Float() | cst.Ellipsis():
                return CONSTANT
        return UNKNOWN

    def _items(self, node: cst.Dict | cst.Call) -> dict[str, Value]:
        """Return what a display, or a call of ``dict``, holds by its constant keys."""
        found: dict[str, Value] = {}
        for each in node.elements if isinstance(node, cst.Dict) else node.args:
            match each:
                case cst.DictElement(key=key):
                    if (name := string(key)) is not None:
                        found[name] = self.of(each.value)
                case cst.Arg(keyword=cst.Name(value=name)):
                    found[name] = self.of(each.value)
                case _:
                    found |= self.of(each.value).items
        return found

    def entries(self, node: cst.BaseExpression) -> dict[str, Value]:
        """Return what a dict holds by its constant keys, those that are set one by one included."""
        found = dict(self.of(node).items)
        if not dotted(node) or self._source.function(node) is None:
            return found
        prefix, order = f"{dotted(node)}[", self._source.order(node)
        for name, all_ways in bindings(self._source, node).items():
            before = [each for each in all_ways if each.order < order]
            if name.startswith(prefix) and before:
                found[name.removeprefix(prefix)[:-1]] = self._given(before)
        return found

    # Variables

    def _given(self, found: Sequence[Definition]) -> Value:
        return joined([self._defined(each) for each in found])

    def _defined(self, definition: Definition) -> Value:
        if definition.how == "reduced":
            return REDUCED
        if definition.how == "element of" and definition.value is not None:
            return self._element(definition.value)
        value, at = self.of(definition.value), definition.element
        return value.parts[at] if at is not None and at < len(value.parts) else value

    def _element(self, iterated: cst.BaseExpression) -> Value:
        """Return what the elements of something are."""
        value = self.of(iterated)
        if value == UNKNOWN and is_loader(iterated):
            return SHARE
        return value if not value.items or value.kind == "share" else UNKNOWN

    def _name(self, node: cst.Name) -> Value:
        if node.value in ("True", "False", "None"):
            return CONSTANT
        iterated = comprehended(self._source, node, node.value)
        if iterated is not None:
            return self._element(iterated)
        found = reaching(self._source, node)
        values = [self._defined(each) for each in found.listed]
        function = self._source.function(node)
        if not found.is_complete and function and node.value in parameters(function):
            values.append(self._parameter(function, node.value))
        value = joined(values)
        is_plain = value == UNKNOWN or (value.kind == "share" and not value.items)
        return LOSS if is_plain and names_loss(node.value) else value

    def _parameter(self, function: cst.FunctionDef, name: str) -> Value:
        if self._bound is not None:
            return self._bound.get(name, UNKNOWN)
        own, given = function.name.value, parameters(function)
        is_end = own.endswith("_epoch_end")
        if is_end and given[1:2] == [name]:
            return self._outputs(function)
        is_step = own in STEPS or is_end or EVALUATION.fullmatch(own) is not None
        is_runner = name in ("trainer", "pl_module")  # of a callback
        if is_step and given[0] == "self" and name in given[1:3] and not is_runner:
            return UNKNOWN if name.endswith(("idx", "index")) else SHARE
        if name in ("batch", "outputs") and own != "__init__":
            return SHARE
        return self._handed(function, given.index(name) - 1, name)

    def _handed(self, function: cst.FunctionDef, index: int, name: str) -> Value:
        """Return what all callers within the class give to a method's parameter."""
        source, owner = self._source, self._source.class_of(function)
        if owner is None or source.method(function) is not None or index < 0:
            return UNKNOWN
        calls = source.calls(owner.node, f"self.{function.name.value}")
        values = [self.of(argument(call, index, name)) for call in calls]
        return values[0] if values and all(each.is_of_data for each in values) else UNKNOWN

    def _outputs(self, function: cst.FunctionDef) -> Value:
        """Return what a hook is given of the steps before: shares, by the keys they return."""
        owner = self._source.class_of(function)
        name = function.name.value.replace("_epoch_end", "_step")
        step = owner.methods.get(name) if owner is not None else None
        returned = self._source.returned(step) if step is not None else None
        return kept(self.entries(returned)) if returned is not None else SHARE

    # Attributes and items

    def _attribute(self, node: cst.Attribute) -> Value:
        name, end = self_attribute(node), node.attr.value
        if name:
            found = reaching(self._source, node).listed
            return self._given(found) if found else self._member(node, name)
        base = self.of(node.value)
        if end in ("shape", "device", "dtype", "ndim"):
            return UNKNOWN
        if base.is_settled:
            return base
        if base.is_of_data:
            return LOSS if base.kind == "share" and names_loss(end) else base
        if base.items:
            return base.items.get(end, UNKNOWN)
        return LOSS if names_loss(end) and not dotted(node).startswith("self.") else UNKNOWN

    def _member(self, node: cst.CSTNode, name: str) -> Value:
        """Return what an attribute of ``self`` is that other methods have set."""
        owner = self._source.class_of(node)
        if owner is None:
            return UNKNOWN
        given = owner.attributes.get(name, [])
        kinds = {made(self._source, each, self.of) for each in given} - {CONSTANT}
        if kinds - {UNKNOWN}:
            return same(kinds)
        return self._grown(owner.node, name) if self._bound is None else UNKNOWN

    def _grown(self, owner: cst.ClassDef, name: str) -> Value:
        """Return what other methods of a class append to a list of ``self``."""
        value = joined([self.of(each) for each in appended(self._source, owner, name)])
        if value.items:
            return kept(value.items)
        return value if value.kind not in ("unknown", "constant") else UNKNOWN

    def _subscript(self, node: cst.Subscript) -> Value:
        key, index = constant_key(node), number(only_index(node))
        found = reaching(self._source, node)
        if found.listed and found.is_complete:
            return self._given(found.listed)
        base = self.of(node.value)
        if key is not None and base.items:
            return base.items.get(key, SHARE if base.kind == "share" else UNKNOWN)
        if index is not None and 0 <= index < len(base.parts):
            return base.parts[int(index)]
        if base.is_settled or base.kind == "metric":
            return base
        is_loss = key is not None and names_loss(key)
        return LOSS if is_loss and not dotted(node.value).startswith("self.") else base

    # Operations

    def _arithmetic(self, node: cst.BinaryOperation) -> Value:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.operator, cst.Power) and number(node.right) == 0.5:
            return root(self._source, node.left, self.of) or left
        if isinstance(node.operator, cst.Divide) and is_ratio_of_counts(self._source, node):
            return self._unless_right(node, RATIO)
        if "constant" in (left.kind, right.kind):
            return right if left.kind == "constant" else left
        return combined([left, right])

    def _unless_right(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return a value that is not averageable, unless it is of all data or of one example."""
        given = [each.value for each in node.args] if isinstance(node, cst.Call) else []
        if is_agreed(self._source, node) or any(self.of(e).kind == "reduced" for e in given):
            return REDUCED
        return SHARE if is_per_element(self._source, node) else value

    # Calls

    def _call(self, node: cst.Call) -> Value:
        name, method = self._source.name(node.func), last(node.func)
        if collective(self._source, node):
            return REDUCED
        if made(self._source, node, self.of).kind == "metric":
            return METRIC
        if (found := self._method(node, method)) is not None:
            return found
        if isinstance(node.func, cst.Subscript):  # of a ModuleDict
            kind = self.of(node.func).kind
            if kind in ("metric", "criterion"):
                return RESULT if kind == "metric" else LOSS
        if method in ("dict", "OrderedDict", "defaultdict", "Counter"):
            return Value(items=self._items(node))
        found = listed(self._source, node, name, self.of)
        if found is not None and found.kind == "not averageable":
            return self._unless_right(node, found)
        if found is not None or (found := self._hop(node)) is not None:
            return found
        if REDUCING.search(method) and not method.startswith("reduce_mean"):
            return UNKNOWN
        given = [self.of(each.value) for each in node.args]
        if given and KEEPS.fullmatch(method):
            return given[0]
        if names_loss(method) or method.startswith(("loss", "compute_loss", "criterion")):
            return LOSS
        kinds = {each.kind for each in given}
        is_share = {"share", "loss"} & kinds and not {"reduced", "result"} & kinds
        found = SHARE if is_share else UNKNOWN
        is_call = is_opaque(self._source, node, name)
        return Value(found.kind, method, is_call=True) if is_call else found

    def _method(self, node: cst.Call, method: str) -> Value | None:
        """Return what a method call is by its object, or None where that tells nothing."""
        owner = object_of(node)
        if owner is None or self._source.name(owner) in _LIBRARIES:
            return None
        if dotted(owner) == "self" and self._source.class_of(node) is not None:
            kind = self._member(node, method).kind
            return RESULT if kind == "metric" else LOSS if kind == "criterion" else None
        base = self.of(owner)
        if base.kind == "metric" or method == "compute":
            return base if base.kind == "metric" and method in ("to", "clone") else RESULT
        if method == "sqrt" and (found := root(self._source, owner, self.of)):
            return found
        if method == "exp" and base.kind == "loss":
            return EXP
        if method in ("items", "values") and not node.args:
            return base
        if base.kind == "criterion":
            return LOSS
        if base.is_of_data and QUANTILES.fullmatch(method):
            return quantile(method)
        if base.is_settled or base.is_of_data:
            return base
        if method in ("pop", "get") and base.items and node.args:
            return base.items.get(string(node.args[0].value) or "", UNKNOWN)
        return None

    def _hop(self, node: cst.Call) -> Value | None:
        """Return what a function of the file or a method of the class returns, one call deep."""
        function = called(self._source, node)
        if function is None or self._bound is not None:
            return None
        returned = self._source.returned(function)
        if returned is None:
            return UNKNOWN if brings_together(self._source, function) else None
        given = parameters(function)
        given = given[1:] if given[:1] in (["self"], ["cls"]) else given
        bound = dict(zip(given, map(self.of, positional(node)), strict=False))
        for each in node.args:
            if each.keyword is not None:
                bound[each.keyword.value] = self.of(each.value)
        self._bound, self._known_inside = bound, {}
        try:
            found = self.of(returned)
        finally:
            self._bound = None
        return found if found != UNKNOWN else None

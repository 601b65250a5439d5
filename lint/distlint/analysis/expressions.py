"""Values of expressions."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from distlint.analysis.annotations import of_attribute
from distlint.analysis.conditions import compared, flag, told
from distlint.analysis.events import Guard, Node
from distlint.analysis.formula import DATA, FALSE, SAME, TRUE, UNKNOWN, Formula, every, negate, some, varies
from distlint.analysis.measures import Measure, curved, one_of_several
from distlint.analysis.orders import order_of, order_of_sets
from distlint.analysis.results import SHARE_OF, length_of
from distlint.analysis.state import State
from distlint.analysis.value import (
    NONE_VALUE,
    SAME_VALUE,
    UNKNOWN_VALUE,
    Reason,
    Value,
    any_of,
    combine,
    dtype_of,
    join,
    shallow,
)
from distlint.api import (
    Effect,
    attribute_effect,
    environment_kind,
    family_of,
    function_effect,
    name_effect,
    names_loss,
    unbound,
)
from distlint.syntax import ClassNode, FunctionNode, Located

_SAME_ATTRIBUTES = frozenset({"device", "dtype", "ndim", "requires_grad", "shape", "training"})
_SETS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)
_MOST_ELEMENTS = 64  # of what is written out and kept apart; longer ones are tables
_SUMS = (ast.Add, ast.Sub)
_SIZES = frozenset({"batch_size", "num_graphs"})
_KEPT = frozenset({"correlation", "statistic"})  # of what SciPy's tests return


class Expressions(State):
    """Evaluates everything but calls, which are told apart in a class of their own."""

    def value(self, node: ast.expr | None) -> Value:
        """Return what is known of an expression, and note what it does."""
        if node is None:
            return NONE_VALUE
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return combine(parts)

    @abstractmethod
    def call(self, node: ast.Call) -> Value:
        """Return the result of a call, and note what it does."""

    def reason(self, node: Located) -> Reason:
        """Return a reason that begins at a node."""
        return Reason(node.lineno, self.index.text_of(node))

    def _constant(self, node: ast.Constant) -> Value:
        if node.value is None:
            return NONE_VALUE
        formula = flag(node.value) if isinstance(node.value, bool) else None
        return Value(0, constant=node.value, formula=formula)

    def _name(self, node: ast.Name) -> Value:
        found = self.look_up(node.id)
        if found is None:
            name = unbound(node.id)
            return self._imported(name) if name else self._conventional(node, node.id)
        if found.sources:
            self.read |= found.sources
        if node.id in self.owned:
            self.owned -= {node.id}
        if self.gradless and found.grad:
            found = found._replace(grad=0, cut=None)
        if found.varies <= UNKNOWN and not found.family and not found.target:
            believed = self._conventional(node, node.id)
            return found if believed is UNKNOWN_VALUE or found.constant is not None else believed
        return found

    def look_up(self, name: str) -> Value | None:
        """Return the value of a name: of this function, of one around it, or of the file."""
        if name in self.names:
            return self.names[name]
        function: FunctionNode | None = self.function
        while function is not None:
            if name in function.local:
                return Value(0, target=function.local[name])
            if name in function.imports:
                return self._imported(function.imports[name])
            if function.parent is not None:
                known = self.facts.read(("name", function.parent, name), self.function)
                if known is not None:
                    return known
            function = function.parent
        return self._global(name)

    def _global(self, name: str) -> Value | None:
        if name in self.index.imports:
            return self._imported(self.index.imports[name])
        if name in self.index.functions:
            return Value(0, target=self.index.functions[name])
        if name in self.index.classes:
            return Value(0, target=self.index.classes[name])
        return self.facts.read(("name", self.index, name), self.function)

    def _imported(self, name: str) -> Value:
        return Value(0, name=name, family=family_of(name) and "class")

    def _conventional(self, node: ast.expr, name: str) -> Value:
        """What a name says by convention, where what it stands for cannot be seen."""
        effect = name_effect(name)
        if effect is not None:
            return self.ranked(effect.kind, node)
        family = self.facts.believed(name, self.function)
        return Value(family=family, instance=True) if family else UNKNOWN_VALUE

    def ranked(self, kind: str, node: Located) -> Value:
        """Return the value of something that tells the rank, or how many ranks there are."""
        return told(kind, self.reason(node))

    def _attribute(self, node: ast.Attribute) -> Value:
        receiver = self.value(node.value)
        return self.attribute(receiver, node)

    def attribute(self, receiver: Value, node: ast.Attribute) -> Value:
        """Return an attribute of a value."""
        name = node.attr
        if receiver.name and not receiver.instance:
            return Value(0, name=f"{receiver.name}.{name}", family=family_of(f"{receiver.name}.{name}") and "class")
        owner = receiver.target
        if isinstance(owner, ClassNode):
            known = self._member(owner, name)
            if known is not None:
                self.read |= known.sources
                return known
        if name == "module" and receiver.wrapped:
            return receiver._replace(wrapped="")
        effect = attribute_effect(name)
        if effect is not None and not receiver.is_rank:
            return self.ranked(effect.kind, node)
        family = self.facts.believed(name, self.function)
        if family:
            return Value(family=family, instance=True)
        if name in _SAME_ATTRIBUTES:
            if name != "shape":
                return UNKNOWN_VALUE
            own = receiver.reason if receiver.length else None
            shape = length_of(receiver)._replace(family="shape", length=receiver.length)
            return shape._replace(reason=shape.reason or own)
        if name == "loss" and receiver.is_local:
            return receiver._replace(scale="mean", family="")
        if name in ("data", "grad"):
            return receiver
        if name in _SIZES:
            return Value(UNKNOWN, family="length", dtype="int")
        if receiver.family in ("trainer", "lightning_trainer") and name.endswith("_dataloaders"):
            return Value(0, family="loader", instance=True, wrapped="prepared")
        measure = receiver.measure if name in _KEPT else None
        return Value(
            receiver.varies,
            receiver.reason,
            grad=receiver.grad,
            cut=receiver.cut,
            sources=receiver.sources,
            measure=measure,
        )

    def _member(self, owner: ClassNode, name: str) -> Value | None:
        for each in self.index.lineage(owner):
            if name in each.methods:
                method = each.methods[name]
                if method.is_property:
                    return self.facts.read(("return", method, ""), self.function) or UNKNOWN_VALUE
                return Value(0, target=method)
            known = self.facts.read(("attribute", each, name), self.function)
            if known is not None and (known.is_local or known.family or known.target or known.wrapped or known.name):
                return known
            said = of_attribute(self.facts, each, name)
            if said.instance:
                return said
        return None

    def _subscript(self, node: ast.Subscript) -> Value:
        whole, index = self.value(node.value), self.value(node.slice)
        if whole.name == "os.environ" and isinstance(index.constant, str):
            return self.environment(index.constant, node)
        number, most = index.constant, len(whole.elements)
        if isinstance(number, int) and -most <= number < most and whole.family != "dict":
            return whole.elements[number]
        if whole.family == "shape":
            is_own = whole.length and index.constant == 0
            varying = DATA if is_own else UNKNOWN
            return whole._replace(varies=varying, family="length", length=False, dtype="int")
        if whole.elements and whole.family in ("dict", "list") and not isinstance(node.slice, ast.Slice):
            return self._item(whole, index)
        result = combine([whole, index])
        if isinstance(node.slice, ast.Slice):
            result = self._slice(node, node.slice, result)
            return self._sliced(whole, index, result, node.slice)
        if index.family == "mask":
            result = result._replace(length=result.length or index.is_local, scale=whole.scale)
        elif whole.family == "list":
            result = result._replace(length=index.length)
        if whole.family == "shares" and index.is_rank:
            result = result._replace(length=True)
        family = "part" if whole.family == "batch" and isinstance(index.constant, str) else ""
        if index.family == "counter" and whole.is_local:
            family = "example"
        if whole.family == "ragged" and isinstance(node.slice, ast.Tuple):
            family = "ragged" if all(isinstance(part, ast.Slice) for part in node.slice.elts) else ""
        is_loss = isinstance(index.constant, str) and names_loss(index.constant) and whole.is_local
        return result._replace(
            family=family,
            wrapped=whole.wrapped,
            reduced=whole.reduced,
            divided=whole.divided,
            measure=whole.measure or one_of_several(whole, index.constant, node, self.index.text_of(node)),
            call=whole.call if whole.family == "result" else None,
            scale="mean?" if is_loss else result.scale,
        )

    def _item(self, whole: Value, index: Value) -> Value:
        """An item of a list or dict that is written out; any of them where it is not known which."""
        if len(whole.keys) == len(whole.elements) and index.constant in whole.keys:
            return whole.elements[whole.keys.index(index.constant)]
        return any_of(whole.elements)

    def _sliced(self, whole: Value, index: Value, result: Value, part: ast.Slice) -> Value:
        """A cut by this rank's data is as long as that says; one with steps that begins at the rank, one more or less.

        What is cut to a multiple of the number of ranks gives them equal shares.
        """
        is_even = part.upper is not None and self.value(part.upper).family == "even"
        is_own = index.varies == DATA or (index.is_rank and part.step is not None and whole.family != "even")
        family = "even" if is_even else whole.family if whole.family in ("list", "loader", "ragged") else ""
        return result._replace(length=whole.length or is_own, scale=whole.scale, family=family, wrapped=whole.wrapped)

    def _slice(self, node: ast.Subscript, part: ast.Slice, result: Value) -> Value:
        """What follows or comes before the rank's own place of what was gathered needs no gradient of this rank."""
        bounds = [self.value(bound) for bound in (part.lower, part.upper) if bound is not None]
        if part.step is not None and bounds:
            self.emit(SHARE_OF, node, args=(bounds[0], self.value(part.step)))
        is_rest = any(bound.family in ("rank", "local_rank") for bound in bounds)
        return result._replace(cut=None) if is_rest else result

    def environment(self, name: str, node: Located) -> Value:
        """Return the value of an environment variable."""
        kind = environment_kind(name)
        return self.ranked(kind, node) if kind else UNKNOWN_VALUE

    def _bool(self, node: ast.BoolOp) -> Value:
        formulas, values, blocks = [], [], []
        before, is_and = self.guards, isinstance(node.op, ast.And)
        for part in node.values:
            with self.collected() as block:
                value = self.value(part)
            values.append(value)
            blocks.append(block)
            formulas.append(self.as_formula(value, part))
            self.guards = (*self.guards, Guard("and", value, part, is_and))
        self.guards = before
        rest: list[Node] = []
        for value, part, block in zip(reversed(values), reversed(node.values), reversed(blocks), strict=True):
            with self.collected() as both:
                self.block += block
                self.branch(value, part, *((rest, []) if is_and else ([], rest)))
            rest = both
        self.block += rest
        formula = every(formulas) if is_and else some(formulas)
        return combine(values)._replace(formula=formula, varies=max(varies(formula), 0))

    def _unary(self, node: ast.UnaryOp) -> Value:
        inside = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            formula = negate(self.as_formula(inside, node.operand))
            return Value(varies(formula), inside.reason, formula, sources=inside.sources)
        if isinstance(inside.constant, int | float) and isinstance(node.op, ast.USub):
            return Value(0, constant=-inside.constant)
        return inside._replace(constant=None)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        for turn, which in (values[:2], values[1::-1]):
            if turn.family == "turn":
                self.emit(SHARE_OF, node, args=(which, Value(0, family="world")))
        return compared(self, node, values)

    def _binary(self, node: ast.BinOp) -> Value:
        chain = [node]  # a sum of many lines is as deep as it is long
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        result = self.value(chain[-1].left)
        for each in reversed(chain):
            right = self.value(each.right)
            if isinstance(each.op, ast.FloorDiv):
                self.note_division(result, right, each)
            result = self.arithmetic(each.op, result, right, each)
        return result

    def note_division(self, left: Value, right: Value, node: ast.expr) -> None:
        """Note that a sum over ranks is divided by their number, in a way that keeps its type."""
        if left.reduced == "sum" and right.family == "world":
            self.emit(Effect("divide", "divide"), node, args=(left, right))

    def arithmetic(self, operator: ast.operator, left: Value, right: Value, node: ast.expr) -> Value:
        """Return the result of an operation on two values."""
        result = combine([left, right])
        if isinstance(operator, ast.Div | ast.FloorDiv):
            quotient = self._quotient(left, right, result)
            return quotient if isinstance(operator, ast.Div) else quotient._replace(dtype=dtype_of(left))
        main, other = (left, right) if _tells(left) >= _tells(right) else (right, left)
        scale, reduced, divided = main.scale, main.reduced, left.divided or right.divided
        if isinstance(operator, _SUMS) and left.is_local and right.is_local and left.scale != right.scale:
            scale = ""
        if isinstance(operator, ast.Mult):
            scale, reduced = _product(main, other)
            self._share(left, right, node)
        families = left.family, right.family
        family = next((each for each in ("even", "length", "clock") if each in families), "")
        if isinstance(operator, _SUMS) and right.family == "turn":
            family = "even"  # without this rest, or with as much more, it is a multiple of the number of ranks
        if isinstance(operator, _SETS) and (result_order := order_of_sets(left, right)):
            return result._replace(family="set", order=result_order)
        if left.family in ("rank", "local_rank") or right.family in ("rank", "local_rank"):
            family = left.family if left.family.endswith("rank") else right.family
        if isinstance(operator, ast.Mod) and left.family in ("rank", "local_rank"):
            family = "local_rank" if right.constant is None else ""  # by the number of devices of a machine
        if isinstance(operator, ast.Mod) and right.family == "world":
            family = "turn"
        measure = self._measured(operator, left, right, node)
        dtype = dtype_of(left) if dtype_of(left) == dtype_of(right) else ""
        return result._replace(
            scale=scale, reduced=reduced, divided=divided, family=family, measure=measure, dtype=dtype
        )

    def _share(self, left: Value, right: Value, node: ast.expr) -> None:
        """Note where a rank's part of something begins: ``rank * (size // world)``."""
        for which, size in ((left, right), (right, left)):
            if size.family == "even":
                self.emit(SHARE_OF, node, args=(which, Value(0, family="world")))

    def _measured(self, operator: ast.operator, left: Value, right: Value, node: ast.expr) -> Measure | None:
        """What a value measures that is scaled, or added to; the root of a mean of squares."""
        if isinstance(operator, ast.Pow):
            is_root = right.constant == 0.5
            return curved(left, node, self.index.text_of(node), is_root=True) if is_root else None
        if isinstance(operator, _SUMS):
            return left.measure or right.measure
        if isinstance(operator, ast.Mult):
            return left.measure if not right.is_local else right.measure if not left.is_local else None
        return None

    def _quotient(self, left: Value, right: Value, result: Value) -> Value:
        """Divided by the number of ranks or a count of all, a value is normalised; by a local count, a local mean.

        What else it is divided by may be either.
        """
        measure = left.measure if not right.is_local or right.family == "length" else None
        result = result._replace(
            scale=left.scale, reduced=left.reduced, cut=left.cut, divided=True, dtype="float", measure=measure
        )
        if right.family == "world" or right.sources or right.reduced:
            return result._replace(family="even" if right.family == "world" and left.varies <= UNKNOWN else "")
        is_own_count = right.scale == "count" or (right.scale == "sum" and right.is_local and not right.grad)
        if left.scale == "sum" and (is_own_count or right.family == "length"):
            return result._replace(scale="local mean" if is_own_count else "mean", divided=left.divided)
        return result._replace(divided=left.divided or right.scale != "batches")

    def _conditional(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        arms = []
        for taken, part in ((True, node.body), (False, node.orelse)):
            with self.guarded(Guard("branch", test, node.test, taken)), self.collected() as block:
                arms.append((self.value(part), block))
        (first, then), (second, other) = arms
        self.branch(test, node.test, then, other)
        return self.merged(first, second, test, node.test)

    @abstractmethod
    def branch(self, test: Value, node: Located, then: list[Node], other: list[Node]) -> None:
        """Note two ways on."""

    def merged(self, first: Value, second: Value, test: Value, node: Located) -> Value:
        """Return the value of what two ways make of it; where ranks go different ways, they differ in it."""
        if first is second or (first == second and (first.constant is not None or first.family == "none")):
            return first
        if test.formula is not None and test.formula == TRUE:  # as in a job of several ranks
            return first
        if test.formula is not None and test.formula == FALSE:
            return second
        formula = self._chosen(first, second, test, node)
        value = join(first, second)
        if first.reduced and second.reduced and value.varies == SAME:
            return value  # the same collective on both ways
        if test.is_local and test.varies > value.varies:
            reason = test.reason or self.reason(node)
            value = value._replace(varies=test.varies, reason=reason._replace(control=True))
        if value.wrapped and not (first.wrapped and second.wrapped) and self.asks_whether_wrapped(node):
            value = value._replace(wrapped="")
        return value._replace(formula=formula)

    def asks_whether_wrapped(self, node: Located) -> bool:
        """True if a test is there to find the model inside of a wrapper."""
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call) and len(each.args) == 2)
        return any(self._is_of_wrapper(call) for call in calls)

    def _is_of_wrapper(self, call: ast.Call) -> bool:
        asked = call.args[1]
        if isinstance(asked, ast.Constant):
            return asked.value == "module"
        types = asked.elts if isinstance(asked, ast.Tuple) else [asked]
        effects = (function_effect(self.index.qualify(each, self.function)) for each in types)
        return any(effect is not None and effect.kind == "wrap" for effect in effects)

    def _chosen(self, first: Value, second: Value, test: Value, node: Located) -> Formula | None:
        if first.formula is None or second.formula is None:
            return None
        asked = self.as_formula(test, node)
        return some([every([asked, first.formula]), every([negate(asked), second.formula])])

    def _written_out(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        elements = tuple(shallow(self.value(part)) for part in node.elts)
        family = {ast.Tuple: "tuple", ast.List: "list", ast.Set: "set"}[type(node)]
        if any(isinstance(part, ast.Starred) for part in node.elts):
            return combine(list(elements))._replace(family=family)
        whole = combine(list(elements)) if elements else SAME_VALUE
        order = order_of(elements) if isinstance(node, ast.Set) else ""
        scales = {part.scale for part in elements}
        scale = scales.pop() if len(scales) == 1 else ""
        return whole._replace(
            family=family, elements=elements if len(elements) <= _MOST_ELEMENTS else (), order=order, scale=scale
        )

    def _dict(self, node: ast.Dict) -> Value:
        keys = [self.value(key) if key is not None else None for key in node.keys]
        elements = tuple(shallow(self.value(part)) for part in node.values)
        if not all(key is not None and key.constant is not None for key in keys):
            known = [key for key in keys if key is not None]
            return combine([*known, *elements])._replace(family="dict")
        whole = combine(list(elements)) if elements else SAME_VALUE
        if len(elements) > _MOST_ELEMENTS:
            return whole._replace(family="dict")
        names = tuple(key.constant for key in keys if key is not None)
        return whole._replace(family="dict", elements=elements, keys=names)

    def _text(self, node: ast.JoinedStr) -> Value:
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        elements = tuple(self.value(part) for part in parts)
        return combine(list(elements))._replace(family="text", elements=elements)

    def _starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def _lambda(self, node: ast.Lambda) -> Value:
        self.captured |= {each.id for each in ast.walk(node.body) if isinstance(each, ast.Name)}
        return Value(0, family="lambda")

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        names, guards = dict(self.names), self.guards
        own = {each.id for part in node.generators for each in ast.walk(part.target) if isinstance(each, ast.Name)}
        kept = own & self.assigned
        outer = UNKNOWN_VALUE
        with self.collected() as block:
            for each in node.generators:
                outer = self.value(each.iter)
                self.bind(each.target, self.element(outer))
                self.guards = (*self.guards, Guard("for", outer, each.iter))
                for test in each.ifs:
                    value = self.value(test)
                    outer = outer._replace(length=outer.length or value.is_local)
                    self.guards = (*self.guards, Guard("branch", value, test))
            if isinstance(node, ast.DictComp):
                self.value(node.key)
            part = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
            inside = combine([part])._replace(measure=part.measure, reduced=part.reduced)
        self._forget(own, names, kept)
        self.guards = guards
        self.loop(node, outer, block)
        family = {ast.SetComp: "set", ast.DictComp: "dict"}.get(type(node), "list")
        order = outer.order
        if isinstance(node, ast.SetComp):
            order = "texts" if isinstance(node.elt, ast.JoinedStr) else "set"
        return inside._replace(family=family, length=outer.length, order=order)

    def _forget(self, own: set[str], before: dict[str, Value], kept: set[str]) -> None:
        """Give the variables of a comprehension back what they were outside; what ``:=`` has set stays."""
        self.assigned -= own - kept
        for name in own:
            if name in before:
                self.names[name] = before[name]
            else:
                self.names.pop(name, None)

    @abstractmethod
    def bind(self, target: ast.expr, value: Value) -> None:
        """Give a value to a name, an attribute, or the parts of a tuple."""

    @abstractmethod
    def element(self, value: Value) -> Value:
        """Return one turn's value of what is iterated over."""

    @abstractmethod
    def loop(self, node: Located, value: Value, block: list[Node]) -> None:
        """Note statements that run again and again."""

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)


def _tells(value: Value) -> tuple[int, bool]:
    """How much of a result comes from a value: from what ranks hold of their own, then from what was reduced."""
    return value.varies, bool(value.reduced or value.scale)


def _product(main: Value, other: Value) -> tuple[str, str]:
    """What a value is over samples, and over ranks, after it is multiplied: by how many samples, a sum."""
    if other.family == "world":
        return main.scale, "scaled"
    if isinstance(other.constant, int | float):
        return main.scale, main.reduced
    is_total = other.family == "length" or other.scale == "count"
    return "sum" if is_total and main.scale else "", main.reduced


_HANDLERS: dict[type[ast.expr], Callable[[Expressions, Any], Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.BoolOp: Expressions._bool,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BinOp: Expressions._binary,
    ast.IfExp: Expressions._conditional,
    ast.Tuple: Expressions._written_out,
    ast.List: Expressions._written_out,
    ast.Set: Expressions._written_out,
    ast.Dict: Expressions._dict,
    ast.JoinedStr: Expressions._text,
    ast.Starred: Expressions._starred,
    ast.Lambda: Expressions._lambda,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.NamedExpr: Expressions._walrus,
    ast.Call: Expressions._call,
}

"""What is known of a value inside one function: a loss, this rank's share, a metric, …"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import libcst as cst

from distlint import averageable
from distlint.apis import EVALUATION, REDUCING, STEPS, family_of, is_world, names_loss
from distlint.collectives import called, collective
from distlint.source import (
    Source,
    argument,
    dotted,
    keyword,
    last,
    number,
    pairs,
    parameters,
    positional,
    self_attribute,
    string,
)

Kind = Literal[
    "unknown", "constant", "metric", "result", "not averageable", "loss", "share", "reduced",
    "criterion",
]  # fmt: skip
# Methods and functions that give back what they are given, as far as rules are concerned.
_KEEPS = frozenset(
    [
        "item",
        "detach",
        "cpu",
        "cuda",
        "float",
        "double",
        "half",
        "long",
        "int",
        "numpy",
        "clone",
        "to",
        "tolist",
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "mean",
        "sum",
        "nanmean",
        "contiguous",
        "type",
        "type_as",
        "size",
        "abs",
        "round",
        "item_",
        "cat",
        "stack",
        "tensor",
        "as_tensor",
        "array",
        "asarray",
        "full_like",
        "enumerate",
        "list",
        "tuple",
        "sorted",
        "zip",
        "track",
        "tqdm",
        "float32",
        "average",
        "concatenate",
        "hstack",
        "vstack",
        "from_numpy",
        "max",
        "min",
        "get",
    ]
)
_QUANTILES = frozenset({"median", "nanmedian", "quantile", "nanquantile", "percentile"})
_ROOTS = frozenset({"sqrt"})
_LOADER = re.compile(r"(?:^|_)(?:data)?(?:loader|dl)s?\d*$|^dataloader", re.IGNORECASE)
_COUNTS = re.compile(r"(?:^|_)(?:tp|fp|fn|tn|true_pos\w*|false_pos\w*|false_neg\w*|n_pred\w*|"
                     r"intersection|union|inter)s?(?:_|$)", re.IGNORECASE)  # fmt: skip
_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "_all_reduce", "all_reduce_"})


@dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        kind: what it is; rules are silent on ``"unknown"``.
        name: of the metric, where the kind is ``"not averageable"``.
        reason: why its mean over ranks is wrong.
        items: what a dict holds under constant keys.
        is_call: whether a function makes it that cannot be seen, and that is no primitive of a library.
        parts: what the elements of a tuple are.
    """

    kind: Kind = "unknown"
    name: str = ""
    reason: str = ""
    items: Mapping[str, Value] = field(default_factory=dict, hash=False)
    is_call: bool = False
    parts: tuple[Value, ...] = ()


class _Definition(NamedTuple):
    order: int
    node: cst.CSTNode  # the statement or expression that binds
    value: cst.BaseExpression | None  # None for what a collective has changed in place
    how: Literal["is", "element of", "joins", "reduced"]
    element: int | None = None  # the place of what is taken, where a tuple is unpacked


UNKNOWN = Value()
_CONSTANT, _SHARE, _LOSS = Value("constant"), Value("share"), Value("loss")
_REDUCED, _RESULT, _METRIC = Value("reduced"), Value("result"), Value("metric")
_CRITERION = Value("criterion")
_EXP = Value("not averageable", "perplexity", averageable.EXP_REASON)
_ROOT = Value("not averageable", "a root of a mean", averageable.ROOT_REASON)
# Libraries whose functions are arithmetic, as far as nothing else is said of them.
_PRIMITIVES = frozenset({
    "torch", "numpy", "math", "statistics", "torchvision", "torchaudio", "einops", "operator",
    "functools", "itertools", "os", "time", "random", "copy", "logging", "json", "pathlib",
    "typing", "collections", "pandas", "cv2", "PIL",
})  # fmt: skip
_ADDING = frozenset({"append", "extend", "update", "add"})
_DEEPEST = 80


class Values:
    """Answers what expressions of one file are.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._definitions: dict[cst.CSTNode, dict[str, list[_Definition]]] = {}
        self._known: dict[cst.CSTNode, Value] = {}
        self._bound: dict[str, Value] | None = None  # the arguments, inside of a called function
        self._known_inside: dict[cst.CSTNode, Value] = {}  # of that function
        self._adds: dict[cst.ClassDef, dict[str, list[cst.BaseExpression]]] = {}
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
            return _CONSTANT  # made from itself, in a loop: adds nothing
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
            case cst.UnaryOperation():
                return self.of(node.expression)
            case cst.Comparison():
                sides = [node.left, *(each.comparator for each in node.comparisons)]
                return _SHARE if _SHARE in map(self.of, sides) else UNKNOWN
            case cst.IfExp():
                return _joined([self.of(node.body), self.of(node.orelse)])
            case cst.BooleanOperation():
                return _joined([self.of(node.left), self.of(node.right)])
            case cst.Dict():
                return Value(items=self._items(node))
            case cst.ListComp() | cst.GeneratorExp() | cst.SetComp():
                return self.of(node.elt)
            case cst.DictComp():
                return self.of(node.value)
            case cst.Tuple():
                return _tuple([self.of(each.value) for each in node.elements])
            case cst.List():
                return _joined([self.of(each.value) for each in node.elements])
            case cst.StarredElement():
                return self.of(node.value)
            case cst.NamedExpr():
                return self.of(node.value)
            case cst.SimpleString() | cst.Integer() | cst.Float():
                return _CONSTANT
        return UNKNOWN

    def _items(self, node: cst.Dict) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for each in node.elements:
            if isinstance(each, cst.DictElement):
                key = string(each.key)
                if key is not None:
                    found[key] = self.of(each.value)
            else:
                found |= self.of(each.value).items
        return found

    def entries(self, node: cst.BaseExpression) -> dict[str, Value]:
        """Return what a dict holds by its constant keys, those that are set one by one included."""
        found = dict(self.of(node).items)
        prefix = f"{dotted(node)}["
        function = self._source.function(node)
        if not dotted(node) or function is None:
            return found
        for name, listed in self._bindings(function).items():
            before = [each for each in listed if each.order < self._source.order(node)]
            if name.startswith(prefix) and before:
                found[name.removeprefix(prefix)[:-1]] = _joined([self._defined(e) for e in before])
        return found

    # Variables

    def _name(self, node: cst.Name) -> Value:
        if node.value in ("True", "False", "None"):
            return _CONSTANT
        element = self._comprehended(node)
        if element is not None:
            return element
        found = self.definitions(node.value, node)
        values = [self._defined(each) for each in found.listed]
        if not found.is_complete and (not values or self._is_parameter(node)):
            values.append(self._parameter(node))
        value = _joined(values)
        if (value == UNKNOWN or (value.kind == "share" and not value.items)) and names_loss(
            node.value
        ):
            return _LOSS
        return value

    def _comprehended(self, node: cst.Name) -> Value | None:
        """Return what a variable of a comprehension around a node is."""
        for each in self._source.ancestors(node):
            if isinstance(each, cst.BaseComp | cst.DictComp):
                loop: cst.CompFor | None = each.for_in
                while loop is not None:
                    if node.value in names(loop.target) and not self._source.is_within(
                        node, loop.iter
                    ):
                        return self._element(loop.iter)
                    loop = loop.inner_for_in
            elif isinstance(each, cst.BaseStatement):
                return None
        return None

    def _element(self, iterated: cst.BaseExpression) -> Value:
        """Return what the elements of something are."""
        value = self.of(iterated)
        if value == UNKNOWN and self._is_loader(iterated):
            return _SHARE
        return value if not value.items or value.kind == "share" else UNKNOWN

    def _is_loader(self, node: cst.BaseExpression) -> bool:
        """Return whether a loop over this goes over batches."""
        if isinstance(node, cst.Call) and node.args and last(node.func) not in ("range", "zip"):
            return self._is_loader(node.args[0].value)
        return _LOADER.search(last(node)) is not None

    def _defined(self, definition: _Definition) -> Value:
        if definition.how == "reduced":
            return _REDUCED
        if definition.how == "element of" and definition.value is not None:
            return self._element(definition.value)
        value, at = self.of(definition.value), definition.element
        return value.parts[at] if at is not None and at < len(value.parts) else value

    def _is_parameter(self, node: cst.Name) -> bool:
        function = self._source.function(node)
        return function is not None and node.value in parameters(function)

    def _parameter(self, node: cst.Name) -> Value:
        function = self._source.function(node)
        if function is None or node.value not in parameters(function):
            return UNKNOWN
        if self._bound is not None:
            return self._bound.get(node.value, UNKNOWN)
        name = function.name.value
        given = parameters(function)
        is_step = name in STEPS or EVALUATION.fullmatch(name) or name.endswith("_epoch_end")
        is_runner = node.value in ("trainer", "pl_module")  # of a callback
        if name.endswith("_epoch_end") and given[1:2] == [node.value] and self._bound is None:
            return self._outputs(function)
        if is_step and given[:1] == ["self"] and node.value in given[1:3] and not is_runner:
            return UNKNOWN if node.value.endswith(("idx", "index")) else _SHARE
        if node.value in ("batch", "outputs") and name != "__init__":
            return _SHARE
        return self._handed(function, given.index(node.value) - 1, node.value)

    def _handed(self, function: cst.FunctionDef, index: int, name: str) -> Value:
        """Return what all callers within the class give to a method's parameter."""
        source, owner = self._source, self._source.class_of(function)
        if owner is None or source.method(function) is not None or index < 0:
            return UNKNOWN
        called_as = f"self.{function.name.value}"
        values = [
            self.of(argument(call, index, name))
            for call in source.below(owner.node, cst.Call)
            if dotted(call.func) == called_as
        ]
        kinds = {each.kind for each in values}
        return values[0] if values and kinds <= {"share", "loss"} else UNKNOWN

    def _outputs(self, function: cst.FunctionDef) -> Value:
        """Return what a hook is given of the steps before: shares, by the keys that the step returns."""
        found = self._source.class_of(function)
        name = function.name.value.replace("_epoch_end", "_step")
        step = found.methods.get(name) if found is not None else None
        returns = list(self._source.own(step, cst.Return)) if step is not None else []
        if len(returns) != 1 or returns[0].value is None:
            return _SHARE
        return _kept([self.entries(returns[0].value)])

    def definitions(self, name: str, at: cst.CSTNode) -> Reaching:
        """Return what a variable may have been given before a node, the last one first."""
        source = self._source
        function = source.function(at)
        scope = function if function is not None else source.module
        order = source.order(at)
        found: list[_Definition] = []
        for each in reversed(self._bindings(scope).get(name, [])):
            if each.order >= order or (
                source.is_within(at, each.node) and each.how != "element of"
            ):
                continue
            if self._excludes(each.node, at):
                continue
            found.append(each)
            if each.how != "joins" and self._dominates(each.node, at):
                return Reaching(found, True)
        return Reaching(found, False)

    def _bindings(self, scope: cst.CSTNode) -> dict[str, list[_Definition]]:
        known = self._definitions.get(scope)
        if known is None:
            known = {}
            for name, definition in self._bind(scope):
                known.setdefault(name, []).append(definition)
            for listed in known.values():
                listed.sort(key=lambda each: each.order)
            self._definitions[scope] = known
        return known

    def _bind(self, scope: cst.CSTNode) -> Iterator[tuple[str, _Definition]]:
        source = self._source
        for assign in source.below(scope, cst.Assign):
            for target in assign.targets:
                yield from self._targets(target.target, assign.value, assign)
        for annotated in source.below(scope, cst.AnnAssign):
            if annotated.value is not None:
                yield from self._targets(annotated.target, annotated.value, annotated)
        for augmented in source.below(scope, cst.AugAssign):
            name = key_of(augmented.target)
            is_scale = isinstance(augmented.operator, cst.DivideAssign | cst.MultiplyAssign)
            if name and not is_scale:
                yield name, self._at(augmented, augmented.value, "joins")
        for named in source.below(scope, cst.NamedExpr):
            yield from self._targets(named.target, named.value, named)
        for loop in source.below(scope, cst.For):
            for name in names(loop.target):
                order = source.order(loop.body) - 1
                yield name, _Definition(order, loop, loop.iter, "element of")
        for call in source.below(scope, cst.Call):
            if last(call.func) in _IN_PLACE and collective(source, call) and call.args:
                name = key_of(call.args[0].value)
                if name:
                    yield name, self._at(call, None, "reduced")
            elif last(call.func) in ("append", "extend") and isinstance(call.func, cst.Attribute):
                name = key_of(call.func.value)
                if name and call.args:
                    yield name, self._at(call, call.args[0].value, "joins")

    def _targets(
        self, target: cst.BaseExpression, value: cst.BaseExpression, node: cst.CSTNode
    ) -> Iterator[tuple[str, _Definition]]:
        for left, right in pairs(target, value):
            if isinstance(left, cst.Tuple | cst.List):
                is_after_star = False
                for index, element in enumerate(left.elements):
                    is_after_star |= isinstance(element, cst.StarredElement)
                    at = None if is_after_star else index
                    for name in names(element.value):
                        yield name, self._at(node, right, "is")._replace(element=at)
            else:
                name = key_of(left)
                if name:
                    yield name, self._at(node, right, "is")

    def _at(
        self,
        node: cst.CSTNode,
        value: cst.BaseExpression | None,
        how: Literal["is", "element of", "joins", "reduced"],
    ) -> _Definition:
        return _Definition(self._source.order(node), node, value, how)

    def _dominates(self, definition: cst.CSTNode, at: cst.CSTNode) -> bool:
        """Return whether every way to a node passes a definition before it."""
        source = self._source
        for each in source.ancestors(definition):
            if isinstance(each, cst.FunctionDef | cst.Module):
                return True
            if isinstance(each, cst.IndentedBlock):
                if source.is_within(at, each):
                    return True
                if not self._always(source.parent(each)):
                    return False
            if isinstance(each, cst.IfExp | cst.BooleanOperation | cst.Lambda):
                return False
        return True

    def _always(self, node: cst.CSTNode | None) -> bool:
        """Return whether a block is run wherever several ranks run."""
        if isinstance(node, cst.With | cst.Try):
            return True
        return isinstance(node, cst.If) and is_about_world(self._source, node.test)

    def _excludes(self, definition: cst.CSTNode, at: cst.CSTNode) -> bool:
        """Return whether a definition is in another arm of a branch around a node."""
        source = self._source
        for each in source.ancestors(at):
            if isinstance(each, cst.If) and each.orelse is not None:
                if source.is_within(at, each.orelse) and source.is_within(definition, each.body):
                    return True
        return False

    # Expressions

    def _attribute(self, node: cst.Attribute) -> Value:
        name = self_attribute(node)
        if name:
            found = self.definitions(dotted(node), node)
            if found.listed:
                return _joined([self._defined(each) for each in found.listed])
            return self._member(node, name)
        base = self.of(node.value)
        if node.attr.value in ("shape", "device", "dtype", "ndim"):
            return UNKNOWN
        if base.kind in ("reduced", "result", "not averageable"):
            return base
        if base.kind in ("share", "loss"):
            is_loss = base.kind == "share" and names_loss(node.attr.value)
            return _LOSS if is_loss else base
        if base.items:
            return base.items.get(node.attr.value, UNKNOWN)
        is_module = dotted(node).startswith("self.")
        return _LOSS if names_loss(node.attr.value) and not is_module else UNKNOWN

    def _member(self, node: cst.CSTNode, name: str) -> Value:
        """Return what an attribute of ``self`` is that other methods have set."""
        found = self._source.class_of(node)
        given = found.attributes.get(name, []) if found is not None else []
        kinds = {self.made(each) for each in given} - {_CONSTANT}
        if kinds in (set(), {UNKNOWN}) and found is not None:
            return self._grown(found.node, name)
        return kinds.pop() if len(kinds) == 1 else UNKNOWN

    def _grown(self, owner: cst.ClassDef, name: str) -> Value:
        """Return what other methods of a class append to a list of ``self``."""
        if self._bound is not None:
            return UNKNOWN
        added = [
            self.of(call.args[0].value)
            for call in self._source.below(owner, cst.Call)
            if last(call.func) == "append"
            and isinstance(call.func, cst.Attribute)
            and call.args
            and dotted(unsubscripted(call.func.value)) == f"self.{name}"
        ]
        value = _joined(added)
        if value.items:
            return _kept([value.items])
        return value if value.kind not in ("unknown", "constant") else UNKNOWN

    def made(self, value: cst.BaseExpression) -> Value:
        """Return what an object is by what constructs it: a metric, a criterion, or unknown."""
        if dotted(value) in ("None", "True", "False"):
            return _CONSTANT
        if isinstance(value, cst.IfExp):
            return _joined([self.made(value.body), self.made(value.orelse)])
        if not isinstance(value, cst.Call):
            return UNKNOWN
        name = self._source.name(value.func)
        if family_of(name) == "metric":
            return _METRIC
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in ("clone", "to"):
            return (
                self.made(value.func.value)
                if value.func.attr.value == "to"
                else (_METRIC if self._is_metric(value.func.value) else UNKNOWN)
            )
        if name in ("torch.nn.ModuleDict", "torch.nn.ModuleList") and value.args:
            return self._container(value.args[0].value)
        own = self._own_class(name)
        if own is not None and "metric" in own:
            return _METRIC
        if name.startswith("torch.nn.") and name.endswith("Loss"):
            return _CRITERION
        return UNKNOWN

    def _is_metric(self, node: cst.BaseExpression) -> bool:
        return self.of(node).kind == "metric"

    def _container(self, node: cst.BaseExpression) -> Value:
        values: Iterable[cst.BaseExpression] = ()
        if isinstance(node, cst.Dict) or isinstance(node, cst.List | cst.Tuple):
            values = [each.value for each in node.elements]
        elif isinstance(node, cst.DictComp):
            values = [node.value]
        elif isinstance(node, cst.ListComp):
            values = [node.elt]
        kinds = {self.made(each) for each in values}
        return kinds.pop() if len(kinds) == 1 else UNKNOWN

    def _own_class(self, name: str) -> frozenset[str] | None:
        for node, found in self._source.classes.items():
            if node.name.value == name:
                return found.kinds
        known = self._source.facts.base(name).kinds
        return known or None

    def _subscript(self, node: cst.Subscript) -> Value:
        key = constant_key(node)
        if key is not None:
            found = self.definitions(key_of(node), node)
            if found.listed and found.is_complete:
                return _joined([self._defined(each) for each in found.listed])
        base = self.of(node.value)
        if key is not None and base.items:
            return base.items.get(key, _SHARE if base.kind == "share" else UNKNOWN)
        index = _whole(node)
        if index is not None and index < len(base.parts):
            return base.parts[index]
        if base.kind in ("reduced", "result", "metric", "not averageable"):
            return base
        if key is not None and names_loss(key) and not dotted(node.value).startswith("self."):
            return _LOSS
        return base

    def _arithmetic(self, node: cst.BinaryOperation) -> Value:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.operator, cst.Power) and number(node.right) == 0.5:
            return self._root(node.left) or left
        if isinstance(node.operator, cst.Divide) and self._is_ratio_of_counts(node):
            if self.is_agreed(node):
                return _REDUCED
            if self._is_per_element(node):
                return _SHARE
            return Value(
                "not averageable",
                "a ratio of counts",
                "its denominator differs between ranks",
            )
        if "constant" in (left.kind, right.kind):
            return right if left.kind == "constant" else left
        return _combined([left, right])

    def _is_ratio_of_counts(self, node: cst.BinaryOperation) -> bool:
        """Return whether this is ``tp / (tp + fp)`` or ``intersection / union``, of plain numbers."""
        above, below = self._counts(node.left), self._counts(node.right)
        if len({name[:1] + name[-1:] for name in map(str.lower, below)} & {"tp", "tn"}) == 2:
            return False  # all of the confusion matrix: the number of examples
        is_sum = len(below) > 1 and any(
            isinstance(each, cst.BinaryOperation)
            for each in (node.right, *self._source.below(node.right, cst.BinaryOperation))
        )
        is_union = any("union" in each.lower() for each in below)
        return (is_sum or is_union) and bool(above) and self._are_plain(node)

    def _counts(self, node: cst.BaseExpression) -> dict[str, None]:
        inside = [node, *self._source.below(node, cst.Name)]
        return {each.value: None for each in inside
                if isinstance(each, cst.Name) and _COUNTS.search(each.value)}  # fmt: skip

    def _are_plain(self, node: cst.BaseExpression) -> bool:
        """Return whether all counts of a ratio are sums over everything, so none is one of examples."""
        for each in self._source.below(node, cst.Name):
            if _COUNTS.search(each.value):
                made = [found.value for found in self.definitions(each.value, each).listed]
                if not made or not all(map(self._is_total, made)):
                    return False
        return True

    def _is_total(self, node: cst.BaseExpression | None) -> bool:
        """Return whether an expression is a number: a sum or a count over all dimensions."""
        calls = [node, *self._source.below(node, cst.Call)] if node is not None else []
        for call in calls:
            if isinstance(call, cst.Call) and last(call.func) in ("sum", "len", "count_nonzero"):
                is_method = last(call.func) == "sum" and not isinstance(call.func, cst.Name)
                return not is_method or not _reduces_some(call)
        return number(node) is not None

    # Calls

    def _call(self, node: cst.Call) -> Value:
        source = self._source
        name = source.name(node.func)
        if collective(source, node):
            return _REDUCED
        made = self.made(node)
        if made.kind == "metric":
            return made
        method = last(node.func)
        if isinstance(node.func, cst.Attribute) and (found := self._method(node, method)):
            return found
        if isinstance(node.func, cst.Subscript):  # of a ModuleDict
            kind = self.of(node.func).kind
            if kind in ("metric", "criterion"):
                return _RESULT if kind == "metric" else _LOSS
        if method in ("dict", "OrderedDict", "defaultdict", "Counter"):
            return self._dict(node)
        listed = self._listed(node, name)
        if listed is not None:
            if listed.kind == "not averageable" and self.is_agreed(node):
                return _REDUCED
            if listed.kind == "not averageable" and self._is_per_element(node):
                return _SHARE
            return listed
        hop = self._hop(node)
        if hop is not None:
            return hop
        if REDUCING.search(method) and not method.startswith("reduce_mean"):
            return UNKNOWN
        given = [self.of(each.value) for each in node.args]
        if method in _KEEPS and given:
            return given[0]
        if names_loss(method) or method.startswith(("loss", "compute_loss", "criterion")):
            return _LOSS
        kinds = {each.kind for each in given}
        is_share = bool({"share", "loss"} & kinds) and not {"reduced", "result"} & kinds
        is_call = self._is_opaque(node, name)
        return Value("share" if is_share else "unknown", method if is_call else "", is_call=is_call)

    def _dict(self, node: cst.Call) -> Value:
        """Return what a call of ``dict`` holds."""
        items: dict[str, Value] = {}
        for each in node.args:
            if each.keyword is not None:
                items[each.keyword.value] = self.of(each.value)
            else:
                items |= self.of(each.value).items
        return Value(items=items)

    def _is_opaque(self, node: cst.Call, name: str) -> bool:
        """Return whether a call is one of a function of the project, or of a library that is not known."""
        head = name.partition(".")[0]
        end = name.rpartition(".")[2]
        function = called(self._source, node)
        if function is not None:
            inside = [last(each.func) for each in self._source.below(function, cst.Call)]
            is_known = any(REDUCING.search(each) or each == "compute" for each in inside)
            if is_known or dotted(node.func).startswith("self."):
                return False  # it may ask a metric object
        elif dotted(node.func).partition(".")[0] not in self._source.imports or not end.islower():
            return False
        is_primitive = head in _PRIMITIVES or averageable.find(name) is not None
        return not is_primitive and not self.is_agreed(node) and not self._is_per_element(node)

    def _method(self, node: cst.Call, method: str) -> Value | None:
        """Return what a method call is by its object, or None where that tells nothing."""
        assert isinstance(node.func, cst.Attribute)
        owner = node.func.value
        if dotted(owner) == "self" and self._source.class_of(node) is not None:
            return self._member_call(node, method)
        if self._source.name(owner) in ("torch", "numpy", "math", "torch.nn.functional"):
            return None
        base = self.of(owner)
        if base.kind == "metric" and method in ("to", "clone"):
            return base
        if base.kind == "metric" or method == "compute":
            return _RESULT
        if method in _ROOTS and (root := self._root(owner)) is not None:
            return root
        if method == "exp" and base.kind == "loss":
            return _EXP
        if method in ("items", "values") and not node.args:
            return base
        if base.kind == "criterion":
            return _LOSS
        if method in _QUANTILES and base.kind in ("share", "loss"):
            return _quantile(method)
        if method in _KEEPS and base.kind not in ("unknown", "constant"):
            return base
        if base.kind in ("share", "reduced", "result", "not averageable", "loss"):
            return base
        if method in ("pop", "get") and base.items and node.args:
            return base.items.get(string(node.args[0].value) or "", UNKNOWN)
        return None

    def _member_call(self, node: cst.Call, method: str) -> Value | None:
        """Return what ``self.method(…)`` is: a metric or criterion that is called, or one hop."""
        kind = self._member(node, method).kind
        if kind == "metric":
            return _RESULT
        return _LOSS if kind == "criterion" else None

    def _listed(self, node: cst.Call, name: str) -> Value | None:
        """Return what the tables say of a function."""
        if not name:
            return None
        facts, end = self._source.facts, name.rpartition(".")[2]
        for own in (name, end):
            if own in facts.non_averageable:
                reason = facts.non_averageable[own] or "as [tool.distlint] says"
                return Value("not averageable", end, reason)
            if own in facts.averageable:
                return _SHARE
        against = self._against(node, name)
        if against is not None:
            return Value("not averageable", end, against)
        if name.startswith("torch.nn.functional.") and averageable.find(name) is not None:
            return _LOSS
        given = [self.of(each) for each in positional(node)[:1]]
        kind = given[0].kind if given else "unknown"
        if end in _QUANTILES and name.startswith(("torch.", "numpy.", "statistics.")):
            return _quantile(end) if kind != "reduced" else UNKNOWN
        if end == "exp" and kind == "loss" and name.startswith(("torch.", "numpy.", "math.")):
            return _EXP
        if end in _ROOTS and node.args:
            return self._root(node.args[0].value)
        return None

    def _against(self, node: cst.Call, name: str) -> str | None:
        """Return why the mean over ranks of a library's metric is wrong."""
        reason = averageable.reason_against(name)
        end = name.rpartition(".")[2]
        average = string(keyword(node, "average"))
        if average is None and keyword(node, "average") is None and _is_micro(node, name):
            average = "micro"
        if reason is not None and average in ("micro", "samples"):
            return reason if "auroc" in end or "auc" in end else None
        if keyword(node, "reduction") is not None and "segmentation" in name:
            return reason if string(keyword(node, "reduction")) in ("micro", "macro") else None
        if end == "accuracy" and average == "macro":
            return averageable.CLASSES_REASON
        if dotted(keyword(node, "squared")) == "False":
            return averageable.ROOT_REASON
        return reason

    def _root(self, node: cst.BaseExpression) -> Value | None:
        """Return what the root of a mean of squared errors is, as in RMSE; None for other roots."""
        text = self._source.code(node).lower()
        is_mean = "mse" in text or "squared_error" in text
        is_mean |= "mean" in text and ("** 2" in text or "square" in text or "pow(" in text)
        inside = [each for each in (node, *self._source.below(node, cst.Call))
                  if isinstance(each, cst.Call)]  # fmt: skip
        if not is_mean or any(_reduces_some(each) for each in inside):
            return None  # or a root of each example
        value = self.of(node)
        if value.kind in ("reduced", "result") or self.is_agreed(node):
            return value if value.kind != "unknown" else _REDUCED
        return _SHARE if self._is_per_element(node) else _ROOT

    def is_agreed(self, node: cst.BaseExpression, depth: int = 4) -> bool:
        """Return whether a collective may have a part in what an expression is made from."""
        source = self._source
        calls = (node, *source.below(node, cst.Call))
        if any(isinstance(c, cst.Call) and REDUCING.search(last(c.func)) for c in calls):
            return True
        made = (node, *source.below(node, cst.Name), *source.below(node, cst.Attribute))
        return depth > 0 and any(
            self._is_made_together(each, depth - 1)
            for each in made
            if isinstance(each, cst.Name | cst.Attribute)
        )

    def _is_made_together(self, node: cst.Name | cst.Attribute, depth: int) -> bool:
        """Return whether a variable, or an attribute of ``self``, may hold what ranks have brought together."""
        found = self._source.class_of(node)
        before = self.definitions(dotted(node), node).listed
        if any(each.how == "reduced" for each in before):
            return True
        given = [each.value for each in before if each.value is not None]
        name = self_attribute(node)
        if name and found is not None:
            given += found.attributes.get(name, [])
            given += self._added(found.node).get(name, [])
        return any(self.is_agreed(each, depth) for each in given)

    def _added(self, owner: cst.ClassDef) -> dict[str, list[cst.BaseExpression]]:
        """Return what a class adds to containers on ``self``, by their names."""
        known = self._adds.get(owner)
        if known is None:
            known = self._adds[owner] = {}
            for call in self._source.below(owner, cst.Call):
                if (
                    last(call.func) in _ADDING
                    and isinstance(call.func, cst.Attribute)
                    and call.args
                ):
                    name = self_attribute(call.func.value)
                    if name:
                        known.setdefault(name, []).append(call.args[0].value)
        return known

    def _is_per_element(self, node: cst.BaseExpression) -> bool:
        """Return whether a loop around an expression goes over examples, not over batches or classes."""
        source = self._source
        for each in source.ancestors(node):
            if isinstance(each, cst.FunctionDef):
                return False
            loops: list[cst.For | cst.CompFor] = []
            if isinstance(each, cst.For) and source.is_within(node, each.body):
                loops = [each]
            elif isinstance(each, cst.BaseComp | cst.DictComp):
                loops = [each.for_in]
            for loop in loops:
                bound = set(names(loop.target))
                if self._is_made_of(node, bound) and not self._is_of_batches(loop.iter):
                    return True
        return False

    def _is_of_batches(self, iterated: cst.BaseExpression) -> bool:
        """Return whether a loop goes over batches, or over what steps have returned for each."""
        while isinstance(iterated, cst.Call) and iterated.args and last(iterated.func) != "range":
            iterated = iterated.args[0].value
        return self._is_loader(iterated) or "output" in last(iterated)

    def _is_made_of(self, node: cst.BaseExpression, bound: set[str], depth: int = 3) -> bool:
        """Return whether an expression is made of what a loop takes, not of a class or key it names."""
        inside = (each for each in (node, *self._source.below(node, cst.Name)))
        for name in inside:
            if not isinstance(name, cst.Name) or self._is_choice(name, node):
                continue
            if name.value in bound:
                return True
            listed = self.definitions(name.value, name).listed if depth else ()
            made = [each.value for each in listed if each.value is not None and each.how == "is"]
            if any(self._is_made_of(each, bound, depth - 1) for each in made):
                return True
        return False

    def _is_choice(self, name: cst.Name, node: cst.BaseExpression) -> bool:
        """Return whether a name chooses a class or an entry: ``y[:, i]``, ``y == i``, ``x[key + "y"]``."""
        below: cst.CSTNode = name
        for each in self._source.ancestors(name):
            if isinstance(each, cst.Comparison):
                return True
            if isinstance(each, cst.Subscript) and below in each.slice:
                return below in each.slice[1:] or constant_key(each) is not None
            if each is node:
                return False
            below = each
        return False

    def _hop(self, node: cst.Call) -> Value | None:
        """Return what a function of the file or a method of the class returns, one call deep."""
        function = called(self._source, node)
        if function is None or self._bound is not None:
            return None
        returns = list(self._source.own(function, cst.Return))
        if len(returns) != 1 or returns[0].value is None:
            return self._opaque(function)
        given = parameters(function)
        if given[:1] in (["self"], ["cls"]):
            given = given[1:]
        bound = {name: self.of(value) for name, value in zip(given, positional(node), strict=False)}
        bound |= {
            each.keyword.value: self.of(each.value)
            for each in node.args
            if each.keyword is not None
        }
        self._bound, self._known_inside = bound, {}
        try:
            found = self.of(returns[0].value)
        finally:
            self._bound = None
        return None if found == UNKNOWN else found

    def _opaque(self, function: cst.FunctionDef) -> Value | None:
        """Return unknown for a function that may bring ranks together, None for any other."""
        calls = self._source.below(function, cst.Call)
        return UNKNOWN if any(REDUCING.search(last(each.func)) for each in calls) else None


class Reaching(NamedTuple):
    """What a variable may have been given.

    Attributes:
        listed: the definitions, the last one first.
        is_complete: whether it is one of these on every way.
    """

    listed: Sequence[_Definition]
    is_complete: bool


def _quantile(name: str) -> Value:
    return Value("not averageable", name, "a quantile of all data is not a mean of quantiles")


def _tuple(values: Sequence[Value]) -> Value:
    """Return what a tuple of values is: whole, what most rules ask of its elements."""
    plain = [each for each in values if each.kind != "not averageable"]
    joined = _joined(plain or values)
    if all(each == UNKNOWN for each in values):
        return joined
    return Value(joined.kind, joined.name, joined.reason, {}, joined.is_call, tuple(values))


def _kept(dicts: Sequence[Mapping[str, Value]]) -> Value:
    """Return what a list is to which steps have added dicts: this rank's shares, by their keys."""
    items = {key: value for each in dicts for key, value in each.items()}
    return Value("share", items={
        key: Value("share", value.name, "", {}, value.is_call) if value.kind == "unknown" else value
        for key, value in items.items()
    })  # fmt: skip


def _reduces_some(call: cst.Call) -> bool:
    """Return whether a call keeps a dimension: ``x.mean(1)``, ``torch.mean(x, dim=1)``."""
    if keyword(call, "dim", "axis", "reduction") is not None:
        return True
    is_function = dotted(call.func).startswith(("torch.", "np.", "numpy."))
    return last(call.func) in ("mean", "sum") and len(positional(call)) > is_function


def _whole(node: cst.Subscript) -> int | None:
    """Return the constant index in ``x[0]``, or None."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    value = number(index.value) if isinstance(index, cst.Index) else None
    return int(value) if value is not None and value >= 0 else None


def _is_micro(node: cst.Call, name: str) -> bool:
    """Return whether a function averages over all decisions unless it is told otherwise."""
    end = name.rpartition(".")[2]
    if not name.startswith(("torchmetrics.", "torcheval.", "lightning.pytorch.metrics.")):
        return False
    if end.startswith(("binary_", "multiclass_", "multilabel_")):
        return name.startswith("torcheval.") and end.startswith("multiclass_") and "au" not in end
    listed = end in ("f1_score", "f1", "fbeta_score", "fbeta", "precision", "recall", "specificity",
                     "dice", "precision_recall", "stat_scores")  # fmt: skip
    return listed and string(keyword(node, "task")) != "binary"


def _joined(values: Sequence[Value]) -> Value:
    """Return what one of several values is, on different ways."""
    left = [each for each in values if each.kind != "constant"]
    if not left:
        return values[0] if values else UNKNOWN
    if len(left) == 1:
        return left[0]
    if any(each.items for each in left):
        items: dict[str, Value] = {}
        for each in reversed(left):
            items |= each.items
        is_list = all(each.kind == "share" for each in left)
        return Value("share" if is_list else "unknown", items=items)
    return _combined(left)


def _combined(values: Sequence[Value]) -> Value:
    """Return what comes of several values together: what is agreed wins, then what is unknown."""
    kinds = {each.kind for each in values}
    for kind in ("reduced", "result", "not averageable"):
        if kind in kinds:
            return next(each for each in values if each.kind == kind)
    if kinds <= {"loss", "constant"}:
        return next((each for each in values if each.kind == "loss"), UNKNOWN)
    if kinds & {"share", "loss"} and "metric" not in kinds:
        return _SHARE if len(values) > 1 else values[0]
    return values[0] if len(kinds) == 1 else UNKNOWN


def is_about_world(source: Source, test: cst.BaseExpression) -> bool:
    """Return whether a test asks for the number of ranks."""
    inside = [test, *source.below(test, cst.Name), *source.below(test, cst.Attribute)]
    return any(is_world(last(each)) for each in inside)


def names(target: cst.CSTNode) -> list[str]:
    """Return the variables that a target binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for each in target.elements for name in names(each.value)]
    if isinstance(target, cst.StarredElement):
        return names(target.value)
    return []


def constant_key(node: cst.BaseExpression) -> str | None:
    """Return the constant string in ``x["key"]``, or None."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return None
    index = node.slice[0].slice
    return string(index.value) if isinstance(index, cst.Index) else None


def unsubscripted(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``x`` of ``x[a][b]``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def key_of(node: cst.BaseExpression) -> str:
    """Return by what a variable is known: ``x``, ``self.x`` or ``x[key]``; ``""`` for others."""
    key = constant_key(node)
    if key is not None and isinstance(node, cst.Subscript):
        base = dotted(node.value)
        return f"{base}[{key}]" if base else ""
    return dotted(node)

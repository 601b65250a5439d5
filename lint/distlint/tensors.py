"""Where tensors are inside one function: made on the CPU there, or on the device of its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import libcst as cst

from distlint.apis import STEPS
from distlint.definitions import names, reaching
from distlint.source import (
    Source,
    argument,
    dotted,
    has_spread,
    keyword,
    last,
    object_of,
    parameters,
    positional,
    self_attribute,
    string,
)

FACTORIES = frozenset({
    "zeros", "ones", "rand", "randn", "empty", "full", "arange", "linspace", "logspace", "eye",
    "randint", "randperm", "tensor", "from_numpy", "tril_indices", "triu_indices", "hann_window",
    "hamming_window",
})  # fmt: skip
# Methods and functions of tensors whose result is where their input is, and no tensor of rank 0.
_SHAPES = (
    r"view|reshape|float|double|half|long|int|bool|bfloat16|unsqueeze_?|expand(_as)?|repeat"
    r"|repeat_interleave|transpose|permute|t|flatten|contiguous|clone|detach|abs|exp|log|sqrt|pow"
    r"|sin|cos|tanh|sigmoid|softmax|clamp|neg|cumsum|flip|roll|tril|triu|add|sub|mul|div|cat|stack"
    r"|concat|outer|square|round|floor|requires_grad_|one_hot|normalize|relu"
)
_RESHAPED = re.compile(_SHAPES)
# With those besides that leave a tensor on the device of another one there, of whatever rank.
_STAYS = re.compile(
    rf"{_SHAPES}|sum|mean|a?max|a?min|arg(max|min)|std|var|norm|squeeze|matmul|b?mm|dot|einsum"
    r"|log_softmax|gelu|layer_norm|interpolate|pad|where|gather|index_select|masked_fill|any|all"
    r"|(zeros|ones|rand|randn|full|empty)_like|new_(zeros|ones|tensor|full|empty)|chunk|split|unbind"
    r"|topk|sort|cross_entropy|mse_loss|(smooth_)?l1_loss|binary_cross_entropy(_with_logits)?"
    r"|nll_loss|kl_div|cosine_similarity|scaled_dot_product_attention|linear|embedding"
)
# Attributes and methods that tell that a parameter is a tensor.
_EVIDENCE = re.compile(
    r"shape|size|n?dim|view|reshape|permute|transpose|unsqueeze|device|flatten|float"
)
# Modules of torch.nn with parameters, which are where their inputs must be.
_PARAMETRIC = ("Embedding", "Linear", "Conv", "LayerNorm", "BatchNorm", "GroupNorm", "LSTM", "GRU",
    "Transformer", "MultiheadAttention", "Bilinear")  # fmt: skip


class Place(NamedTuple):
    """Where a tensor is.

    Attributes:
        origin: the call that made it on the CPU; None for a tensor of the device.
        partner: the expression of a tensor of the device.
    """

    origin: cst.Call | None
    partner: cst.BaseExpression | None = None


class Meeting(NamedTuple):
    """An operation of a tensor made on the CPU with one of the device."""

    node: cst.CSTNode
    origin: cst.Call
    partner: cst.BaseExpression | None


class Places:
    """Answers where the tensors of one ``forward`` or step are.

    Args:
        source: the file.
        function: the ``forward`` or step.
        kept: attributes that hold tensors made on the CPU, by their names, with what made them.
    """

    def __init__(
        self,
        source: Source,
        function: cst.FunctionDef,
        kept: Mapping[str, cst.Call] | None = None,
    ) -> None:
        self._source = source
        self._function = function
        self._kept = kept or {}
        self._known: dict[cst.CSTNode, Place | None] = {}
        self._inputs = frozenset(_inputs(source, function))
        self._is_step = function.name.value in STEPS
        owner = source.class_of(function)
        self._attributes = owner.attributes if owner is not None else {}

    def meetings(self) -> Iterator[Meeting]:
        """Yield the operations that fail on a device."""
        for each in self._meetings():
            if not any(_chooses(self._source, node) for node in (each.node, each.origin)):
                yield each

    def _meetings(self) -> Iterator[Meeting]:
        source = self._source
        for operation in source.below(self._function, cst.BinaryOperation):
            yield from self._met(operation, [operation.left, operation.right])
        for test in source.below(self._function, cst.Comparison):
            if isinstance(test.comparisons[0].operator, cst.In | cst.NotIn | cst.Is | cst.IsNot):
                continue
            yield from self._met(test, [test.left, test.comparisons[0].comparator])
        for added in source.below(self._function, cst.AugAssign):
            yield from self._met(added, [added.target, added.value])
        for call in source.below(self._function, cst.Call):
            if is_operation(source, call):
                yield from self._met(call, list(_tensors(call)))
            elif self._is_parametric(call.func):
                for place in map(self.of, positional(call)):
                    if place is not None and place.origin is not None:
                        yield Meeting(call, place.origin, None)

    def _met(self, node: cst.CSTNode, operands: list[cst.BaseExpression]) -> Iterator[Meeting]:
        found = [place for place in map(self.of, operands) if place is not None]
        partner = next((each.partner for each in found if each.origin is None), None)
        for place in found if partner is not None else ():
            if place.origin is not None:
                yield Meeting(node, place.origin, partner)

    def of(self, node: cst.BaseExpression | None) -> Place | None:
        """Return where the tensor of an expression is; None where that is not known."""
        if node is None:
            return None
        if node not in self._known:
            self._known[node] = None  # an expression that depends on itself
            self._known[node] = self._of(node)
        return self._known[node]

    def _of(self, node: cst.BaseExpression) -> Place | None:
        match node:
            case cst.Name():
                return self._name(node)
            case cst.Attribute():
                return self._attribute(node)
            case cst.Subscript():
                return self._subscript(node)
            case cst.Call():
                return self._call(node)
            case cst.UnaryOperation() if not isinstance(node.operator, cst.Not):
                return self.of(node.expression)
            case cst.BinaryOperation():
                return _joined(node, [self.of(node.left), self.of(node.right)])
            case cst.IfExp():
                ways = [self.of(node.body), self.of(node.orelse)]
                return _joined(node, ways) if None not in ways else None
            case cst.NamedExpr():
                return self.of(node.value)
        return None

    def _name(self, node: cst.Name) -> Place | None:
        source = self._source
        if source.function(node) is not self._function or self._is_bound_inside(node):
            return None
        found = reaching(source, node)
        if any(each.how in ("element of", "reduced") for each in found.listed):
            return None
        ways = list(map(self.of, found.plain))
        if not found.is_complete:
            if node.value not in self._inputs:
                return None
            ways.append(Place(None, node))
        if not ways or None in ways:
            return None
        is_fresh = {each is not None and each.origin is not None for each in ways}
        if len(is_fresh) > 1:
            return None
        return ways[-1] if True in is_fresh else Place(None, node)

    def _is_bound_inside(self, node: cst.Name) -> bool:
        """Return whether a name is the variable of a comprehension or a lambda around it."""
        for each in self._source.ancestors(node):
            if each is self._function:
                return False
            if isinstance(each, cst.Lambda) and node.value in parameters(each):
                return True
            loop = each.for_in if isinstance(each, cst.BaseComp) else None
            while loop is not None:
                if node.value in names(loop.target):
                    return True
                loop = loop.inner_for_in
        return False

    def _attribute(self, node: cst.Attribute) -> Place | None:
        name = self_attribute(node)
        if name:
            if name in self._kept:
                return Place(self._kept[name])
            made = self._attributes.get(name, [])
            is_parameter = len(made) == 1 and self._makes(made[0]) == "torch.nn.Parameter"
            return Place(None, node) if is_parameter else None
        base = self.of(node.value)
        if node.attr.value in ("T", "mT", "data"):
            return base
        is_part = self._is_step and node.attr.value not in ("shape", "device", "dtype", "ndim")
        return Place(None, node) if is_part and base is not None and base.origin is None else None

    def _subscript(self, node: cst.Subscript) -> Place | None:
        base = self.of(node.value)
        if base is None:
            return None
        if base.origin is None:
            return Place(None, node)
        return base if all(_keeps(each.slice) for each in node.slice) else None

    def _call(self, node: cst.Call) -> Place | None:
        source, name, method = self._source, self._source.name(node.func), last(node.func)
        if is_fresh(source, node):
            return Place(node)
        if has_spread(node) or keyword(node, "device", "dtype_and_device") is not None:
            return None
        if name.startswith("torch."):
            if not is_operation(source, node) or not _STAYS.fullmatch(method):
                return None
            return _result(node, [self.of(each) for each in _tensors(node)], method)
        owner = object_of(node)
        base = self.of(owner) if dotted(owner) != "self" else None
        if base is not None and _STAYS.fullmatch(method):
            return _result(node, [base], method)
        inputs = [self.of(each.value) for each in node.args]
        if self._is_module(node.func) and any(each and each.origin is None for each in inputs):
            return Place(None, node)
        return None

    def _is_module(self, called: cst.BaseExpression) -> bool:
        """Return whether a call runs the module itself, or one that it keeps."""
        name = self_attribute(called)
        if dotted(called) == "self" or name == "forward":
            return True
        return bool(name) and any(self._makes(each) for each in self._attributes.get(name, []))

    def _is_parametric(self, called: cst.BaseExpression) -> bool:
        made = self._attributes.get(self_attribute(called), [])
        name = self._makes(made[0]) if len(made) == 1 else ""
        return name.startswith("torch.nn.") and name[9:].startswith(_PARAMETRIC)

    def _makes(self, value: cst.BaseExpression) -> str:
        return self._source.name(value.func) if isinstance(value, cst.Call) else ""


def is_fresh(source: Source, call: cst.Call) -> bool:
    """Return whether a call makes a tensor of at least one dimension on the CPU."""
    name = source.name(call.func)
    kind = name.removeprefix("torch.")
    if kind == name or kind not in FACTORIES or has_spread(call):
        return False
    if keyword(call, "device", "out", "dtype_and_device") is not None:
        return False
    return has_dimensions(call, kind)


def has_dimensions(call: cst.Call, kind: str) -> bool:
    """Return whether a factory of this name makes a tensor of at least one dimension."""
    given = positional(call)
    if kind in ("zeros", "ones", "rand", "randn", "empty", "full"):
        size = given[0] if given else keyword(call, "size")
        is_scalar = isinstance(size, cst.Tuple | cst.List) and not size.elements
        return size is not None and not is_scalar
    if kind == "tensor":
        return bool(given) and isinstance(given[0], cst.List | cst.ListComp)
    return bool(given)


def is_operation(source: Source, call: cst.Call) -> bool:
    """Return whether a call is a function of torch whose tensors must be on one device."""
    name = source.name(call.func)
    package, _, function = name.rpartition(".")
    is_torch = package in ("torch", "torch.nn.functional")
    return is_torch and not function.endswith("_like") and _STAYS.fullmatch(function) is not None


def _chooses(source: Source, node: cst.CSTNode) -> bool:
    """Return whether a ``with`` around a node chooses the device of new tensors."""
    return any("device" in source.code(each) for each in source.contexts(node))


def _tensors(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the arguments of a function of torch, those in a list one by one."""
    for each in call.args:
        if isinstance(each.value, cst.List | cst.Tuple):
            yield from (part.value for part in each.value.elements)
        else:
            yield each.value


def _joined(node: cst.BaseExpression, given: list[Place | None]) -> Place | None:
    """Return where the result of an operation is: what is not known is a number, or beside it."""
    known = [each for each in given if each is not None]
    if any(each.origin is None for each in known):
        return Place(None, node)
    return known[0] if known else None


def _result(node: cst.Call, given: list[Place | None], method: str) -> Place | None:
    found = _joined(node, given)
    is_of_device = found is not None and found.origin is None
    return found if is_of_device or _RESHAPED.fullmatch(method) else None


def _keeps(part: cst.BaseSlice) -> bool:
    """Return whether a part of a subscript keeps a dimension or makes one: ``:``, ``None``."""
    if isinstance(part, cst.Index):
        return dotted(part.value) == "None" or isinstance(part.value, cst.Ellipsis)
    return True


def _inputs(source: Source, function: cst.FunctionDef) -> Iterator[str]:
    """Yield the parameters that are tensors of the device, or batches of them."""
    listed = parameters(function)[1:]
    if function.name.value in STEPS:
        yield from listed[:1]
        return
    used = {
        dotted(each.value)
        for each in source.below(function, cst.Attribute)
        if _EVIDENCE.fullmatch(each.attr.value)
    }
    for each in source.below(function, cst.Call):  # a module of its own is given it
        if self_attribute(each.func) and len(each.args) == 1:
            used.add(dotted(each.args[0].value))
    annotated = {
        each.name.value
        for each in function.params.params
        if each.annotation is not None and last(each.annotation.annotation) == "Tensor"
    }
    yield from (name for name in listed if name in used | annotated)


def made_in(source: Source, node: cst.BaseExpression) -> cst.Call | None:
    """Return the call that makes the tensor of an expression of constants, on the CPU; or None."""
    if isinstance(node, cst.BinaryOperation):
        return made_in(source, node.left) or made_in(source, node.right)
    if not isinstance(node, cst.Call):
        return None
    if is_fresh(source, node):
        return node
    inner = object_of(node)
    if source.name(node.func).startswith("torch."):
        inner = node.args[0].value if node.args else None
    if inner is None or not _RESHAPED.fullmatch(last(node.func)) or keyword(node, "device"):
        return None
    return made_in(source, inner)


def hard_coded(source: Source, call: cst.Call) -> str | None:
    """Return the CUDA device that a call names, ``"cuda"`` where none is given to it; or None."""
    name = source.name(call.func)
    if name.startswith(("torch.cuda.", "torch.amp.", "torch.autocast", "torch.backends.")):
        return None
    method = last(call.func) if object_of(call) is not None else ""
    if method == "cuda":
        given = argument(call, 0, "device")
        return "cuda" if given is None else _constant(source, given)
    if name == "torch.device":  # an argument is told of with its call; a comparison only asks
        is_part = isinstance(source.parent(call), cst.Arg | cst.Comparison | cst.ComparisonTarget)
        return None if is_part else _constant(source, call)
    return _constant(
        source, argument(call, 0, "device") if method == "to" else keyword(call, "device")
    )


def _constant(source: Source, node: cst.BaseExpression | None) -> str | None:
    if isinstance(node, cst.Call) and source.name(node.func) == "torch.device":
        kind, index = argument(node, 0, "type"), argument(node, 1, "index")
        found = _constant(source, kind)
        if isinstance(index, cst.Integer):
            return f"{found}:{index.value}" if found else None
        return found if index is None else None
    if isinstance(node, cst.Integer):
        return f"cuda:{node.value}"
    if isinstance(node, cst.Name):  # a constant of the module
        given = source.assigned(source.module).get(node.value, [])
        node = given[0].value if len(given) == 1 else None
    text = string(node) if isinstance(node, cst.SimpleString) else None
    return text if text is not None and text.startswith("cuda") else None

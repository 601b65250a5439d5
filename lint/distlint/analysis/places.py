"""Where tensors are: made on the CPU, on the device of a module, or unknown; and where the two meet."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from distlint.syntax import FunctionNode, SyntaxIndex, last_name

_FACTORIES = frozenset(
    {"arange", "eye", "from_numpy", "hann_window", "linspace", "logspace", "randperm", "tril_indices", "triu_indices"}
)
_SIZED = frozenset({"empty", "full", "normal", "ones", "rand", "randint", "randn", "zeros"})
FACTORIES = _FACTORIES | _SIZED | {"tensor", "as_tensor"}
_SAME_ATTRIBUTES = frozenset({"H", "T", "data", "imag", "mT", "real"})
_NO_TENSOR = frozenset({"cpu", "device", "dim", "get_device", "item", "numel", "numpy", "size", "stride", "tolist"})
_DTYPES = ("dtype", "float", "double", "half", "int", "long", "bool", "uint8", "bfloat16")
_DEVICE_NAMES = frozenset({"device", "devices"})
# Tests of where tensors are, or of whether the code is only traced: what their arms do is as they say.
_ASKS_WHERE = re.compile(r"cuda|device\.type|get_device|gpu|is_tracing|onnx", re.IGNORECASE)


class Fresh(NamedTuple):
    """A tensor of at least one dimension that was made on the CPU: by this call, or in this attribute."""

    origin: ast.AST


class OnDevice(NamedTuple):
    """A tensor that is where the module is; ``text`` is the source of the nearest one that is known to be."""

    source: ast.expr


class Meeting(NamedTuple):
    """An operation of both, which fails on an accelerator.

    Attributes:
        origin: what made the tensor on the CPU.
        node: the operation.
        partner: the tensor on the device; None where they are the parameters of a module that is called.
    """

    origin: ast.AST
    node: ast.expr | ast.AugAssign
    partner: ast.expr | None


Place = Fresh | OnDevice | None
Places = dict[str, Place]


class Follower:
    """Follows tensors through one function.

    Args:
        index: the file.
        function: the function.
        places: of ``self``'s attributes, as ``self.name``, and of parameters.
        modules: attributes that hold modules with weights.
    """

    def __init__(self, index: SyntaxIndex, function: FunctionNode, places: Places, modules: Iterable[str] = ()) -> None:
        self._index = index
        self._function = function
        self.places = dict(places)
        self._modules = frozenset(modules)
        self._has_default = 0  # blocks of ``with torch.device(...)``
        self.meetings: list[Meeting] = []
        self.stored: dict[str, list[Place]] = {}  # what attributes of ``self`` are given

    def run(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements, in order."""
        for statement in body:
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                handler(self, statement)
            else:
                for node in ast.iter_child_nodes(statement):
                    if isinstance(node, ast.expr):
                        self.place(node)
            if isinstance(statement, ast.If) and self._asks(statement) and _leaves(statement.body, statement.orelse):
                return

    def place(self, node: ast.expr | None) -> Place:
        """Return where the value of an expression is; note what meets in it."""
        if node is None:
            return None
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            return handler(self, node)
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.expr):
                self.place(below)
        return None

    def meet(self, node: ast.expr | ast.AugAssign, operands: Iterable[ast.expr]) -> Place:
        """Return where the result of an operation is."""
        known = [each for each in (self.place(operand) for operand in operands) if each is not None]
        fresh = [each for each in known if isinstance(each, Fresh)]
        there = next((each for each in known if isinstance(each, OnDevice)), None)
        if there is not None:
            self.meetings += [Meeting(each.origin, node, there.source) for each in fresh]
            return there
        return fresh[0] if fresh else None

    def bind(self, target: ast.expr, place: Place, value: ast.expr | None = None) -> None:
        """Give a name or an attribute of ``self`` a place."""
        if isinstance(target, ast.Tuple | ast.List):
            pairs = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else ()
            for number, each in enumerate(target.elts):
                inner = self.place(pairs[number]) if pairs else place if isinstance(place, OnDevice) else None
                self.bind(each, _seen_at(each, inner))
            return
        name = self._index.text_of(target)
        if isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and name.startswith("self.")):
            self.places[name] = _seen_at(target, place)
            self.stored.setdefault(name, []).append(place)

    def apart(self, *bodies: list[ast.stmt]) -> None:
        """Follow ways of which one is taken; what is not the same on all of them is not known afterwards."""
        before, ends = dict(self.places), []
        for body in bodies:
            self.places = dict(before)
            self.run(body)
            if not _leaves(body):
                ends.append(self.places)
        first, *others = ends or [before]
        self.places = {name: place for name, place in first.items() if all(_same(each, name, place) for each in others)}

    def _call(self, node: ast.Call) -> Place:
        arguments = [*node.args, *(each.value for each in node.keywords)]
        name = self._index.qualify(node.func, self._function)
        module, _, last = name.rpartition(".")
        if module in ("torch", "torch.nn.functional") and name:
            return self._of_torch(node, last, arguments)
        if not isinstance(node.func, ast.Attribute):
            return self._unknown(arguments)
        method, receiver = node.func.attr, node.func.value
        text = self._index.text_of(node.func)
        if text.removeprefix("self.") in self._modules and text.startswith("self."):
            return self._of_module(node, arguments)
        if isinstance(receiver, ast.Name) and receiver.id == "self":
            return self._unknown(arguments)
        return self._of_method(node, method, receiver, arguments)

    def _of_torch(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> Place:
        given = {each.arg for each in node.keywords}
        if name in FACTORIES:
            is_elsewhere = not given.isdisjoint({"device", "out", None}) or self._has_default
            for each in arguments:
                self.place(each)
            beside = next((each.value for each in node.keywords if each.arg == "device"), None)
            if isinstance(beside, ast.Attribute) and beside.attr == "device":
                return _seen_at(node, self.place(beside.value))
            is_fresh = not is_elsewhere and node.args and (name in _FACTORIES or _has_dimensions(name, node.args))
            return Fresh(node) if is_fresh else None
        if not given.isdisjoint({"device"}):
            return None
        if name.endswith("_like"):
            return self.place(arguments[0]) if arguments else None
        return self.meet(node, _spread(arguments))

    def _of_module(self, node: ast.Call, arguments: list[ast.expr]) -> Place:
        for each in arguments:
            place = self.place(each)
            if isinstance(place, Fresh):
                self.meetings.append(Meeting(place.origin, node, None))
        return OnDevice(node)

    def _of_method(self, node: ast.Call, name: str, receiver: ast.expr, arguments: list[ast.expr]) -> Place:
        mine = self.place(receiver)
        if name in _NO_TENSOR or mine is None:
            self._unknown(arguments)
            return None
        if name in ("to", "cuda", "type_as", "type"):
            is_dtype = name == "to" and not node.keywords and arguments and self._is_dtype(arguments[0])
            return mine if is_dtype else OnDevice(node)
        if name.startswith("new_"):
            return mine
        return self.meet(node, [receiver, *_spread(arguments)])

    def _is_dtype(self, node: ast.expr) -> bool:
        return self._index.text_of(node).endswith(_DTYPES)

    def _unknown(self, arguments: Iterable[ast.expr]) -> Place:
        """A call of which nothing is known; of tensors of the device it makes such."""
        places = [self.place(each) for each in arguments]
        return next((each for each in places if isinstance(each, OnDevice)), None) if places else None

    def _attribute(self, node: ast.Attribute) -> Place:
        text = self._index.text_of(node)
        if text in self.places:
            return _seen_at(node, self.places[text])
        inner = self.place(node.value)
        return inner if node.attr in _SAME_ATTRIBUTES else None

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        place = self.place(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.bind(target, place, node.value)

    def _augment(self, node: ast.AugAssign) -> None:
        self.bind(node.target, self.meet(node, [node.target, node.value]))

    def _loop(self, node: ast.For | ast.While) -> None:
        if isinstance(node, ast.For):
            self.bind(node.target, self.place(node.iter))
        else:
            self.place(node.test)
        self.apart(node.body, [])
        self.run(node.orelse)

    def _if(self, node: ast.If) -> None:
        self.place(node.test)
        known = len(self.meetings)
        self.apart(node.body, node.orelse)
        if self._asks(node):
            del self.meetings[known:]

    def _asks(self, node: ast.If | ast.IfExp) -> bool:
        return _ASKS_WHERE.search(self._index.text_of(node.test)) is not None

    def _with(self, node: ast.With) -> None:
        calls = (item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call))
        has_device = any(last_name(call.func) in _DEVICE_NAMES for call in calls)
        self._has_default += has_device
        self.run(node.body)
        self._has_default -= has_device

    def _try(self, node: ast.Try) -> None:
        self.run(node.body)
        self.apart([], *(handler.body for handler in node.handlers))
        self.run([*node.orelse, *node.finalbody])

    def _choice(self, node: ast.IfExp) -> Place:
        self.place(node.test)
        known = len(self.meetings)
        first, second = self.place(node.body), self.place(node.orelse)
        if self._asks(node):
            del self.meetings[known:]
        return first if type(first) is type(second) else None


_EXPRESSIONS: dict[type, Callable[[Follower, Any], Place]] = {
    ast.Attribute: Follower._attribute,
    ast.BinOp: lambda at, node: at.meet(node, [node.left, node.right]),
    ast.Call: Follower._call,
    ast.Compare: lambda at, node: at.meet(node, [node.left, *node.comparators]),
    ast.IfExp: Follower._choice,
    ast.Name: lambda at, node: _seen_at(node, at.places.get(node.id)),
    ast.Starred: lambda at, node: at.place(node.value),
    ast.Subscript: lambda at, node: at.place(node.value),
    ast.UnaryOp: lambda at, node: at.place(node.operand),
}
_STATEMENTS: dict[type, Callable[[Follower, Any], None]] = {
    ast.AnnAssign: Follower._assign,
    ast.Assign: Follower._assign,
    ast.AugAssign: Follower._augment,
    ast.For: Follower._loop,
    ast.If: Follower._if,
    ast.Try: Follower._try,
    ast.While: Follower._loop,
    ast.With: Follower._with,
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), lambda at, node: None),
}


def _same(places: Places, name: str, place: Place) -> bool:
    return type(places.get(name)) is type(place)


def _seen_at(node: ast.expr, place: Place) -> Place:
    return OnDevice(node) if isinstance(place, OnDevice) else place


def _leaves(*bodies: list[ast.stmt]) -> bool:
    return any(isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break) for body in bodies if body)


def _spread(arguments: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Arguments, with the elements of lists and tuples: ``torch.cat([a, b])``."""
    for each in arguments:
        if isinstance(each, ast.List | ast.Tuple):
            yield from each.elts
        else:
            yield each


def _has_dimensions(name: str, arguments: list[ast.expr]) -> bool:
    """True if what a factory makes has at least one dimension, by what it is given."""
    first = arguments[0]
    sizes = first.elts if isinstance(first, ast.List | ast.Tuple) else arguments
    if name in _SIZED and any(isinstance(each, ast.Constant) and each.value == 0 for each in sizes):
        return False  # it holds nothing
    if isinstance(first, ast.List | ast.Tuple):
        return bool(first.elts)
    return name in _SIZED and name not in ("full", "normal", "randint")

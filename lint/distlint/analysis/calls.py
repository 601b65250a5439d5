"""Values of calls, and the events that they are."""

from __future__ import annotations

import ast
import sys

from distlint.analysis.events import Branch, Event, Handled, Inlined, Loop, Node, Step, Summary, bodies
from distlint.analysis.expressions import Expressions
from distlint.analysis.formula import DATA, Formula, substitute
from distlint.analysis.results import BUILTINS, METHODS_OF_TENSORS, result_of
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Value, combine, join
from distlint.api import (
    Effect,
    attribute_effect,
    brings_together,
    environment_kind,
    family_of,
    function_effect,
    method_effect,
    name_effect,
)
from distlint.syntax import ClassNode, FunctionNode

_FORWARD = Effect("forward", "forward")
_KEEPS_STORAGE = frozenset({"detach", "view", "squeeze", "unsqueeze", "flatten", "narrow", "reshape", "contiguous"})
_FRESH = frozenset({"clone", "item", "new_tensor", "tensor", "stack", "cat", "mean", "sum", "zeros", "ones", "full"})
_ADDS = frozenset({"append", "extend", "add", "update", "insert", "setdefault", "appendleft"})
_SEEN = frozenset({*sys.stdlib_module_names, "numpy", "torch"})  # their calls are known, or no collectives
_LARGEST = 400  # nodes of a body that is inlined: enough to compare, and recursion comes to an end


class Calls(Expressions):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Value:
        """Return the result of a call, and note what it does."""
        receiver, callee = self._callee(node.func)
        args = tuple(self.value(part) for part in node.args)
        options = {each.arg or "**": self.value(each.value) for each in node.keywords}
        name = callee.name
        effect = function_effect(name) if name else None
        if effect is None and isinstance(node.func, ast.Attribute):
            effect = method_effect(receiver.family, node.func.attr) if receiver.instance or not name else None
        if effect is not None and not isinstance(callee.target, FunctionNode):
            return self._known(effect, node, receiver, args, options)
        if callee.target is not None:
            return self._own(callee, node, receiver, args, options)
        if name:
            return self._imported_call(name, node, args, options)
        effect = _by_convention(node.func)
        if effect is not None:
            return self.ranked(effect.kind, node)
        return self._unknown(node, receiver, callee, args, options)

    def _callee(self, func: ast.expr) -> tuple[Value, Value]:
        if isinstance(func, ast.Attribute):
            receiver = self._super() if _is_super(func.value) else self.value(func.value)
            return receiver, self.attribute(receiver, func)
        return UNKNOWN_VALUE, self.value(func)

    def _super(self) -> Value:
        owner = self.function.owner
        if owner is None:
            return UNKNOWN_VALUE
        above = list(self.index.lineage(owner))[1:]
        return Value(0, family=self.facts.family(owner), target=above[0] if above else None, instance=True)

    def _known(
        self, effect: Effect, node: ast.Call, receiver: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        event = self.emit(effect, node, receiver=receiver, args=args, options=options)
        event.result = result_of(self, event)
        if effect.kind == "collective" or (effect.kind == "log" and _is_on(options.get("sync_dist"))):
            self._collective(event)
        elif effect.kind in ("backward", "exit"):
            self.block.append(Step(effect.label, self.place(node), event, effect))
        return event.result

    def _collective(self, event: Event) -> None:
        self.block.append(Step(event.label, self.place(event.node), event, event.effect))
        for position in event.effect.changes:
            node = event.argument_node(position, ("tensor", "object_list", "tensor_list", "input")[0])
            value = event.argument(position, "tensor")
            if node is None or value is None:
                continue
            root, is_fresh = _root(node)
            event.is_lost = is_fresh
            if root is not None:
                self.bind(root, event.result._replace(scale=value.scale, grad=value.grad, family=value.family))

    def _own(
        self, callee: Value, node: ast.Call, receiver: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        """A call of a function or class of this file."""
        target = callee.target
        if isinstance(target, ClassNode) and not callee.instance:
            return self._construct(target, node, args, options)
        if isinstance(target, ClassNode):
            return self._call_instance(callee, node, args, options)
        if target.is_method and not target.is_static:
            is_unbound = isinstance(receiver.target, ClassNode) and not receiver.instance
            args = args if is_unbound else (receiver, *args)
        given = self._give(target, args, options)
        effect = Effect("call", target.name)
        event = self.emit(effect, node, receiver=receiver, args=args, options=options)
        formulas = {name: value.formula for name, value in given.items() if value.formula is not None}
        self._inline(self.facts.body(target, self.function), formulas, target.name, event)
        returned = self.facts.read(("return", target, ""), self.function)
        if returned is not None and returned.formula is not None:
            formula = substitute(returned.formula, formulas, target.name)
            returned = returned._replace(formula=formula)
        event.result = returned if returned is not None else UNKNOWN_VALUE
        named = name_effect(target.name)
        if named is not None and returned is not None and returned._replace(sources=frozenset()) == UNKNOWN_VALUE:
            event.result = self.ranked(named.kind, node)  # what it does cannot be seen
        return event.result

    def _construct(
        self, target: ClassNode, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        family = self.facts.family(target)
        result = Value(0, family=family, target=target, instance=True)
        for each in self.index.lineage(target):
            if "__init__" in each.methods:
                init = each.methods["__init__"]
                self._give(init, (result, *args), options)
                event = self.emit(Effect("call", target.name), node, args=args, options=options, result=result)
                self._inline(self.facts.body(init, self.function), {}, "__init__", event)
                break
        return result

    def _call_instance(
        self, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        if callee.wrapped or callee.family in ("module", "lightning_module", "metric"):
            return self._forward(callee, node, args, options)
        return combine([*args, *options.values()])

    def _forward(self, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
        result = combine([*args, *options.values()])._replace(grad=callee.family != "metric")
        event = self.emit(_FORWARD, node, receiver=callee, args=args, options=options, result=result)
        if callee.wrapped:
            self.block.append(Step("forward", self.place(node), event, _FORWARD))
        return result

    def _give(self, target: FunctionNode, args: tuple[Value, ...], options: dict[str, Value]) -> dict[str, Value]:
        """Tell a function what it is called with; the values by parameter."""
        names = [parameter.arg for parameter in target.parameters]
        given = dict(zip(names, args, strict=False))
        given.update((name, value) for name, value in options.items() if name in names)
        for name, value in given.items():
            self.facts.tell(("parameter", target, name), value._replace(formula=None))
        return given

    def _inline(self, body: tuple[Node, ...], formulas: dict[str, Formula], owner: str, event: Event) -> None:
        if body and size(body) < _LARGEST:
            self.block.append(Inlined(tuple(_given(body, formulas, owner)), self.place(event.node), event))

    def _imported_call(self, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
        """A call of something that is imported, and that no table knows."""
        if name in ("os.getenv", "os.environ.get") and args and isinstance(args[0].constant, str):
            kind = environment_kind(args[0].constant)
            return self.ranked(kind, node) if kind else UNKNOWN_VALUE
        summary = self.facts.find(name)
        if summary is not None:
            return self._of_other_file(summary, node, args, options)
        family = family_of(name)
        if family:
            return self._instance(family, name, node, args, options)
        effect = name_effect(name.rpartition(".")[2])
        if effect is not None:
            return self.ranked(effect.kind, node)
        if name.startswith(("torch.", "numpy.", "math.")):
            function = METHODS_OF_TENSORS.get(name.rpartition(".")[2])
            if function is not None and args:
                return function(args[0], combine([*args, *options.values()]), options)
            is_loss = name.startswith("torch.nn.functional.") and name.endswith(("loss", "entropy"))
            whole = combine([*args, *options.values()])
            reduction = options.get("reduction", UNKNOWN_VALUE).constant or "mean"
            return whole._replace(scale=reduction if is_loss else "")
        self._opaque(name, node, args, options)
        if brings_together(name):
            return UNKNOWN_VALUE
        return combine([*args, *options.values()])

    def _opaque(self, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> None:
        """Note a call into code that cannot be seen: it may make collectives."""
        if name.partition(".")[0] not in _SEEN:
            self.emit(Effect("opaque", name.rpartition(".")[2]), node, args=args, options=options)

    def _instance(
        self, family: str, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        result = Value(0, family=family, instance=True, name=name)
        self.emit(Effect("make", name, returns=family), node, args=args, options=options, result=result)
        return result

    def _of_other_file(
        self, summary: Summary, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        given = {**dict(zip(summary.parameters, args, strict=False)), **options}
        formulas = {name: value.formula for name, value in given.items() if value.formula is not None}
        event = self.emit(Effect("call", summary.name.rpartition(".")[2]), node, args=args, options=options)
        self._inline(summary.body, formulas, summary.name.rpartition(".")[2], event)
        event.result = summary.returns
        return event.result

    def _unknown(
        self, node: ast.Call, receiver: Value, callee: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        whole = combine([*args, *options.values()])
        if isinstance(node.func, ast.Name):
            builtin = BUILTINS.get(node.func.id) if node.func.id not in self.names else None
            if builtin is not None:
                return builtin(self, node, args, whole)
            self._opaque(node.func.id, node, args, options)
            if brings_together(node.func.id):
                return UNKNOWN_VALUE
            if callee.wrapped or callee.family in ("module", "lightning_module", "metric"):
                return self._forward(callee, node, args, options)
            return self._of_unknown_callable(node.func.id, whole)
        if callee.wrapped or callee.family in ("module", "metric", "loss"):
            return self._forward(callee, node, args, options)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, receiver, args, options, combine([receiver, whole]))
        return whole

    def _of_unknown_callable(self, name: str, whole: Value) -> Value:
        is_loss = "loss" in name.lower() or name == "criterion"
        return whole._replace(grad=whole.varies == DATA, scale="mean?" if is_loss and whole.varies == DATA else "")

    def _method(
        self,
        node: ast.Call,
        func: ast.Attribute,
        receiver: Value,
        args: tuple[Value, ...],
        options: dict[str, Value],
        whole: Value,
    ) -> Value:
        """A method of something that no table knows: of a tensor, a list, or anything else."""
        name = func.attr
        if name in _ADDS and (args or options):
            self._add(func.value, receiver, args[-1] if args else combine([*options.values()]))
            return NONE_VALUE
        if name == "backward":
            event = self.emit(Effect("backward", "backward"), node, receiver=receiver, args=args, options=options)
            self.block.append(Step("backward", self.place(node), event, event.effect))
            return NONE_VALUE
        if name == "item":
            self.emit(Effect("item", "item"), node, receiver=receiver)
        function = METHODS_OF_TENSORS.get(name)
        if function is not None:
            return function(receiver, whole, options)
        if isinstance(receiver.target, ClassNode):
            self._opaque(name, node, args, options)
        if brings_together(name):
            return UNKNOWN_VALUE
        is_model = whole.varies == DATA and receiver.varies < DATA
        return self._of_unknown_callable(name, whole) if is_model else whole._replace(scale="")

    def _add(self, node: ast.expr, known: Value, value: Value) -> None:
        """What is added to a list is in it from now on."""
        root, _ = _root(node)
        if root is not None and known.target is None and not known.name:
            joined = join(known, value._replace(scale="", elements=(), constant=None, formula=None))
            length = known.length or any(guard.test.is_local for guard in self.guards if guard.kind == "branch")
            self.bind(root, joined._replace(family=known.family, length=length))


def _by_convention(func: ast.expr) -> Effect | None:
    """What a function that cannot be seen tells of the rank by its name: ``trainer.is_world_process_zero()``."""
    if isinstance(func, ast.Attribute):
        return attribute_effect(func.attr)
    return name_effect(func.id) if isinstance(func, ast.Name) else None


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_on(value: Value | None) -> bool:
    return value is not None and value.constant is not False and value.family != "none"


def _root(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """What is changed where an expression is changed in place, and whether nobody else can see that."""
    while True:
        if isinstance(node, ast.Name):
            return node, False
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.attr not in ("data", "grad"):
                return node, False
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS_STORAGE:
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return None, node.func.attr in _FRESH
        else:
            return None, isinstance(node, ast.BinOp)


def size(body: tuple[Node, ...]) -> int:
    """Return how many nodes a body has at any depth, as far as it matters whether that is too many."""
    total, stack = 0, [body]
    while stack and total <= _LARGEST:
        for node in stack.pop():
            total += 1
            stack += [part for part in bodies(node) if part]
    return total


def _given(body: tuple[Node, ...], formulas: dict[str, Formula], owner: str) -> list[Node]:
    """A body with what a call gives for the parameters; events are those of the function itself."""
    if not formulas:
        return list(body)
    result: list[Node] = []
    for node in body:
        if isinstance(node, Branch):
            test = substitute(node.test, formulas, owner)
            then, other = (tuple(_given(part, formulas, owner)) for part in (node.then, node.other))
            node = Branch(test, then, other, node.place, node.node)
        elif isinstance(node, Loop | Inlined):
            node = node._replace(body=tuple(_given(node.body, formulas, owner)))
        elif isinstance(node, Handled):
            handlers = tuple(tuple(_given(part, formulas, owner)) for part in node.handlers)
            node = Handled(tuple(_given(node.body, formulas, owner)), handlers)
        result.append(node)
    return result

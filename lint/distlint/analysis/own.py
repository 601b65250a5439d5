"""Calls of functions and classes of this file, or of another one that was read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis.events import Branch, Event, Handled, Inlined, Loop, Node, Step, Summary, bodies
from distlint.analysis.formula import DATA, UNKNOWN, Constant, Formula, substitute
from distlint.analysis.metrics import constants_of, loss_scale, named_measure, of_metric
from distlint.analysis.names import ranked
from distlint.analysis.state import State
from distlint.analysis.value import HAS_GRADIENT, UNKNOWN_VALUE, Value, combine
from distlint.api import Effect, name_effect
from distlint.syntax import ClassNode, FunctionNode

_FORWARD = Effect("forward", "forward")
CALLED = frozenset({"lightning_module", "metric", "module"})  # calling these is their forward pass
_LARGEST = 400  # nodes of a body that is inlined: enough to compare, and recursion comes to an end


def call_own(
    state: State, callee: Value, node: ast.Call, receiver: Value, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    """A call of a function or class of this file."""
    target = callee.target
    if isinstance(target, ClassNode) and not callee.instance:
        return _construct(state, target, node, args, options)
    if isinstance(target, ClassNode):
        return _call_instance(state, callee, node, args, options)
    if target.is_method and not target.is_static:
        is_unbound = isinstance(receiver.target, ClassNode) and not receiver.instance
        args = args if is_unbound else (receiver, *args)
    given = _give(state, target, args, options)
    effect = Effect("call", target.name)
    event = state.emit(effect, node, receiver=receiver, args=args, options=options, target=target)
    formulas = {name: formula for name, formula in defaults(target).items() if name not in given}
    formulas.update((name, value.formula) for name, value in given.items() if value.formula is not None)
    _inline(state, state.facts.body(target, state.function), formulas, target.name, event)
    returned = state.facts.read(("return", target, ""), state.function)
    if returned is not None and returned.formula is not None:
        formula = substitute(returned.formula, formulas, target.name)
        returned = returned._replace(formula=formula)
    result = _for_this_call(state, returned, target, given) if returned is not None else UNKNOWN_VALUE
    event.result = named_measure(state, target, node, given, result)
    named = name_effect(target.name)
    if named is not None and returned is not None and returned._replace(sources=frozenset()) == UNKNOWN_VALUE:
        event.result = ranked(state, named.kind, node)  # what it does cannot be seen
    return event.result


def _for_this_call(state: State, returned: Value, target: FunctionNode, given: dict[str, Value]) -> Value:
    """What a function returns, where other calls alone give it what ranks disagree about."""
    if returned.elements:
        parts = tuple(_for_this_call(state, part, target, given) for part in returned.elements)
        returned = returned._replace(elements=parts)
    if returned.reason is None or returned.reason.control:
        return returned
    known = {name: state.facts.values.get(("parameter", target, name)) for name in given}
    blamed = [name for name, value in known.items() if value is not None and value.reason == returned.reason]
    if not blamed or any(given[name].varies >= returned.varies for name in blamed):
        return returned
    here = combine([given[name] for name in blamed])
    return returned._replace(varies=max(here.varies, UNKNOWN), reason=here.reason)


def _construct(
    state: State, target: ClassNode, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    family = state.facts.family(target)
    result = Value(0, family=family, target=target, instance=True)
    for each in state.index.lineage(target):
        if "__init__" in each.methods:
            init = each.methods["__init__"]
            _give(state, init, (result, *args), options)
            effect = Effect("call", target.name)
            event = state.emit(effect, node, args=args, options=options, result=result, target=init)
            _inline(state, state.facts.body(init, state.function), {}, "__init__", event)
            break
    return result


def _call_instance(
    state: State, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    if callee.wrapped or callee.family in CALLED:
        return forward(state, callee, node, args, options)
    return combine([*args, *options.values()])


def forward(state: State, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
    """Return the result of a forward pass."""
    has_gradient = callee.family != "metric" and not state.gradless
    result = combine([*args, *options.values()])._replace(grad=HAS_GRADIENT if has_gradient else 0, length=False)
    if callee.wrapped and result.varies == UNKNOWN:  # each rank has its own batches where a model is wrapped
        result = result._replace(varies=DATA, reason=state.reason(node))
    if callee.family == "metric":
        result = of_metric(state, callee, node, result)
    elif callee.name.startswith("torch.nn."):
        result = result._replace(scale=loss_scale(callee.name, constants_of(callee.call)))
    event = state.emit(_FORWARD, node, receiver=callee, args=args, options=options, result=result)
    if callee.wrapped:
        state.block.append(Step("forward", state.place(node), event, _FORWARD._replace(wrapped=callee.wrapped)))
    return result


def _give(state: State, target: FunctionNode, args: tuple[Value, ...], options: dict[str, Value]) -> dict[str, Value]:
    """Tell a function what it is called with; the values by parameter."""
    names = [parameter.arg for parameter in target.parameters]
    given = dict(zip(names, args, strict=False))
    given.update((name, value) for name, value in options.items() if name in names)
    for name, value in given.items():
        state.facts.tell(("parameter", target, name), value._replace(formula=None, constant=None))
    return given


def _inline(state: State, body: tuple[Node, ...], formulas: dict[str, Formula], owner: str, event: Event) -> None:
    if body and size(body) < _LARGEST:
        state.block.append(Inlined(tuple(_given(body, formulas, owner)), state.place(event.node), event))


def of_other_file(
    state: State, summary: Summary, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    """Return the result of a function of another file."""
    given = {**dict(zip(summary.parameters, args, strict=False)), **options}
    formulas = {name: formula for name, formula in summary.defaults if name not in given}
    formulas.update((name, value.formula) for name, value in given.items() if value.formula is not None)
    event = state.emit(Effect("call", summary.name.rpartition(".")[2]), node, args=args, options=options)
    _inline(state, summary.body, formulas, summary.name.rpartition(".")[2], event)
    event.result = summary.returns
    return event.result


def owners(state: State, receiver: Value) -> Iterator[str]:
    """Qualified names of the class that a value is an instance of, and of its bases."""
    if isinstance(receiver.target, ClassNode):
        for each in state.index.lineage(receiver.target):
            yield f"{state.index.name}.{each.name}"
            yield from filter(None, each.bases)


def defaults(target: FunctionNode) -> dict[str, Formula]:
    """Return what parameters are as conditions where a call leaves them out."""
    if not isinstance(target.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    arguments = target.node.args
    pairs = list(zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False))
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)  # type: ignore[arg-type]
    constants = ((each.arg, node.value) for each, node in pairs if isinstance(node, ast.Constant))
    return {name: Constant(bool(value)) for name, value in constants if value is None or isinstance(value, bool)}


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
            body, last = (tuple(_given(part, formulas, owner)) for part in (node.body, node.last))
            node = Handled(body, handlers, last, node.node)
        result.append(node)
    return result

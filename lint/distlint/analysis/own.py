"""Calls of functions and classes of this file, or of another one that was read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distlint.analysis.arguments import constants_of
from distlint.analysis.events import Branch, Event, Inlined, Node, Step, Summary, bodies, with_bodies
from distlint.analysis.formula import DATA, UNKNOWN, Constant, Formula, substitute
from distlint.analysis.given import Call
from distlint.analysis.joining import combine, through_unseen
from distlint.analysis.metrics import loss_scale, named_measure, of_metric
from distlint.analysis.names import ranked
from distlint.analysis.state import State
from distlint.analysis.value import HAS_GRADIENT, UNKNOWN_VALUE, Value
from distlint.analysis.wrapping import MAYBE
from distlint.api import Effect, name_effect
from distlint.syntax import ClassNode, FunctionNode

_FORWARD = Effect("forward", "forward")
CALLED = frozenset({"lightning_module", "metric", "module"})  # calling these is their forward pass
_LARGEST = 400  # nodes of a body that is inlined: enough to compare, and recursion comes to an end


def call_own(state: State, call: Call) -> Value:
    """A call of a function or class of this file."""
    target = call.callee.target
    if isinstance(target, ClassNode):
        return _call_instance(state, call) if call.callee.instance else _construct(state, call, target)
    is_bound = call.receiver.instance or not isinstance(call.receiver.target, ClassNode)
    if target.is_method and not target.is_static and is_bound:
        call = call._replace(args=(call.receiver, *call.args))
    given = _give(state, target, call)
    event = call.emit(state, Effect("call", target.name), target=target)
    formulas = _formulas(given, defaults(target))
    _inline(state, state.facts.body(target, state.function), formulas, target.name, event)
    returned = state.facts.read(("return", target, ""), state.function)
    result = _for_this_call(state, returned, target, given) if returned is not None else UNKNOWN_VALUE
    if result.formula is not None:
        result = result._replace(formula=substitute(result.formula, formulas, target.name))
    event.result = named_measure(state, target, call.node, given, _agreed(result, state.facts.bodies.get(target, ())))
    if returned is not None:
        event.result = _by_name(state, target.name, returned, call.node) or event.result
    return event.result


def _by_name(state: State, name: str, returned: Value, node: ast.Call) -> Value | None:
    """What the name of a function says, where what it returns cannot be seen."""
    named = name_effect(name)
    is_unseen = returned._replace(sources=frozenset()) == UNKNOWN_VALUE or returned.family == "none"  # not set yet
    return ranked(state, named, node) if named is not None and is_unseen else None


def _formulas(given: dict[str, Value], otherwise: Mapping[str, Formula]) -> dict[str, Formula]:
    """What parameters are as conditions, of those that are given and those that are left out."""
    known = {name: value.formula for name, value in given.items() if value.formula is not None}
    return {name: formula for name, formula in otherwise.items() if name not in given} | known


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


def _construct(state: State, call: Call, target: ClassNode) -> Value:
    result = Value(0, family=state.facts.family(target), target=target, instance=True)
    init = next((each.methods["__init__"] for each in state.index.lineage(target) if "__init__" in each.methods), None)
    if init is not None:
        _give(state, init, call._replace(args=(result, *call.args)))
        event = call.emit(state, Effect("call", target.name), result=result, target=init)
        _inline(state, state.facts.body(init, state.function), {}, "__init__", event)
    return result


def _call_instance(state: State, call: Call) -> Value:
    return forward(state, call) if call.callee.wrapped or call.callee.family in CALLED else call.given


def forward(state: State, call: Call) -> Value:
    """Return the result of a forward pass."""
    callee, node = call.callee, call.node
    has_gradient = callee.family != "metric" and not state.gradless
    result = call.given._replace(grad=HAS_GRADIENT if has_gradient else 0, length=False)
    is_wrapped = callee.wrapped not in ("", MAYBE)
    if is_wrapped and result.varies == UNKNOWN:  # each rank has its own batches where a model is wrapped
        result = result._replace(varies=DATA, reason=state.reason(node))
    if callee.family == "metric":
        result = of_metric(state, callee, node, result)
    elif callee.name.startswith("torch.nn."):
        result = result._replace(scale=loss_scale(callee.name, constants_of(callee.call)))
    event = call.emit(state, _FORWARD, receiver=callee, result=result)
    if callee.wrapped:
        state.block.append(Step("forward", state.place(node), event, _FORWARD._replace(wrapped=callee.wrapped)))
    return result


def _give(state: State, target: FunctionNode, call: Call) -> dict[str, Value]:
    """Tell a function what it is called with; the values by parameter."""
    names = [parameter.arg for parameter in target.parameters]
    given = dict(zip(names, call.args, strict=False))
    given.update((name, value) for name, value in call.options.items() if name in names)
    for name, value in given.items():
        state.facts.tell(("parameter", target, name), value._replace(formula=None, constant=None))
    return given


def _inline(state: State, body: tuple[Node, ...], formulas: dict[str, Formula], owner: str, event: Event) -> None:
    if body and size(body) < _LARGEST:
        state.block.append(Inlined(_given(body, formulas, owner), state.place(event.node), event))


def of_other_file(state: State, call: Call, summary: Summary) -> Value:
    """Return the result of a function of another file."""
    given = {**dict(zip(summary.parameters, call.args, strict=False)), **call.options}
    name = summary.name.rpartition(".")[2]
    result = _by_name(state, name, summary.returns, call.node) or _agreed(summary.returns, summary.body)
    event = call.emit(state, Effect("call", name), result=result)
    _inline(state, summary.body, _formulas(given, dict(summary.defaults)), name, event)
    return event.result


def _agreed(returned: Value, body: tuple[Node, ...]) -> Value:
    """What a function returns; of one that makes a collective, ranks may have agreed on it."""
    if returned.varies != DATA or not body:
        return returned
    parts = tuple(_agreed(part, body) for part in returned.elements)
    return through_unseen(returned)._replace(elements=parts)


def owners(state: State, receiver: Value) -> Iterator[str]:
    """Qualified names of the class that a value is an instance of, and of its bases."""
    if isinstance(receiver.target, ClassNode):
        for each in state.index.lineage(receiver.target):
            yield f"{state.index.name}.{each.name}"
            yield from filter(None, each.bases)
    elif receiver.instance and receiver.name:
        yield receiver.name


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


def _given(body: tuple[Node, ...], formulas: dict[str, Formula], owner: str) -> tuple[Node, ...]:
    """A body with what a call gives for the parameters; events are those of the function itself."""
    if not formulas:
        return body
    inside = (with_bodies(node, lambda part: _given(part, formulas, owner)) for node in body)
    return tuple(_with_given(node, formulas, owner) for node in inside)


def _with_given(node: Node, formulas: dict[str, Formula], owner: str) -> Node:
    if isinstance(node, Branch):
        return node._replace(test=substitute(node.test, formulas, owner))
    return node._replace(group=substitute(node.group, formulas, owner)) if isinstance(node, Step) else node

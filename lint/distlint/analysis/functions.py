"""What one function does: its parameters, its statements, its decorators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis.annotations import annotated
from distlint.analysis.events import Branch, FunctionReport, Guard, Node, matters
from distlint.analysis.expressions import EXPRESSIONS
from distlint.analysis.flow import is_gradless
from distlint.analysis.formula import DATA, LOCAL_ZERO, RANK, ZERO, Reason
from distlint.analysis.hooks import stage_of, takes_data
from distlint.analysis.state import Facts, Language, State
from distlint.analysis.statements import STATEMENTS
from distlint.analysis.targets import bind
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Value
from distlint.analysis.wrapping import MAYBE, may_be_wrapped
from distlint.api import guard_decorator
from distlint.syntax import ClassNode, FunctionNode

_LANGUAGE = Language(EXPRESSIONS, STATEMENTS, bind)
# Methods that a trainer calls with batches, by the family of the class.
_STEPS = {
    "distmetrics_module": ("training_step", "validation_step", "test_step", "shared_step", "forward"),
    "module": ("forward",),
    "hf_trainer": ("compute_loss", "training_step", "prediction_step"),
}
_NO_DATA = ("_idx", "_nb", "_index", "_id", "model")  # how parameters of steps end that are no data
_HOOKED = frozenset({"lightning_module", "callback"})
_GUARDS = {"rank==0": ZERO, "local_rank==0": LOCAL_ZERO}


def interpret(facts: Facts, function: FunctionNode) -> FunctionReport:
    """Return what a function does; others are told of it."""
    state = State(function, facts, _LANGUAGE)
    given = parameters(facts, function)
    state.names.update(given)
    guard = next(filter(None, (guard_decorator(_decorator(facts, each)) for each in function.decorators)), "")
    if guard:
        decorator = function.decorators[0]
        reason = Reason(decorator.lineno, _decorator(facts, decorator))
        state.guards = (Guard("decorator", Value(RANK, reason, _GUARDS[guard], "flag"), decorator),)
    state.gradless = any(is_gradless(state, each) for each in function.decorators)
    state.run(function.node.body)
    state.read |= _read_inside(function, state)
    body = tuple(state.block)
    if guard and body:
        place = state.place(function.decorators[0])
        body = (Branch(_GUARDS[guard], body, (), place, function.decorators[0]),)
    _tell(facts, function, state, body)
    returns = state.returns or NONE_VALUE
    report = FunctionReport(function, state.events, body, returns)
    report.read, report.shown, report.named = state.read, state.shown, state.named
    report.parameters, report.environment = given, state.names
    report.returned = list(state.returned.values())
    return report


def _decorator(facts: Facts, decorator: ast.expr) -> str:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return facts.index.text_of(decorator)


def _tell(facts: Facts, function: FunctionNode, state: State, body: tuple[Node, ...]) -> None:
    facts.tell_body(function, body if matters(body) else ())
    facts.tell(("return", function, ""), state.returns or NONE_VALUE)
    if function.name == "<module>":
        for name, value in state.names.items():
            facts.tell(("name", facts.index, name), value)
    elif function.local:
        for name, value in state.names.items():
            facts.tell(("name", function, name), value)


def parameters(facts: Facts, function: FunctionNode) -> dict[str, Value]:
    """What is known of the parameters of a function: by its callers, its class, its annotations."""
    owner = function.owner if function.is_method else None
    family = facts.family(owner) if owner is not None else ""
    is_step = function.name in _STEPS.get(family, ()) or (family in _HOOKED and takes_data(function.name))
    settings = function.with_default if is_step else frozenset()
    values: dict[str, Value] = {}
    for position, parameter in enumerate(function.parameters):
        name = parameter.arg
        is_self = name == "self" or (position == 0 and not function.is_static)
        if is_self and owner is not None:
            values[name] = Value(0, family=family, target=owner, instance=True)
            continue
        known = facts.read(("parameter", function, name), function)
        how = _wrapped_elsewhere(facts, function, position, name)
        if how and (known is None or not known.wrapped):
            known = (known or UNKNOWN_VALUE)._replace(wrapped=how)
        if family == "callback" and position in (1, 2) and function.name.startswith("on_"):
            known = Value(family=("trainer", "lightning_module")[position - 1], instance=True)
        elif is_step and name not in settings and _holds_data(facts, parameter):
            known = _batch(facts, function, parameter)
        elif known is None and may_be_wrapped(facts.index, parameter):
            known = Value(wrapped=MAYBE)
        said = annotated(facts, parameter.annotation)
        if known is not None and (known.family or known.target or known.wrapped or known.name):
            said = known
        values[name] = (known or said)._replace(
            family=said.family, target=said.target, instance=said.instance, name=said.name
        )
    return values


def _wrapped_elsewhere(facts: Facts, function: FunctionNode, position: int, name: str) -> str:
    """How the model is wrapped that other files give a parameter, or ""."""
    if function.owner is not None or function.parent is not None:
        return ""
    given = (each for each in facts.project.wrapped if each.function == f"{facts.index.name}.{function.name}")
    return next((each.how for each in given if each.which in (position, name)), "")


def _holds_data(facts: Facts, parameter: ast.arg) -> bool:
    """True unless the name or the annotation of a step's parameter says otherwise: a mesh, a group."""
    if parameter.arg.endswith(_NO_DATA):
        return False
    parts = ast.walk(parameter.annotation) if parameter.annotation is not None else ()
    names = (facts.index.qualify(each) for each in parts if isinstance(each, ast.Name | ast.Attribute))
    return not any(name.startswith("torch.distributed.") for name in names)


def _batch(facts: Facts, function: FunctionNode, parameter: ast.arg) -> Value:
    """What a step or a hook is given: a batch, or what the step has returned for every batch."""
    reason = Reason(parameter.lineno, parameter.arg)
    stage = stage_of(function.name)
    if not function.name.endswith("_epoch_end") or function.owner is None:
        return Value(DATA, reason, family="batch")
    keys = (("return", each, "") for each in _steps(facts, function.owner, stage))
    known = next(filter(None, (facts.read(key, function) for key in keys)), None)
    if known is None or known.family == "none":
        return Value(DATA, reason, family="outputs")
    return Value(known.varies, known.reason or reason, family="outputs", elements=(known,))


def _steps(facts: Facts, owner: ClassNode, stage: str) -> Iterator[FunctionNode]:
    for each in facts.index.lineage(owner):
        for name in (f"{stage}_step_end", f"{stage}_step"):
            if name in each.methods:
                yield each.methods[name]


def _read_inside(function: FunctionNode, state: State) -> set[int]:
    """Numbers of the collectives whose results inner functions may read, or others, of names of the file."""
    names = set(state.names) if function.name == "<module>" else set(state.captured)
    for inner in function.local.values():
        names |= {each.id for each in ast.walk(inner.node) if isinstance(each, ast.Name)}
    return {number for name in names if name in state.names for number in state.names[name].sources}

"""Which call is what, and the events that calls are."""

from __future__ import annotations

import ast

from distlint.analysis.changes import note_collective, root_of
from distlint.analysis.events import Step
from distlint.analysis.given import Call
from distlint.analysis.imported import call_imported
from distlint.analysis.meshes import of_mesh
from distlint.analysis.names import attribute, ranked
from distlint.analysis.own import call_own, owners
from distlint.analysis.results import result_of
from distlint.analysis.state import State
from distlint.analysis.unseen import call_unseen
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import (
    Effect,
    attribute_effect,
    collective,
    function_effect,
    is_first_fsdp,
    method_effect,
    name_effect,
)
from distlint.syntax import ClassNode, FunctionNode, dotted

LOCAL_LOG = Effect("local_log", "log")  # of a log that makes no rank wait
_PLACE = Effect("place", "place")


def value_of_call(state: State, node: ast.Call) -> Value:
    """Return the result of a call, and note what it does."""
    receiver, callee = _callee(state, node.func)
    name = "" if callee.instance else callee.name
    effect = _effect(state, node, name, receiver)
    if effect is None and _is_declared(state, callee, receiver, node.func):
        effect, callee = collective(dotted(node.func).rpartition(".")[2], ""), UNKNOWN_VALUE
    is_own = isinstance(callee.target, FunctionNode) and receiver.family != "metric"
    if effect is not None and effect.kind == "log" and not _is_log(state, receiver, node):
        effect = None
    call = Call(node, receiver, callee, *_arguments(state, node, effect))
    _note_placing(state, call)
    if effect is not None and not is_own:
        return _known(state, effect, call)
    if callee.target is not None:
        return call_own(state, call)
    if name:
        return call_imported(state, name, call)
    known = of_mesh(state, call)
    effect = _by_convention(node.func) if known is None else None
    if effect is not None:
        return ranked(state, effect, node)
    return known if known is not None else call_unseen(state, call)


def _effect(state: State, node: ast.Call, name: str, receiver: Value) -> Effect | None:
    """What the tables of APIs say of a call, by the qualified name or by the object."""
    effect = function_effect(name) if name else None
    if effect is not None or not isinstance(node.func, ast.Attribute):
        return effect
    known = method_effect(receiver.family, node.func.attr) if receiver.instance or not name else None
    return known or _believed(state, node.func, receiver)


def _believed(state: State, func: ast.Attribute, receiver: Value) -> Effect | None:
    """What a method is that nothing says, but where it stands.

    ``self.all_gather`` of a class whose bases cannot be seen is Lightning's; a state that is taken within
    ``FSDP.state_dict_type(...)`` is gathered.
    """
    if receiver.wrapped == "fsdp" and any(map(is_first_fsdp, state.index.imports.values())):
        return method_effect("fsdp", func.attr)  # states of ``fully_shard`` stay in shards
    owner = state.function.owner
    if func.attr == "all_gather" and isinstance(func.value, ast.Name) and func.value.id == "self":
        bases = [base for each in state.index.lineage(owner) for base in each.bases] if owner is not None else ["?"]
        unseen = [base for base in bases if "." not in base and base not in state.index.classes]
        return collective("all_gather", "gathered") if unseen and not receiver.family else None
    asked = (guard.node for guard in state.guards if guard.kind == "with" and isinstance(guard.node, ast.Call))
    if func.attr == "state_dict" and any(dotted(each.func).endswith("state_dict_type") for each in asked):
        return collective("state_dict", "")
    return None


def _arguments(state: State, node: ast.Call, effect: Effect | None) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """The values of the arguments; what is only shown is not read, and a collective keeps what it is given."""
    kind = effect.kind if effect is not None else ""
    is_shown = kind in ("show", "log") or (isinstance(node.func, ast.Name) and node.func.id == "print")
    read, owned = state.read, state.owned
    if is_shown:
        state.read = frozenset()
    args = tuple(state.value(part) for part in node.args)
    options = {each.arg or "**": state.value(each.value) for each in node.keywords}
    for value in (*args, *options.values()):
        if value.sources:
            state.read |= value.sources
    if is_shown:
        state.shown |= state.read
        state.read = read
    if is_shown or kind == "collective":
        state.owned = owned
    return args, options


def _is_declared(state: State, callee: Value, receiver: Value, func: ast.expr) -> bool:
    """Whether the user says that what is called is collective: a function, or a method of a class or its bases."""
    target = callee.target
    if isinstance(target, FunctionNode) and not target.is_method:
        return state.facts.is_declared(f"{state.index.name}.{target.name}")
    if callee.name:
        return state.facts.is_declared(callee.name)
    if not isinstance(func, ast.Attribute):
        return False
    return any(state.facts.is_declared(f"{owner}.{func.attr}") for owner in ("", *owners(state, receiver)))


def _callee(state: State, func: ast.expr) -> tuple[Value, Value]:
    if isinstance(func, ast.Attribute):
        receiver = _super(state) if _is_super(func.value) else state.value(func.value)
        return receiver, attribute(state, receiver, func)
    return UNKNOWN_VALUE, state.value(func)


def _super(state: State) -> Value:
    owner = state.function.owner
    if owner is None:
        return UNKNOWN_VALUE
    above = list(state.index.lineage(owner))[1:]
    return Value(0, family=state.facts.family(owner), target=above[0] if above else None, instance=True)


def _known(state: State, effect: Effect, call: Call) -> Value:
    event = call.emit(state, effect)
    event.result = result_of(state, event)
    if effect.kind == "log":
        effect = effect if _is_synced(state, call) else LOCAL_LOG
        state.block.append(Step("log", state.place(call.node), event, effect))
    elif effect.kind == "collective":
        note_collective(state, event)
    elif effect.kind == "wrap":
        if effect.changes:
            given = call.node.args[0]
            state.bind(root_of(given)[0] or given, event.result)
        if effect.label:  # it compares and broadcasts the parameters
            state.block.append(Step(effect.label, state.place(call.node), event, effect, event.group))
    elif effect.kind == "exit" or (effect.kind == "backward" and not state.keeps_gradients):
        state.block.append(Step(effect.label, state.place(call.node), event, effect))
    return event.result


def _is_synced(state: State, call: Call) -> bool:
    """Whether a log is reduced over ranks; modules of distmetrics do that by name where an epoch is evaluated."""
    name, given = state.function.name, call.options.get("sync_dist")
    is_by_name = name in ("validation_step", "test_step") or name.startswith("on_")
    is_on = given is not None and given.constant is not False and given.family != "none"
    return is_on and not (call.receiver.family == "distmetrics_module" and is_by_name)


def _is_log(state: State, receiver: Value, node: ast.Call) -> bool:
    """Whether a call is that of a framework's ``log``, and not of a method or attribute of the user's own."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name == "log" and len(node.args) + len(node.keywords) < 2:
        return False  # other trainers log one dict
    owner = receiver.target
    lineage = state.index.lineage(owner) if isinstance(owner, ClassNode) else ()
    return not any(("attribute", each, name) in state.facts.values for each in lineage)


def _by_convention(func: ast.expr) -> Effect | None:
    """What a function that cannot be seen tells of the rank by its name: ``trainer.is_world_process_zero()``."""
    if isinstance(func, ast.Attribute):
        return attribute_effect(func.attr)
    return name_effect(func.id) if isinstance(func, ast.Name) else None


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _note_placing(state: State, call: Call) -> None:
    """Note a call that is given a device, or may be."""
    is_mover = call.name in ("cuda", "to") and isinstance(call.node.func, ast.Attribute)
    if is_mover or "device" in call.options:
        call.emit(state, _PLACE)

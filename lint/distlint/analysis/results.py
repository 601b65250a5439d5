"""What calls return that the tables of APIs know: collectives, wrappers, loaders."""

from __future__ import annotations

import ast

from distlint.analysis.arguments import operation_of, subject_of
from distlint.analysis.events import Event
from distlint.analysis.formula import RANK, SAME, UNKNOWN, Atom, axis_of
from distlint.analysis.items import dict_of
from distlint.analysis.joining import combine
from distlint.analysis.names import ranked
from distlint.analysis.state import State
from distlint.analysis.value import HAS_GRADIENT, UNKNOWN_VALUE, Cut, Value

_RANKS = frozenset({"rank", "local_rank", "world", "local_world", "zero", "local_zero", "last", "distributed"})


def result_of(state: State, event: Event) -> Value:
    """Return the result of a call that the tables of APIs know."""
    kind = event.kind
    if kind in _RANKS:
        return _rank(state, event)
    if event.label == "init_device_mesh":
        return Value(SAME, family="mesh", instance=True)
    if kind == "collective":
        return _of_collective(state, event)
    if kind == "wrap":
        return _of_wrapper(event)
    if kind == "dict":
        return dict_of(event.args, event.options)
    if kind == "loader":
        return _of_loader(event)
    if kind in ("batch_sampler", "replicate"):
        return event.args[0] if event.args else UNKNOWN_VALUE
    if kind == "same":
        return event.args[-1] if event.args else UNKNOWN_VALUE
    if kind == "sampler":
        return instance_of("sampler")._replace(sampler=event.node if isinstance(event.node, ast.Call) else None)
    if kind == "share":
        is_even = "apply_padding" in event.options or len(event.args) != 1 or event.args[0].family == "even"
        return Value(RANK, state.reason(event.node), family="list", length=not is_even)
    if kind == "local_file":
        reason = state.reason(event.node)
        return Value(UNKNOWN, reason, Atom(reason.text, UNKNOWN, reason=reason, doubt="files"), "flag")
    if kind in ("list_files", "clock"):
        order = {"os.scandir": "entries"}.get(event.label, "files") if kind == "list_files" else ""
        return Value(UNKNOWN, family={"list_files": "files"}.get(kind, kind), order=order)
    if kind in ("select", "split"):
        whole = combine(list(event.args))
        family = "shares" if kind == "split" else "tensor"
        return whole._replace(length=whole.is_local or whole.length, family=family)
    return instance_of(kind) if kind in ("sampler", "metric", "trainer") else UNKNOWN_VALUE


def _rank(state: State, event: Event) -> Value:
    """What tells of this rank, in a group that is named; not what tells of another rank."""
    if event.label == "get_group_rank" and not (len(event.args) > 1 and event.args[1].is_rank):
        return UNKNOWN_VALUE
    return ranked(state, event.effect._replace(label=""), event.node, axis_of(event.group))


def _of_loader(event: Event) -> Value:
    """A loader, with the sampler that it is made with; a framework that takes one over deals it out itself."""
    if event.args and event.receiver.family in ("accelerator", "fabric"):
        loaders = tuple(_prepared(value) for value in event.args)
        return loaders[0] if len(loaders) == 1 else Value(SAME, family="tuple", elements=loaders)
    given = (event.options.get(name, UNKNOWN_VALUE).sampler for name in ("sampler", "batch_sampler"))
    call = event.node if isinstance(event.node, ast.Call) else None
    return instance_of("loader")._replace(sampler=next(filter(None, given), None), call=call)


def _prepared(loader: Value) -> Value:
    """A loader that a framework deals out."""
    return instance_of("loader")._replace(call=loader.call, wrapped="prepared")


def instance_of(family: str) -> Value:
    """Return an object of a class of this family."""
    return Value(SAME, family=family, instance=True)


def _of_collective(state: State, event: Event) -> Value:
    subject = subject_of(event)
    sources = frozenset({event.number})
    if event.label == "reduce" and event.effect.returns == "local":
        return subject._replace(reduced=operation_of(event), sources=sources, constant=None, elements=())
    if event.effect.returns in ("local", ""):
        whole = combine(list(event.args))
        return whole._replace(sources=sources, length=whole.length and not event.label.startswith("pad_"))
    is_list = event.effect.returns == "gathered" and subject.family in ("list", "outputs")
    kept = subject.family if subject.family in ("batch", "part", "length", "count") else ""
    return Value(
        SAME,
        reduced=operation_of(event),
        divided=subject.divided,
        scale=subject.scale,
        sources=sources | subject.sources,
        grad=subject.grad,
        cut=_cut(state, event, subject),
        family="list" if is_list else kept,
        dtype=subject.dtype,
    )


def _cut(state: State, event: Event, subject: Value) -> Cut | None:
    """Where other ranks' part of a result has no gradient, though this rank's part has one."""
    synced = event.options.get("sync_grads")
    is_passed_on = event.effect.grads or (synced is not None and synced.constant is not False)
    if not subject.grad or is_passed_on or operation_of(event) not in ("sum", "mean", "gathered"):
        return subject.cut
    reason = state.reason(event.node)
    return Cut(reason.line, reason.text, event.label, subject.grad == HAS_GRADIENT)


def _of_wrapper(event: Event) -> Value:
    wrapped = tuple(_wrap(value, event.effect.wrapped) for value in event.args)
    if len(wrapped) == 1 or event.effect.wrapped != "prepared":
        return wrapped[0] if wrapped else UNKNOWN_VALUE
    return Value(SAME, family="tuple", elements=wrapped)


def _wrap(value: Value, how: str) -> Value:
    if value.family == "loader":
        return _prepared(value)
    if value.family in ("optimizer", "scheduler"):
        return value
    return value._replace(wrapped=how, varies=min(value.varies, UNKNOWN))

"""Branches, loops, and what is tried."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from distlint.analysis.assignments import is_plain
from distlint.analysis.choices import asks_whether_wrapped, merged, note_branch, note_loop
from distlint.analysis.conditions import matched
from distlint.analysis.events import Guard, Handled
from distlint.analysis.formula import TRUE, every
from distlint.analysis.items import element
from distlint.analysis.state import State
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Value, combine, join
from distlint.api import Effect, stops_gradients
from distlint.syntax import Located

_BESIDE = frozenset({"enumerate", "zip"})
_NO_SYNC = frozenset({"no_sync", "no_backward_sync"})


Way = Sequence[ast.stmt] | Callable[[], str]


def if_(state: State, node: ast.If) -> str:
    """Interpret ``if``."""
    test = state.value(node.test)
    return _fork(state, test, node.test, node.body, node.orelse)


def _fork(state: State, test: Value, node: Located, then: Sequence[ast.stmt], other: Way) -> str:
    """Go two ways from a test; return how they end where both do."""
    before, ends, names, blocks = dict(state.names), [], [], []
    assigned, state.assigned = state.assigned, set()
    inner: list[Guard] = []
    for taken, way in ((True, then), (False, other)):
        state.names = dict(before)
        with state.collected() as block:
            outer, state.guards = state.guards, (*state.guards, Guard("branch", test, node, taken))
            ends.append(way() if callable(way) else state.run(way))
            inner += state.guards[len(outer) + 1 :]
            state.guards = outer
        names.append(state.names)
        blocks.append(block)
    note_branch(state, test, node, *blocks)
    _merge(state, test, node, names, ends)
    assigned |= state.assigned
    state.assigned = assigned
    _remember_exits(state, test, node, ends, inner)
    return ends[0] if ends[0] and ends[1] else ""


def _merge(state: State, test: Value, node: Located, names: list[dict[str, Value]], ends: list[str]) -> None:
    left, right = names
    if ends[0] or ends[1]:
        state.names = right if ends[0] else left
        return
    for name in state.assigned:
        first, second = left.get(name, NONE_VALUE), right.get(name, NONE_VALUE)
        left[name] = merged(state, first, second, test, node)
    state.names = left


def _remember_exits(state: State, test: Value, node: Located, ends: list[str], inner: Sequence[Guard]) -> None:
    """What follows is reached only by those who did not leave."""
    for guard in inner:
        if guard.kind.startswith("exit"):
            both = combine([test, guard.test])
            state.guards = (*state.guards, guard._replace(test=both))
    for taken, end in ((True, ends[0]), (False, ends[1])):
        if end and end != "raise" and not all(ends):
            state.guards = (*state.guards, Guard(f"exit {end}", test, node, not taken))
            if end == "break" and state.breaks:
                state.breaks[-1].append(test)


def for_(state: State, node: ast.For | ast.AsyncFor) -> str:
    """Interpret ``for``."""
    iterable = state.value(node.iter)
    loader = _loader_in(iterable)
    if loader is not None:
        state.emit(Effect("iterate", "iterate"), node.iter, args=(loader,))
    if not iterable.family and isinstance(node.iter, ast.Call):
        iterable = next(filter(_is_loader, map(state.value, filter(is_plain, node.iter.args))), iterable)
    return _repeat(state, node, "for", node.iter, iterable, target=node.target)


def while_(state: State, node: ast.While) -> str:
    """Interpret ``while``."""
    return _repeat(state, node, "while", node.test, None)


def _repeat(
    state: State,
    node: ast.For | ast.AsyncFor | ast.While,
    kind: str,
    asked: ast.expr,
    iterable: Value | None,
    target: ast.expr | None = None,
) -> str:
    """Run a loop's body twice, the second time with what the first has changed; in a first round, once."""
    outer, was_quick, stopped = state.guards, state.is_quick, UNKNOWN_VALUE
    changed: dict[str, Value] = {}
    assigned, state.assigned = state.assigned, set()
    for is_last in (True,) if was_quick else (False, True):
        state.is_quick = was_quick or not is_last
        before = dict(state.names)
        value = iterable if iterable is not None else state.value(asked)
        decides = combine([value, stopped]) if stopped.is_local else value
        if target is not None:
            state.bind(target, element(state, value))
            names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            state.turns.append((names, asked, changed))
        state.breaks.append([])
        with state.collected() as block:
            state.guards = (*outer, Guard(kind, decides, asked))
            state.run(node.body)
            inner, state.guards = state.guards[len(outer) + 1 :], outer
        if target is not None:
            state.turns.pop()
        stopped = combine([each for each in state.breaks.pop() if each.is_local] or [UNKNOWN_VALUE])
        for name in state.assigned & state.names.keys():
            state.names[name] = join(before.get(name, NONE_VALUE), state.names[name])
    assigned |= state.assigned
    state.assigned = assigned
    if kind == "while" and asks_whether_wrapped(state, asked):
        state.names = {name: value._replace(wrapped="") for name, value in state.names.items()}
    state.is_quick = was_quick
    state.names.update(changed)
    note_loop(state, node, decides, block)
    state.guards = (*outer, *(guard for guard in inner if guard.kind == "exit return"))
    state.run(node.orelse)
    return ""


def try_(state: State, node: ast.Try) -> str:
    """Interpret ``try``."""
    outer = state.guards
    before = dict(state.names)
    assigned, state.assigned = state.assigned, set()
    with state.collected() as block:
        state.guards = (*outer, Guard("try", UNKNOWN_VALUE, node)) if node.handlers else outer
        end = state.run(node.body)
        inner, state.guards = state.guards[len(outer) + bool(node.handlers) :], outer
    with state.collected() as rest:
        end = end or state.run(node.orelse)
    after, handlers, ends = state.names, [], [end]
    changed = state.assigned & after.keys()
    either = {name: join(before.get(name, after[name]), after[name]) for name in changed}
    left = after if not end else None
    for handler in node.handlers:
        state.names = {**after, **either}
        with state.collected() as caught:
            state.guards = (*outer, Guard("except", UNKNOWN_VALUE, handler))
            ends.append(state.run(handler.body))
            state.guards = outer
        handlers.append(tuple(caught))
        left = state.names if left is None and not ends[-1] else left
    state.names = after if left is None else left
    assigned |= state.assigned
    state.assigned = assigned
    state.guards = (*outer, Guard("finally", UNKNOWN_VALUE, node))
    with state.collected() as final:
        last = state.run(node.finalbody)
    if block or any(handlers) or final or rest:
        # What follows a body without an exception is not tried.
        tried = Handled(tuple(block), tuple(handlers), (), node)
        state.block += (tried, *rest) if not final else (Handled((tried, *rest), (), tuple(final)),)
    state.guards = (*outer, *inner)
    return last or (end if all(ends) else "")


def with_(state: State, node: ast.With | ast.AsyncWith) -> str:
    """Interpret ``with``."""
    outer, was_gradless = state.guards, state.gradless
    for item in node.items:
        value = state.value(item.context_expr)
        state.guards = (*state.guards, Guard("with", value, item.context_expr))
        state.gradless = state.gradless or is_gradless(state, item.context_expr)
        if item.optional_vars is not None:
            state.bind(item.optional_vars, value)
    before = state.keeps_gradients
    state.keeps_gradients = before or any(_keeps_gradients(item.context_expr) for item in node.items)
    end = state.run(node.body)
    state.keeps_gradients, state.gradless = before, was_gradless
    state.guards = (*outer, *state.guards[len(outer) + len(node.items) :])
    return end


def is_gradless(state: State, node: ast.expr) -> bool:
    """True if a decorator or context is ``torch.no_grad`` or the like."""
    called = node.func if isinstance(node, ast.Call) else node
    return stops_gradients(state.index.qualify(called, state.function))


def match_(state: State, node: ast.Match) -> str:
    """Interpret ``match``."""
    return _cases(state, node.subject, state.value(node.subject), node.cases)


def _cases(state: State, node: ast.expr, subject: Value, cases: Sequence[ast.match_case]) -> str:
    if not cases:
        return ""
    case = cases[0]
    _bind_pattern(state, case.pattern)
    test = matched(state, node, subject, case.pattern)
    if case.guard is not None:
        asked = state.value(case.guard)
        formula = every([state.as_formula(test, case.pattern), state.as_formula(asked, case.guard)])
        test = combine([test, asked])._replace(formula=formula)
    other = cases[1:] if test.formula != TRUE else ()
    return _fork(state, test, case.pattern, case.body, lambda: _cases(state, node, subject, other))


def _bind_pattern(state: State, pattern: ast.pattern) -> None:
    """Names that a pattern binds are parts of what is matched, of which nothing is known."""
    for each in ast.walk(pattern):
        name = getattr(each, "rest", None) or getattr(each, "name", None)
        if isinstance(name, str):
            state.bind(ast.Name(name, ast.Store()), UNKNOWN_VALUE)


def _loader_in(iterable: Value) -> Value | None:
    """The loader that a loop runs over, counted or beside others."""
    if iterable.family == "loader":
        return iterable
    return next(filter(None, map(_loader_in, iterable.elements)), None) if iterable.family in _BESIDE else None


def _keeps_gradients(node: ast.expr) -> bool:
    """``model.no_sync()``: gradients stay where they are."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _NO_SYNC


def _is_loader(value: Value) -> bool:
    """What a loop is wrapped in, to show or count its turns, hands on the batches."""
    return value.family == "loader"

"""Branches, loops, and what is tried."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from distlint.analysis.assignments import is_plain
from distlint.analysis.choices import asks_whether_wrapped, merged, note_branch, note_loop
from distlint.analysis.conditions import matched
from distlint.analysis.events import Guard, Handled, Node
from distlint.analysis.formula import TRUE, UNKNOWN, Atom, every
from distlint.analysis.items import element
from distlint.analysis.joining import combine, join
from distlint.analysis.pythons import ITERATE
from distlint.analysis.state import Section, State
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Value
from distlint.api import stops_gradients
from distlint.syntax import Located, dotted

_BESIDE = frozenset({"enumerate", "zip"})
_NO_SYNC = frozenset({"no_sync", "no_backward_sync"})


Way = Sequence[ast.stmt] | Callable[[], str]


def if_(state: State, node: ast.If) -> str:
    """Interpret ``if``."""
    test = state.value(node.test)
    return _fork(state, test, node.test, node.body, node.orelse)


def _fork(state: State, test: Value, node: Located, then: Sequence[ast.stmt], other: Way) -> str:
    """Go two ways from a test; return how they end where both do."""
    before, ends, names, sections = dict(state.names), [], [], []
    with state.assigning():
        for taken, way in ((True, then), (False, other)):
            state.names = dict(before)
            with state.section(Guard("branch", test, node, taken)) as section:
                ends.append(way() if callable(way) else state.run(way))
            names.append(state.names)
            sections.append(section)
        note_branch(state, test, node, *(section.body for section in sections))
        _merge(state, test, node, names, ends)
    _remember_exits(state, test, node, ends, [guard for section in sections for guard in section.exits])
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
        state.emit(ITERATE, node.iter, args=(loader,))
    if not iterable.family and isinstance(node.iter, ast.Call):
        iterable = next(filter(_is_loader, map(state.value, filter(is_plain, node.iter.args))), iterable)
    names = {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    changed: dict[str, Value] = {}

    def begin(value: Value) -> None:
        state.bind(node.target, element(state, value))

    state.turns.append((names, node.iter, changed))
    decides, section = _turns(state, node, "for", lambda: iterable, begin)
    state.turns.pop()
    state.names.update(changed)
    return _end_loop(state, node, decides, section)


def while_(state: State, node: ast.While) -> str:
    """Interpret ``while``."""
    decides, section = _turns(state, node, "while", lambda: state.value(node.test), lambda value: None)
    if asks_whether_wrapped(state, node.test):
        state.names = {name: value._replace(wrapped="") for name, value in state.names.items()}
    return _end_loop(state, node, decides, section)


Loops = ast.For | ast.AsyncFor | ast.While


def _turns(
    state: State, node: Loops, kind: str, ask: Callable[[], Value], begin: Callable[[Value], None]
) -> tuple[Value, Section]:
    """Run a loop's body twice, the second time with what the first has changed; in a first round, once.

    Returns:
        What decides how often it turns, and the body.
    """
    was_quick, stopped, asked = state.is_quick, UNKNOWN_VALUE, node.test if isinstance(node, ast.While) else node.iter
    with state.assigning():
        for is_last in (True,) if was_quick else (False, True):
            state.is_quick = was_quick or not is_last
            before, value = dict(state.names), ask()
            decides = combine([value, stopped]) if stopped.is_local else value
            begin(value)
            state.breaks.append([])
            with state.section(Guard(kind, decides, asked)) as section:
                state.run(node.body)
            stopped = combine([each for each in state.breaks.pop() if each.is_local] or [UNKNOWN_VALUE])
            for name in state.assigned & state.names.keys():
                state.names[name] = join(before.get(name, NONE_VALUE), state.names[name])
    state.is_quick = was_quick
    return decides, section


def _end_loop(state: State, node: Loops, decides: Value, section: Section) -> str:
    note_loop(state, node, decides, section.body)
    state.guards = (*state.guards, *(guard for guard in section.exits if guard.kind == "exit return"))
    state.run(node.orelse)
    return ""


def try_(state: State, node: ast.Try) -> str:
    """Interpret ``try``."""
    drawn = _drawn(node)
    if drawn is not None:
        return _fork(state, _whether_it_ends(state, drawn), drawn, node.handlers[0].body, node.body)
    before = dict(state.names)
    with state.assigning():
        guards = (Guard("try", UNKNOWN_VALUE, node),) if node.handlers else ()
        with state.section(*guards) as tried:
            end = state.run(node.body)
        with state.section() as rest:
            end = end or state.run(node.orelse)
        changed = state.assigned & state.names.keys()
        either = {name: join(before.get(name, state.names[name]), state.names[name]) for name in changed}
        handlers, ends = _handlers(state, node, either, end)
    with state.section(Guard("finally", UNKNOWN_VALUE, node)) as final:
        last = state.run(node.finalbody)
    if tried.body or any(handlers) or final.body or rest.body:
        # What follows a body without an exception is not tried.
        whole = (Handled(tuple(tried.body), tuple(handlers), (), node), *rest.body)
        state.block += whole if not final.body else (Handled(whole, (), tuple(final.body)),)
    state.guards = (*state.guards, *tried.exits)
    return last or (end if all(ends) else "")


def _drawn(node: ast.Try) -> ast.Call | None:
    """The ``next(…)`` of a ``try`` that handles the end of an iterator and nothing else."""
    if len(node.handlers) != 1 or node.orelse or node.finalbody:
        return None
    if dotted(node.handlers[0].type) != "StopIteration" if node.handlers[0].type else True:
        return None
    calls = (each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Call))
    return next((each for each in calls if dotted(each.func) == "next" and len(each.args) == 1), None)


def _whether_it_ends(state: State, node: ast.Call) -> Value:
    """Whether an iterator has ended: each rank's own may at another turn."""
    reason = state.reason(node)
    text = f"{state.index.path}:{node.lineno} ends"
    return Value(UNKNOWN, reason, Atom(text, UNKNOWN, reason=reason, doubt="batches"), "flag")


def _handlers(
    state: State, node: ast.Try, either: dict[str, Value], end: str
) -> tuple[list[tuple[Node, ...]], list[str]]:
    """Run what handles exceptions, of a body that may have come to any of its lines; the bodies, and how they end."""
    after, bodies, ends = state.names, [], [end]
    left = after if not end else None
    for handler in node.handlers:
        state.names = {**after, **either}
        with state.section(Guard("except", UNKNOWN_VALUE, handler)) as caught:
            ends.append(state.run(handler.body))
        bodies.append(tuple(caught.body))
        left = state.names if left is None and not ends[-1] else left
    state.names = after if left is None else left
    return bodies, ends


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

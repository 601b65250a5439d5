"""Statements: names, branches, loops, exits."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from distlint.analysis.calls import GROW, Calls, is_new
from distlint.analysis.conditions import matched
from distlint.analysis.events import Branch, Event, Exit, Guard, Handled, Loop, Node, Step
from distlint.analysis.formula import DATA, SAME, TRUE, UNKNOWN, every
from distlint.analysis.results import METHODS_OF_TENSORS
from distlint.analysis.state import Facts
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Reason, Value, any_of, combine, join
from distlint.api import Effect, stops_gradients
from distlint.syntax import ClassNode, FunctionNode, Located, dotted

_TRAINER_BACKWARD = Effect("backward", "backward", wrapped="prepared")
_PUT = Effect("put", "put")  # of an item that a list or dict is given under a key
_BESIDE = frozenset({"enumerate", "zip"})
_NO_SYNC = frozenset({"no_sync", "no_backward_sync"})
Way = Sequence[ast.stmt] | Callable[[], str]
_ENDS = ("return", "raise", "continue", "break")


class Interpreter(Calls):
    """Interprets the statements of one function."""

    def __init__(self, function: FunctionNode, facts: Facts) -> None:
        super().__init__(function, facts)
        self.is_quick = False  # a loop's first round: it tells what the second begins with
        self.breaks: list[list[Value]] = []
        self.returned: dict[int, tuple[ast.Return, Value]] = {}

    def run(self, body: Sequence[ast.stmt]) -> str:
        """Interpret statements; return how they end where every way through them does: one of _ENDS, or ""."""
        for statement in body:
            handler = _STATEMENTS.get(type(statement))
            end = handler(self, statement) if handler is not None else ""
            if end:
                return end
        return ""

    def bind(self, target: ast.expr, value: Value) -> None:
        """Give a value to a name, an attribute, or the parts of a tuple."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
            self.assigned.add(target.id)
            if value.sources and target.id.startswith("_"):
                self.read |= value.sources
            elif value.sources:
                self.named |= value.sources
        elif isinstance(target, ast.Tuple | ast.List):
            self._bind_parts(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value._replace(elements=()))
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value).target
            self.read |= value.sources
            if isinstance(owner, ClassNode):
                self.facts.tell(("attribute", owner, target.attr), value)
        elif isinstance(target, ast.Subscript):
            self._bind_item(target, value)

    def _bind_parts(self, targets: list[ast.expr], value: Value) -> None:
        if len(value.elements) == len(targets) and not any(isinstance(each, ast.Starred) for each in targets):
            for each, part in zip(targets, value.elements, strict=True):
                self.bind(each, part)
            return
        if value.family == "deepspeed" and targets:  # engine, optimizer, loader, scheduler
            self.bind(targets[0], value)
            targets, value = targets[1:], UNKNOWN_VALUE
        part = value._replace(family="part") if value.family == "batch" else self.element(value)
        for each in targets:
            self.bind(each, part)

    def _bind_item(self, target: ast.Subscript, value: Value) -> None:
        """An item of a list or dict is in it from now on; the rank's own part of what was gathered has its gradient."""
        index = self.value(target.slice)
        self.emit(_PUT, target, args=(value,))
        if isinstance(target.value, ast.Name):
            known = self.names.get(target.value.id)
            if known is not None and known.target is None:
                if index.family in ("rank", "local_rank"):
                    known = known._replace(cut=None)
                inside = value._replace(constant=None, formula=None, elements=(), keys=(), family=known.family)
                joined = join(known, inside)
                if self.is_own_key(target.value, target.slice):
                    joined = joined._replace(order="keys")
                keys, elements = _with_item(known, index.constant, value)
                joined = joined._replace(scale="", elements=elements, keys=keys, length=known.length)
                self.bind(target.value, joined)
                return
        self.read |= value.sources

    def element(self, value: Value) -> Value:
        """Return one turn's value of what is iterated over."""
        if value.family == "loader":
            return self._batch(value)
        if value.family == "outputs":
            return value.elements[0] if value.elements else Value(DATA, value.reason)
        if value.family == "range":
            return Value(value.varies, value.reason, family="counter", dtype="int")
        if value.family == "items":
            return Value(value.varies, value.reason, family="tuple", elements=(_key_of(value), _entry_of(value)))
        if value.family in ("keys", "dict"):
            return _key_of(value)
        if value.family == "batch":
            return Value(value.varies, value.reason, family="part")
        if value.family == "enumerate" and value.elements:
            return Value(
                SAME, family="tuple", elements=(Value(UNKNOWN, family="number"), self.element(value.elements[0]))
            )
        if value.family == "zip":
            return Value(value.varies, value.reason, family="tuple", elements=tuple(map(self.element, value.elements)))
        if value.elements and value.family in ("list", "tuple", "values"):
            return any_of(value.elements)
        return Value(
            value.varies,
            value.reason,
            family=_part_of(value),
            sources=value.sources,
            grad=value.grad,
            reduced=value.reduced,
            measure=value.measure,
            call=value.call if value.family == "result" else None,
        )

    def _batch(self, loader: Value) -> Value:
        """A batch: this rank's own, but of a loader that a callback has made for itself, which no trainer deals out."""
        owner = self.function.owner
        if owner is not None and self.facts.family(owner) == "callback" and not loader.wrapped:
            return Value(UNKNOWN)
        return Value(DATA, loader.reason or Reason(0, "the batches of a loader"), family="batch")

    def branch(self, test: Value, node: Located, then: list[Node], other: list[Node]) -> None:
        """Note two ways on."""
        if then or other:
            self.block.append(Branch(self.as_formula(test, node), tuple(then), tuple(other), self.place(node), node))

    def loop(self, node: Located, value: Value, block: list[Node]) -> None:
        """Note statements that run again and again."""
        if block:
            is_while = isinstance(node, ast.While)
            is_local = value.is_local if is_while else value.length
            self.block.append(Loop(tuple(block), self.place(node), value.varies, is_local, node))

    def _expression(self, node: ast.Expr) -> str:
        self.value(node.value)
        if isinstance(node.value, ast.Call):
            if self.events and self.events[-1].node is node.value:
                self.events[-1].is_dropped = True
            if self.events and self.events[-1].kind == "exit" and self.events[-1].node is node.value:
                self.block.append(Exit("raise" if _tells_of_failure(self.events[-1]) else "exit"))
                return "raise"
        return ""

    def _assign(self, node: ast.Assign) -> str:
        value = self._assigned_value(node.value, node.targets)
        for target in node.targets:
            self.bind(target, self._given_back(target, node.value, value))
        self._note_owned(node.targets, node.value)
        return ""

    def _assigned_value(self, node: ast.expr, targets: list[ast.expr]) -> Value:
        """The value of an expression; what is only computed with, into a name, is not read before that name is."""
        read, owned = self.read, self.owned
        value = self.value(node)
        if not value.sources <= read and all(isinstance(each, ast.Name) for each in targets) and _only_computes(node):
            self.read = read | (self.read - value.sources)
            self.owned = owned
        return value

    def _note_owned(self, targets: list[ast.expr], node: ast.expr) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                is_owned = len(targets) == 1 and is_new(node)
                if is_owned != (target.id in self.owned):
                    self.owned ^= {target.id}

    def _given_back(self, target: ast.expr, node: ast.expr, value: Value) -> Value:
        """``state = update(state, batch)``: what an unseen function is given and gives back is what it was before."""
        if not isinstance(node, ast.Call) or not _is_plain(target):
            return value
        if any((id(node), kind) in self.by_node for kind in ("call", "forward", "collective")):
            return value
        if not any(_is_plain(each) and dotted(each) == dotted(target) for each in node.args):
            return value
        before = self.value(target)
        return before._replace(constant=None, formula=None) if before.varies < value.varies else value

    def _annotated(self, node: ast.AnnAssign) -> str:
        if node.value is not None:
            self.bind(node.target, self._assigned_value(node.value, [node.target]))
            self._note_owned([node.target], node.value)
        return ""

    def _augmented(self, node: ast.AugAssign) -> str:
        read, owned = self.read, self.owned
        before = self.value(node.target)
        if isinstance(node.target, ast.Name):
            self.read, self.owned = read, owned
        added = self._assigned_value(node.value, [node.target])
        if isinstance(node.op, ast.Add) and before.family == "list":
            self.emit(GROW, node.target, receiver=before, args=(added,))
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            self.note_division(before, added, node.target)
        result = self.arithmetic(node.op, before, added, node.target)
        if not before.scale and added.scale and before.varies <= UNKNOWN:
            result = result._replace(scale=added.scale)
        self.bind(node.target, result._replace(sources=before.sources | added.sources))
        return ""

    def _if(self, node: ast.If) -> str:
        test = self.value(node.test)
        return self._fork(test, node.test, node.body, node.orelse)

    def _fork(self, test: Value, node: Located, then: Sequence[ast.stmt], other: Way) -> str:
        """Go two ways from a test; return how they end where both do."""
        before, ends, names, blocks = dict(self.names), [], [], []
        assigned, self.assigned = self.assigned, set()
        inner: list[Guard] = []
        for taken, way in ((True, then), (False, other)):
            self.names = dict(before)
            with self.collected() as block:
                outer, self.guards = self.guards, (*self.guards, Guard("branch", test, node, taken))
                ends.append(way() if callable(way) else self.run(way))
                inner += self.guards[len(outer) + 1 :]
                self.guards = outer
            names.append(self.names)
            blocks.append(block)
        self.branch(test, node, *blocks)
        self._merge(test, node, names, ends)
        assigned |= self.assigned
        self.assigned = assigned
        self._remember_exits(test, node, ends, inner)
        return ends[0] if ends[0] and ends[1] else ""

    def _merge(self, test: Value, node: Located, names: list[dict[str, Value]], ends: list[str]) -> None:
        left, right = names
        if ends[0] or ends[1]:
            self.names = right if ends[0] else left
            return
        for name in self.assigned:
            first, second = left.get(name, NONE_VALUE), right.get(name, NONE_VALUE)
            left[name] = self.merged(first, second, test, node)
        self.names = left

    def _remember_exits(self, test: Value, node: Located, ends: list[str], inner: Sequence[Guard]) -> None:
        """What follows is reached only by those who did not leave."""
        for guard in inner:
            if guard.kind.startswith("exit"):
                both = combine([test, guard.test])
                self.guards = (*self.guards, guard._replace(test=both))
        for taken, end in ((True, ends[0]), (False, ends[1])):
            if end and end != "raise" and not all(ends):
                self.guards = (*self.guards, Guard(f"exit {end}", test, node, not taken))
                if end == "break" and self.breaks:
                    self.breaks[-1].append(test)

    def _for(self, node: ast.For | ast.AsyncFor) -> str:
        iterable = self.value(node.iter)
        loader = _loader_in(iterable)
        if loader is not None:
            self.emit(Effect("iterate", "iterate"), node.iter, args=(loader,))
        if not iterable.family and isinstance(node.iter, ast.Call):
            iterable = next(filter(_is_loader, map(self.value, filter(_is_plain, node.iter.args))), iterable)
        return self._repeat(node, "for", node.iter, iterable, target=node.target)

    def _while(self, node: ast.While) -> str:
        return self._repeat(node, "while", node.test, None)

    def _repeat(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        kind: str,
        asked: ast.expr,
        iterable: Value | None,
        target: ast.expr | None = None,
    ) -> str:
        """Run a loop's body twice, the second time with what the first has changed; in a first round, once."""
        outer, was_quick, stopped = self.guards, self.is_quick, UNKNOWN_VALUE
        changed: dict[str, Value] = {}
        assigned, self.assigned = self.assigned, set()
        for is_last in (True,) if was_quick else (False, True):
            self.is_quick = was_quick or not is_last
            before = dict(self.names)
            value = iterable if iterable is not None else self.value(asked)
            decides = combine([value, stopped]) if stopped.is_local else value
            if target is not None:
                self.bind(target, self.element(value))
                names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
                self.turns.append((names, asked, changed))
            self.breaks.append([])
            with self.collected() as block:
                self.guards = (*outer, Guard(kind, decides, asked))
                self.run(node.body)
                inner, self.guards = self.guards[len(outer) + 1 :], outer
            if target is not None:
                self.turns.pop()
            stopped = combine([each for each in self.breaks.pop() if each.is_local] or [UNKNOWN_VALUE])
            for name in self.assigned & self.names.keys():
                self.names[name] = join(before.get(name, NONE_VALUE), self.names[name])
        assigned |= self.assigned
        self.assigned = assigned
        if kind == "while" and self.asks_whether_wrapped(asked):
            self.names = {name: value._replace(wrapped="") for name, value in self.names.items()}
        self.is_quick = was_quick
        self.names.update(changed)
        self.loop(node, decides, block)
        self.guards = (*outer, *(guard for guard in inner if guard.kind == "exit return"))
        self.run(node.orelse)
        return ""

    def _try(self, node: ast.Try) -> str:
        outer = self.guards
        before = dict(self.names)
        assigned, self.assigned = self.assigned, set()
        with self.collected() as block:
            self.guards = (*outer, Guard("try", UNKNOWN_VALUE, node)) if node.handlers else outer
            end = self.run(node.body)
            inner, self.guards = self.guards[len(outer) + bool(node.handlers) :], outer
        with self.collected() as rest:
            end = end or self.run(node.orelse)
        after, handlers, ends = self.names, [], [end]
        changed = self.assigned & after.keys()
        either = {name: join(before.get(name, after[name]), after[name]) for name in changed}
        left = after if not end else None
        for handler in node.handlers:
            self.names = {**after, **either}
            with self.collected() as caught:
                self.guards = (*outer, Guard("except", UNKNOWN_VALUE, handler))
                ends.append(self.run(handler.body))
                self.guards = outer
            handlers.append(tuple(caught))
            left = self.names if left is None and not ends[-1] else left
        self.names = after if left is None else left
        assigned |= self.assigned
        self.assigned = assigned
        self.guards = (*outer, Guard("finally", UNKNOWN_VALUE, node))
        with self.collected() as final:
            last = self.run(node.finalbody)
        if block or any(handlers) or final or rest:
            # What follows a body without an exception is not tried.
            tried = Handled(tuple(block), tuple(handlers), (), node)
            self.block += (tried, *rest) if not final else (Handled((tried, *rest), (), tuple(final)),)
        self.guards = (*outer, *inner)
        return last or (end if all(ends) else "")

    def _with(self, node: ast.With | ast.AsyncWith) -> str:
        outer, was_gradless = self.guards, self.gradless
        for item in node.items:
            value = self.value(item.context_expr)
            self.guards = (*self.guards, Guard("with", value, item.context_expr))
            self.gradless = self.gradless or self.stops_gradients(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        before = self.keeps_gradients
        self.keeps_gradients = before or any(_keeps_gradients(item.context_expr) for item in node.items)
        end = self.run(node.body)
        self.keeps_gradients, self.gradless = before, was_gradless
        self.guards = (*outer, *self.guards[len(outer) + len(node.items) :])
        return end

    def stops_gradients(self, node: ast.expr) -> bool:
        """True if a decorator or context is ``torch.no_grad`` or the like."""
        called = node.func if isinstance(node, ast.Call) else node
        return stops_gradients(self.index.qualify(called, self.function))

    def _names_of_others(self, node: ast.Global | ast.Nonlocal) -> str:
        self.captured |= set(node.names)
        return ""

    def _match(self, node: ast.Match) -> str:
        return self._cases(node.subject, self.value(node.subject), node.cases)

    def _cases(self, node: ast.expr, subject: Value, cases: Sequence[ast.match_case]) -> str:
        if not cases:
            return ""
        case = cases[0]
        self._bind_pattern(case.pattern)
        test = matched(self, node, subject, case.pattern)
        if case.guard is not None:
            asked = self.value(case.guard)
            formula = every([self.as_formula(test, case.pattern), self.as_formula(asked, case.guard)])
            test = combine([test, asked])._replace(formula=formula)
        other = cases[1:] if test.formula != TRUE else ()
        return self._fork(test, case.pattern, case.body, lambda: self._cases(node, subject, other))

    def _bind_pattern(self, pattern: ast.pattern) -> None:
        """Names that a pattern binds are parts of what is matched, of which nothing is known."""
        for each in ast.walk(pattern):
            name = getattr(each, "rest", None) or getattr(each, "name", None)
            if isinstance(name, str):
                self.bind(ast.Name(name, ast.Store()), UNKNOWN_VALUE)

    def _return(self, node: ast.Return) -> str:
        value = self.value(node.value)
        guards = [guard.test for guard in self.guards if guard.kind in ("branch", "exit return")]
        rank = max((test.varies for test in guards), default=SAME)
        if self.returns is not None and rank >= DATA and value != self.returns:
            reason = next(test.reason for test in guards if test.varies == rank)
            value = value._replace(varies=max(rank, value.varies), reason=value.reason or reason)
        if value.wrapped and self.returns is not None and not self.returns.wrapped:
            is_told = any(self.asks_whether_wrapped(guard.node) for guard in self.guards)
            value = value._replace(wrapped="" if is_told else value.wrapped)
        self.returned[id(node)] = node, value
        self.returns = value if self.returns is None else join(self.returns, value)
        self.read |= value.sources
        if node.value is not None and value.family != "none" and self._is_trained_with_result():
            event = Event(_TRAINER_BACKWARD, node.value, self.function, self.guards, result=value)
            self.block.append(Step("backward", self.place(node), event, _TRAINER_BACKWARD))
        self.block.append(Exit("return"))
        return "return"

    def _is_trained_with_result(self) -> bool:
        """True in a step whose result Lightning makes the backward pass of, if it is not None."""
        owner = self.function.owner
        if owner is None or self.function.name != "training_step" or self.facts.family(owner) != "lightning_module":
            return False
        if any(event.kind == "backward" for event in self.events):
            return False
        name = "automatic_optimization"
        lineage = list(self.index.lineage(owner))
        is_set = any(self.facts.read(("attribute", each, name), self.function) for each in lineage)
        return not is_set and not any(_declares(each, name) for each in lineage)

    def _raise(self, node: ast.Raise) -> str:
        self.value(node.exc)
        self.block.append(Exit("raise"))
        return "raise"

    def _continue(self, node: ast.Continue) -> str:
        self.block.append(Exit("continue"))
        return "continue"

    def _break(self, node: ast.Break) -> str:
        self.block.append(Exit("break"))
        return "break"

    def _assert(self, node: ast.Assert) -> str:
        self.value(node.test)
        return ""


def _only_computes(node: ast.expr) -> bool:
    """True if an expression has no call but of methods of tensors that are known."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return all(isinstance(each, ast.Attribute) and each.attr in METHODS_OF_TENSORS for each in calls)


def _with_item(known: Value, key: object, value: Value) -> tuple[tuple[Any, ...], tuple[Value, ...]]:
    """Keys and parts of a dict with one more, or another, item; nothing where they are not known."""
    if known.family != "dict" or key is None or len(known.keys) != len(known.elements):
        return (), ()
    items = {**dict(zip(known.keys, known.elements, strict=True)), key: value}
    return tuple(items), tuple(items.values())


def _declares(owner: ClassNode, name: str) -> bool:
    """True if the body of a class gives it an attribute or a property of this name."""
    assigned = (target for each in owner.node.body if isinstance(each, ast.Assign) for target in each.targets)
    return name in owner.methods or any(isinstance(target, ast.Name) and target.id == name for target in assigned)


def _tells_of_failure(event: Event) -> bool:
    """True if the process ends with a status of failure, so that the launcher stops the others."""
    return bool(event.args) and event.args[0].constant != 0 and event.args[0].family != "none"


def _loader_in(iterable: Value) -> Value | None:
    """The loader that a loop runs over, counted or beside others."""
    if iterable.family == "loader":
        return iterable
    return next(filter(None, map(_loader_in, iterable.elements)), None) if iterable.family in _BESIDE else None


def _keeps_gradients(node: ast.expr) -> bool:
    """``model.no_sync()``: gradients stay where they are."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _NO_SYNC


def _key_of(value: Value) -> Value:
    """A key of a dict: one of its own rank's batches, or the same everywhere as far as is known."""
    return Value(DATA if value.order == "keys" else UNKNOWN, value.reason)


def _entry_of(items: Value) -> Value:
    """A value of a dict: any of those that are written out."""
    if items.elements:
        return any_of(items.elements)
    call = items.call if items.measure is not None or items.call is not None else None
    return Value(items.varies, items.reason, family="part", measure=items.measure, reduced=items.reduced, call=call)


def _part_of(value: Value) -> str:
    """The family of what is in a value: an example of what a rank's data are, or again what a metric has returned."""
    if value.family == "result":
        return "result"
    return "example" if value.is_local and value.family in ("", "part", "example", "mask") else ""


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _is_loader(value: Value) -> bool:
    """What a loop is wrapped in, to show or count its turns, hands on the batches."""
    return value.family == "loader"


_STATEMENTS: dict[type[ast.stmt], Callable[[Interpreter, Any], str]] = {
    ast.Expr: Interpreter._expression,
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.AugAssign: Interpreter._augmented,
    ast.If: Interpreter._if,
    ast.For: Interpreter._for,
    ast.AsyncFor: Interpreter._for,
    ast.While: Interpreter._while,
    ast.Try: Interpreter._try,
    ast.Global: Interpreter._names_of_others,
    ast.Nonlocal: Interpreter._names_of_others,
    ast.With: Interpreter._with,
    ast.AsyncWith: Interpreter._with,
    ast.Return: Interpreter._return,
    ast.Raise: Interpreter._raise,
    ast.Continue: Interpreter._continue,
    ast.Break: Interpreter._break,
    ast.Assert: Interpreter._assert,
}
if hasattr(ast, "Match"):
    _STATEMENTS[ast.Match] = Interpreter._match
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = Interpreter._try

"""What the interpreter keeps: facts of the file that functions share, and the state of the function at hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from distlint.analysis.doubts import doubt_of
from distlint.analysis.events import Branch, Event, Exit, Guard, Node, Place, Step, bodies
from distlint.analysis.formula import FALSE, TRUE, UNKNOWN, Atom, Formula, Reason
from distlint.analysis.joining import combine, join
from distlint.analysis.project import Project
from distlint.analysis.value import NONE_VALUE, OF_RANK, Value, is_set_by_some
from distlint.api import Effect, family_of, named_family, unbound
from distlint.syntax import ClassNode, FunctionNode, Located, SyntaxIndex

_HOOKS = frozenset({"training_step", "validation_step", "test_step"})
_LIGHTNING = re.compile(r"(pytorch_)?lightning\b")
_LIKE_LIGHTNING = re.compile(r"(composer|distmetrics)\b")
_MOST_PARTS = 12  # of a tuple or dict that functions hand to each other
Key = tuple[str, object, str]  # "attribute" | "parameter" | "return" | "name", of what, name


class Facts:
    """What functions tell each other: attributes, arguments, results. Values only grow, so that rounds come to an end.

    Args:
        index: the file.
        project: what is known of other files, and what the user has declared.
    """

    def __init__(self, index: SyntaxIndex, project: Project) -> None:
        self.index = index
        self.project = project
        self.find = project.find
        self.is_declared = project.is_collective
        self.reason_against = partial(project.reason_against, index.name)
        self.families: dict[ClassNode, str] = {}
        self.values: dict[Key, Value] = {}
        self.readers: dict[Key, set[FunctionNode]] = {}
        self.bodies: dict[FunctionNode, tuple[Node, ...]] = {}
        self.callers: dict[FunctionNode, set[FunctionNode]] = {}
        self.stale: set[FunctionNode] = set()

    def family(self, owner: ClassNode) -> str:
        """Return the family that a class of the file has by its bases, or ""."""
        if owner not in self.families:
            bases = (base for each in self.index.lineage(owner) for base in each.bases)
            others = (base for base in bases if not base.startswith(f"{self.index.name}."))
            names = (name for base in others for name in (base, unbound(base)))
            found = next(filter(None, map(self.project.base_family, names)), "")
            self.families[owner] = found or self._by_hooks(owner)
        return self.families[owner]

    def family_of(self, name: str) -> str:
        """Return the family of a class of the frameworks or of another file by its dotted name, or ""."""
        return family_of(name) or self.project.family(name)

    def _uses(self, package: re.Pattern[str]) -> bool:
        return any(map(package.match, self.index.imports.values()))

    def _by_hooks(self, owner: ClassNode) -> str:
        """What a class of unknown bases is, in a file that uses Lightning or by methods as only Lightning has them."""
        bases = {base for each in self.index.lineage(owner) for base in each.bases}
        is_known = all(base.startswith((f"{self.index.name}.", "object", "abc.", "typing.")) for base in bases)
        if is_known or _HOOKS.isdisjoint(owner.methods):
            return ""
        steps = (owner.methods[name] for name in _HOOKS & owner.methods.keys())
        is_like_it = any(each.arg == "batch_idx" for step in steps for each in step.parameters)
        is_lightning = self._uses(_LIGHTNING) or (is_like_it and not self._uses(_LIKE_LIGHTNING))
        return "lightning_module" if is_lightning else ""

    def believed(self, name: str, function: FunctionNode) -> str:
        """Return the family of a receiver that is only known by its name, or "".

        A trainer is Lightning's where the file imports that; a class without bases is none that a trainer drives.
        """
        family = named_family(name)
        if family != "trainer":
            return family
        if self._uses(_LIGHTNING):
            return "lightning_trainer"
        if function.owner is None:
            return family
        bases = (base for each in self.index.lineage(function.owner) for base in each.bases)
        is_plain = all(base.removeprefix(f"{self.index.name}.") in self.index.classes for base in bases)
        return "" if is_plain else family

    def read(self, key: Key, reader: FunctionNode) -> Value | None:
        """Return what is known under a key, and remember who has to be asked again when it changes."""
        self.readers.setdefault(key, set()).add(reader)
        return self.values.get(key)

    def tell(self, key: Key, value: Value) -> None:
        """Join a value to what is known."""
        value = _without_sources(value)
        known = self.values.get(key)
        joined = value if known is None else join(known, value)
        if joined != known:
            self.values[key] = joined
            self.stale |= self.readers.get(key, set())

    def tell_body(self, function: FunctionNode, body: tuple[Node, ...]) -> None:
        """Keep what a function does; its callers have to be asked again when that is new."""
        known = self.bodies.get(function, ())
        self.bodies[function] = body
        if shape(known) != shape(body):
            self.stale |= self.callers.get(function, set())

    def body(self, function: FunctionNode, reader: FunctionNode) -> tuple[Node, ...]:
        """Return what a function does, as far as it is known yet."""
        self.callers.setdefault(function, set()).add(reader)
        return self.bodies.get(function, ())


def _without_sources(value: Value, depth: int = 3) -> Value:
    """A value as other functions see it, whose collectives have other numbers."""
    if not depth or len(value.elements) > _MOST_PARTS:
        return value._replace(sources=frozenset(), elements=(), keys=())
    elements = tuple(_without_sources(each, depth - 1) for each in value.elements)
    return value._replace(sources=frozenset(), elements=elements)


def shape(body: tuple[Node, ...]) -> tuple[object, ...]:
    """Return what two rounds are compared by: kinds, labels and tests."""
    return tuple((type(node), _told(node), *map(shape, bodies(node))) for node in body)


def _told(node: Node) -> object:
    return node[0] if isinstance(node, Branch | Exit | Step) else ""


@dataclass
class Section:
    """A part of a function.

    Attributes:
        body: what happens there.
        exits: guards that were found in it and stay in force afterwards.
    """

    body: list[Node]
    exits: tuple[Guard, ...] = ()


class Language(NamedTuple):
    """What is done with each type of node.

    Attributes:
        expressions: returns the value of one.
        statements: interprets one, and returns how it ends, see ``State.run``.
        bind: gives a value to what an assignment names.
    """

    expressions: Mapping[type[ast.expr], Callable[[State, Any], Value]]
    statements: Mapping[type[ast.stmt], Callable[[State, Any], str]]
    bind: Callable[[State, ast.expr, Value], None]


class State:
    """The state of one function while it is interpreted."""

    def __init__(self, function: FunctionNode, facts: Facts, language: Language) -> None:
        self.language = language
        self.function = function
        self.facts = facts
        self.index = facts.index
        self.names: dict[str, Value] = {}
        self.assigned: set[str] = set()  # names that were given a value in the block at hand
        self.guards: tuple[Guard, ...] = ()
        self.block: list[Node] = []
        # Of the loops around: names of an item, what is run over, and what a loop changes in place for every item.
        self.turns: list[tuple[set[str], ast.expr, dict[str, Value]]] = []
        self.events: list[Event] = []
        self.latest: Event | None = None  # that was noted
        self.keeps_gradients = False  # within ``no_sync``, backward passes reduce nothing
        self.is_quick = False  # a loop's first round: it tells what the second begins with
        self.breaks: list[list[Value]] = []
        self.returns: Value | None = None
        self.returned: dict[int, tuple[ast.Return, Value]] = {}
        self.read: frozenset[int] = frozenset()
        self.shown: frozenset[int] = frozenset()
        self.named: frozenset[int] = frozenset()  # of collectives whose results have a name
        self.owned: frozenset[str] = frozenset()  # names of new tensors and lists that nothing else holds
        self.captured: set[str] = set()  # names that inner functions read, and those of the file
        self.gradless = False  # under torch.no_grad
        self.numbers: dict[int, int] = {}  # of nodes, so that both rounds of a loop name a call alike
        self.by_node: dict[tuple[int, str], int] = {}

    def value(self, node: ast.expr | None) -> Value:
        """Return what is known of an expression, and note what it does."""
        if node is None:
            return NONE_VALUE
        handler = self.language.expressions.get(type(node))
        if handler is not None:
            return handler(self, node)
        return combine([self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def run(self, body: Sequence[ast.stmt]) -> str:
        """Interpret statements; return how every way through them ends: with "return", "break", … or ""."""
        for statement in body:
            handler = self.language.statements.get(type(statement))
            end = handler(self, statement) if handler is not None else ""
            if end:
                return end
        return ""

    def bind(self, target: ast.expr, value: Value) -> None:
        """Give a value to a name, an attribute, or the parts of a tuple."""
        self.language.bind(self, target, value)

    def reason(self, node: Located) -> Reason:
        """Return a reason that begins at a node."""
        return Reason(node.lineno, self.index.text_of(node))

    def place(self, node: Located) -> Place:
        """Return the line of a node with its text."""
        return Place(self.index.path, node.lineno, self.index.text_of(node))

    @contextmanager
    def section(self, *guards: Guard) -> Iterator[Section]:
        """Within, places are reached only as the guards say, and what happens is put into a list of its own."""
        outer, block = self.guards, self.block
        section = Section([])
        self.guards, self.block = (*outer, *guards), section.body
        try:
            yield section
        finally:
            section.exits = self.guards[len(outer) + len(guards) :]
            self.guards, self.block = outer, block

    @contextmanager
    def assigning(self) -> Iterator[None]:
        """Within, only the names are told that are given a value there."""
        outer, self.assigned = self.assigned, set()
        try:
            yield
        finally:
            self.assigned |= outer

    def number(self, node: ast.AST) -> int:
        """Return the number of a call, the same each time it is interpreted."""
        return self.numbers.setdefault(id(node), len(self.numbers))

    def emit(self, effect: Effect, node: ast.expr, **what: object) -> Event:
        """Note an event; an earlier one of the same node is replaced, since a loop's second round knows more."""
        event = Event(effect, node, self.function, self.guards, number=self.number(node), **what)  # type: ignore[arg-type]
        self.latest = event
        key = (id(node), effect.kind)
        if key in self.by_node:
            self.events[self.by_node[key]] = event
        else:
            self.by_node[key] = len(self.events)
            self.events.append(event)
        return event

    def as_formula(self, value: Value, node: Located) -> Formula:
        """Return a value as a condition; what it is not known to be is an atom of its own text."""
        if value.formula is not None:
            return value.formula
        if value.constant is not None or value.family == "none":
            return TRUE if value.constant else FALSE
        if value.family == "world":
            return TRUE
        text = self.index.text_of(node)
        local = "" if text.startswith("self.") else self.function.name
        doubt = doubt_of(value, node, self.function)
        is_flag = value.family == "flag" and value.reason is not None and not value.reason.unseen
        is_proof = not value.is_rank or is_flag or value.family in OF_RANK or is_set_by_some(value)
        varying = value.varies if is_proof else UNKNOWN  # of what follows from the rank, all may answer alike
        return Atom(text, varying, text if isinstance(node, ast.Name) else "", local, value.reason, doubt)

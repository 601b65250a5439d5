"""One Python file: its tree, what its names stand for, its classes, and where its nodes are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from distlint.apis import UNBOUND, canonical, family_of
from distlint.facts import Facts
from distlint.text import Text

AnyT = TypeVar("AnyT")
NodeT = TypeVar("NodeT", bound=cst.CSTNode)
Function = cst.FunctionDef | cst.Lambda
Scope = cst.FunctionDef | cst.Lambda | cst.ClassDef | cst.Module
_SCOPES = (cst.FunctionDef, cst.Lambda, cst.ClassDef, cst.Module)
# Fields that hold no code but its spelling: blank space, brackets, commas.
_SPELLING = (
    "whitespace", "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "comma", "semicolon",
    "leading_lines", "lines_after", "colon", "equal", "dot", "first_line", "trailing_whitespace",
    "header", "footer", "indent", "encoding", "default_", "has_trailing", "asynchronous",
    "operator", "posonly_ind",
)  # fmt: skip


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold other nodes, the last one first."""
    names = [each.name for each in fields(kind) if not each.name.startswith(_SPELLING)]
    if kind is cst.FunctionDef:  # in the order of execution, which is that of the source
        names = ["decorators", "params", "returns", "body", "name"]
    if kind is cst.ClassDef:
        names = ["decorators", "bases", "keywords", "body", "name"]
    return tuple(reversed(names))


@cache
def _is_node(kind: type) -> bool:
    return issubclass(kind, cst.CSTNode)


@dataclass
class Class:
    """A class of the file.

    Attributes:
        node: its definition.
        kinds: what its bases make it: ``"lightning_module"``, ``"dataset"`` …
        methods: its own functions by name.
        inherited: names of functions that bases within the project have.
        attributes: what its methods assign to ``self.name``, by the name.
    """

    node: cst.ClassDef
    kinds: frozenset[str]
    methods: dict[str, cst.FunctionDef]
    inherited: frozenset[str]
    attributes: dict[str, list[cst.BaseExpression]] = field(default_factory=dict)

    def defines(self, method: str) -> bool:
        """Return whether the project has its own method of this name for the class."""
        return method in self.methods or method in self.inherited


class Assignment(NamedTuple):
    """What one statement assigns to one target."""

    statement: cst.Assign
    target: cst.BaseExpression
    value: cst.BaseExpression


class Source:
    """A parsed file.

    Args:
        text: of the file.
        path: how findings name it.
        facts: what is known of the project.

    Raises:
        libcst.ParserSyntaxError: the text is no Python.
    """

    def __init__(self, text: Text, path: str, facts: Facts) -> None:
        self.text = text
        self.path = path
        self.facts = facts
        self.module = cst.parse_module(text.text)
        self._nodes: list[cst.CSTNode] = []
        # By the identity of a node: its own hash is slow, and the tree keeps all of them alive.
        self._parents: dict[int, cst.CSTNode] = {}
        self._index: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._kinds: defaultdict[type[cst.CSTNode], list[cst.CSTNode]] = defaultdict(list)
        self._known: dict[tuple[str, int], Any] = {}
        self._walk()

    def _walk(self) -> None:
        """Number the nodes that matter, parents first, in the order of the source."""
        nodes, index, parents, kinds, ends = (
            self._nodes, self._index, self._parents, self._kinds, self._ends
        )  # fmt: skip
        stack: list[cst.CSTNode | None] = [self.module]
        around: list[int] = []
        while stack:
            node = stack.pop()
            if node is None:
                ends[around.pop()] = len(nodes)
                continue
            kind = node.__class__
            identity = id(node)
            index[identity] = len(nodes)
            nodes.append(node)
            kinds[kind].append(node)
            around.append(identity)
            stack.append(None)
            for name in _fields(kind):
                value = getattr(node, name)
                if value.__class__ is tuple or value.__class__ is list:
                    for each in reversed(value):
                        parents[id(each)] = node
                        stack.append(each)
                elif _is_node(value.__class__):
                    parents[id(value)] = node
                    stack.append(value)

    # The tree

    def nodes(self, kind: type[NodeT]) -> Sequence[NodeT]:
        """Return all nodes of exactly this kind, in order."""
        return cast("list[NodeT]", self._kinds[kind])

    def below(self, node: cst.CSTNode, *kinds: type[NodeT]) -> Iterator[NodeT]:
        """Yield the nodes of these kinds that are inside of a node, in order."""
        return self._between(self._index[id(node)] + 1, self._ends[id(node)], kinds)

    def inside(self, node: cst.CSTNode, *kinds: type[NodeT]) -> Iterator[NodeT]:
        """Yield the nodes of these kinds among a node and what is inside of it, in order."""
        return self._between(self._index[id(node)], self._ends[id(node)], kinds)

    def _between(self, first: int, end: int, kinds: tuple[type[NodeT], ...]) -> Iterator[NodeT]:
        nodes = cast("list[NodeT]", self._nodes[first:end])
        if len(kinds) > 1:
            return (each for each in nodes if type(each) in kinds)
        (kind,) = kinds
        return (each for each in nodes if type(each) is kind)

    def own(self, scope: Scope, kind: type[NodeT]) -> Iterator[NodeT]:
        """Yield the nodes below a function, class or module that are in no scope inside of it."""
        return (each for each in self.below(scope, kind) if self.scope(each) is scope)

    def order(self, node: cst.CSTNode) -> int:
        """Return the number of a node in the order of the source."""
        return self._index[id(node)]

    def is_within(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Return whether a node is another one, or inside of it."""
        return self._index[id(outer)] <= self._index[id(node)] < self._ends[id(outer)]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return what a node is directly in."""
        return self._parents.get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node is in, the nearest first."""
        current = self._parents.get(id(node))
        while current is not None:
            yield current
            current = self._parents.get(id(current))

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the function, class or module that a node runs in."""
        below = node
        for each in self.ancestors(node):
            if isinstance(each, cst.Module):
                break
            in_body = isinstance(each, _SCOPES) and below is each.body
            if in_body or (isinstance(each, cst.Lambda | cst.FunctionDef) and below is each.params):
                return cast("Scope", each)
            below = each
        return self.module

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the function that a node runs in; lambdas are part of theirs."""
        scope = self.scope(node)
        while isinstance(scope, cst.Lambda):
            scope = self.scope(scope)
        return scope if isinstance(scope, cst.FunctionDef) else None

    def home(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function that a node runs in, or the module."""
        return self.function(node) or self.module

    def class_of(self, node: cst.CSTNode) -> Class | None:
        """Return the class whose body a node is in, through functions inside of methods."""
        for each in self.ancestors(node):
            if isinstance(each, cst.ClassDef):
                return self.classes.get(each)
        return None

    def kept(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return what the methods of the class assign to ``self.x``, where the node is that."""
        owner, name = self.class_of(node), self_attribute(node)
        return owner.attributes.get(name, []) if owner is not None else []

    def contexts(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """Yield what the ``with`` statements around a node enter."""
        around = (each for each in self.ancestors(node) if isinstance(each, cst.With))
        return (item.item for each in around for item in each.items)

    def method(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the method of a class that a node is in, through functions inside of it."""
        found = None
        for each in self.ancestors(node):
            if isinstance(each, cst.ClassDef):
                return found
            if isinstance(each, cst.FunctionDef):
                found = each
        return None

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the simple or compound statement around a node, the node itself included."""
        for each in (node, *self.ancestors(node)):
            if isinstance(each, cst.BaseStatement):
                return each
        return node

    def calls(self, node: cst.CSTNode, *written: str) -> Iterator[cst.Call]:
        """Yield the calls inside of a node whose function is written in one of these ways."""
        return (each for each in self.below(node, cst.Call) if dotted(each.func) in written)

    def callers(self, method: cst.FunctionDef) -> list[str]:
        """Return the names of the methods of a class that call another one of it."""
        owner, called = self.class_of(method), f"self.{method.name.value}"
        listed = owner.methods.values() if owner is not None else ()
        return [each.name.value for each in listed if any(self.calls(each, called))]

    def returned(self, function: cst.FunctionDef) -> cst.BaseExpression | None:
        """Return what the one ``return`` of a function gives; None where there are several."""
        returns = list(self.own(function, cst.Return))
        return returns[0].value if len(returns) == 1 else None

    def once(self, what: str, node: cst.CSTNode, make: Callable[[], AnyT]) -> AnyT:
        """Return what ``make`` returns, which is called once for each node and question."""
        key = (what, id(node))
        if key not in self._known:
            self._known[key] = make()
        return cast("AnyT", self._known[key])

    def assignments(self, node: cst.CSTNode) -> Iterator[Assignment]:
        """Yield what the statements inside of a node assign to what."""
        for assign in self.below(node, cst.Assign):
            for each in assign.targets:
                for left, right in pairs(each.target, assign.value):
                    yield Assignment(assign, left, right)

    def assigned(self, scope: Scope) -> dict[str, list[Assignment]]:
        """Return what the statements below a scope assign to plain names, by the name."""
        return self.once("assigned", scope, lambda: self._assigned(scope))

    def _assigned(self, scope: Scope) -> dict[str, list[Assignment]]:
        found: dict[str, list[Assignment]] = {}
        for each in self.assignments(scope):
            if isinstance(each.target, cst.Name):
                found.setdefault(each.target.value, []).append(each)
        return found

    # Names

    @cached_property
    def imports(self) -> dict[str, str]:
        """The names that imports bind, with what they stand for, wherever the imports are."""
        found: dict[str, str] = {}
        for each in self.nodes(cst.Import):
            for alias in each.names:
                full = dotted(alias.name)
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    found[alias.asname.name.value] = full
                else:
                    root = full.partition(".")[0]
                    found[root] = root
        for origin in self.nodes(cst.ImportFrom):
            package = "." * len(origin.relative)
            package += dotted(origin.module) if origin.module is not None else ""
            for alias in origin.names if not isinstance(origin.names, cst.ImportStar) else ():
                name = dotted(alias.name)
                bound = alias.asname.name if alias.asname is not None else None
                key = bound.value if isinstance(bound, cst.Name) else name
                found[key] = f"{package}.{name}" if package.strip(".") else package + name
        return found

    @cached_property
    def _own_names(self) -> frozenset[str]:
        """Functions and classes of the module itself, and what else its statements bind."""
        classes = {
            node.name.value
            for node in self.nodes(cst.ClassDef)
            if isinstance(self.scope(node), cst.Module)
        }
        bound = {
            target.target.value
            for target in self.nodes(cst.AssignTarget)
            if isinstance(target.target, cst.Name)
        }
        return frozenset(self.functions.keys() | classes | (bound - self.imports.keys()))

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """The functions of the module itself, by name."""
        return {
            node.name.value: node
            for node in self.nodes(cst.FunctionDef)
            if isinstance(self.scope(node), cst.Module)
        }

    def name(self, node: cst.CSTNode | None) -> str:
        """Return the qualified name of an expression, as the tables of ``apis`` know it.

        ``dist.barrier`` is ``"torch.distributed.barrier"``; what nothing in the file binds is as it
        is written, ``"self.log"``; what is no dotted name is ``""``.
        """
        written = dotted(node)
        if not written or node is None:
            return ""
        head, dot, rest = written.partition(".")
        if head in ("self", "cls") or head in self._own_names or self._is_parameter(node, head):
            return written
        full = self.imports.get(head) or UNBOUND.get(head, head)
        return canonical(full + dot + rest)

    def _is_parameter(self, node: cst.CSTNode, name: str) -> bool:
        if name not in self.imports and name not in UNBOUND:
            return False
        scopes = (each for each in self.ancestors(node) if isinstance(each, cst.FunctionDef))
        return any(name in parameters(scope) for scope in scopes)

    @cached_property
    def made(self) -> dict[str, str]:
        """Variables and attributes that one call makes, with the name of what is called."""
        found: dict[str, str] = {}
        for assign in self.nodes(cst.Assign):
            if not isinstance(assign.value, cst.Call):
                continue
            for target in (each.target for each in assign.targets):
                made: cst.BaseExpression = target
                if isinstance(target, cst.Tuple) and target.elements:
                    made = target.elements[0].value  # engine, optimizer, … = initialize(…)
                found[dotted(made)] = self.name(assign.value.func)
        return found

    # Classes

    @cached_property
    def classes(self) -> dict[cst.ClassDef, Class]:
        """The classes of the file."""
        by_name = {node.name.value: node for node in self.nodes(cst.ClassDef)}
        return {node: self._class(node, by_name) for node in self.nodes(cst.ClassDef)}

    def kinds(self, name: str) -> frozenset[str]:
        """Return what a class of the file or the project is, by the name that the file uses."""
        own = (found for node, found in self.classes.items() if node.name.value == name)
        found = next(own, None)
        return found.kinds if found is not None else self.facts.base(name).kinds

    def _class(self, node: cst.ClassDef, by_name: dict[str, cst.ClassDef]) -> Class:
        kinds: set[str] = set()
        inherited: set[str] = set()
        own: dict[str, cst.FunctionDef] = {}
        todo, done = [node], {node}
        while todo:
            current = todo.pop()
            for method in methods(current):
                own.setdefault(method.name.value, method)
            for base in (argument.value for argument in current.bases):
                name = self.name(base.value if isinstance(base, cst.Subscript) else base)
                local = by_name.get(name)
                if local is not None and local not in done:
                    todo.append(local)
                    done.add(local)
                elif local is None:
                    known = self.facts.base(name)
                    kinds |= known.kinds | ({family_of(name)} - {""})
                    inherited |= known.methods
        if "lightning_module" in kinds:
            kinds.add("module")
        return Class(node, frozenset(kinds), own, frozenset(inherited), self._attributes(done))

    def _attributes(self, nodes: set[cst.ClassDef]) -> dict[str, list[cst.BaseExpression]]:
        """Return what the methods of classes assign to ``self.name``, by the name."""
        found: dict[str, list[cst.BaseExpression]] = {}
        for node in sorted(nodes, key=self.order):
            given = [(each.target, each.value) for each in self.assignments(node)]
            annotated = self.below(node, cst.AnnAssign)
            given += [(each.target, each.value) for each in annotated if each.value is not None]
            for target, value in given:
                name = self_attribute(target)
                if name:
                    found.setdefault(name, []).append(value)
        return found

    # Places

    @cached_property
    def is_exact(self) -> bool:
        """Whether positions hold: the tree drops a form feed before a statement."""
        return self.module.code == self.text.text

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, CodeRange]:
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        return cast("dict[cst.CSTNode, CodeRange]", wrapper.resolve(PositionProvider))

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Return where a node is: lines from 1, columns from 0."""
        return self._positions[node]

    def line(self, node: cst.CSTNode) -> int:
        """Return the first line of a node."""
        return self.position(node).start.line

    def code(self, node: cst.CSTNode) -> str:
        """Return the source of a node on one line."""
        return " ".join(self.module.code_for_node(node).split())


def dotted(node: cst.CSTNode | None) -> str:
    """Return ``a.b.c`` of a name or attributes of one, or ``""``."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    return ".".join([node.value, *reversed(parts)])


def last(node: cst.CSTNode | None) -> str:
    """Return the last identifier of a name or an attribute, also of ``f(x).name``, or ``""``."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def object_of(call: cst.Call) -> cst.BaseExpression | None:
    """Return ``x`` of ``x.method(…)``, or None."""
    return call.func.value if isinstance(call.func, cst.Attribute) else None


def self_attribute(node: cst.CSTNode | None) -> str:
    """Return ``name`` of ``self.name``, or ``""``."""
    written = dotted(node)
    name = written.removeprefix("self.")
    return name if name != written and "." not in name else ""


def methods(node: cst.ClassDef) -> Iterator[cst.FunctionDef]:
    """Yield the functions of a class itself, those under a test included."""
    todo: list[cst.CSTNode] = list(reversed(node.body.body))
    while todo:
        each = todo.pop()
        if isinstance(each, cst.FunctionDef):
            yield each
        elif isinstance(each, cst.If):
            todo += [*reversed(each.body.body)]


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, in order."""
    given = function.params
    listed = [*given.posonly_params, *given.params]
    listed += [given.star_arg] if isinstance(given.star_arg, cst.Param) else []
    listed += [*given.kwonly_params, *([given.star_kwarg] if given.star_kwarg is not None else [])]
    return [each.name.value for each in listed]


def decorators(function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """Yield what decorates a function, without the arguments of a call."""
    for each in function.decorators:
        called = each.decorator
        yield called.func if isinstance(called, cst.Call) else called


def keyword(call: cst.Call, *names: str) -> cst.BaseExpression | None:
    """Return the value of an argument that is given by one of these names."""
    for each in call.args:
        if each.keyword is not None and each.keyword.value in names:
            return each.value
    return None


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the arguments that are given by position, up to the first ``*args``."""
    found: list[cst.BaseExpression] = []
    for each in call.args:
        if each.star == "*":
            break
        if each.keyword is None:
            found.append(each.value)
    return found


def argument(call: cst.Call, index: int, *names: str) -> cst.BaseExpression | None:
    """Return an argument by position, or else by name."""
    given = positional(call)
    return given[index] if index < len(given) else keyword(call, *names)


def has_spread(call: cst.Call) -> bool:
    """Return whether a call is given ``**options`` that cannot be seen."""
    return any(each.star == "**" for each in call.args)


def string(node: cst.CSTNode | None) -> str | None:
    """Return the text of a constant string, or the constant parts of another; else None."""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    if isinstance(node, cst.ConcatenatedString):
        left, right = string(node.left), string(node.right)
        return left + right if left is not None and right is not None else None
    if isinstance(node, cst.FormattedString):
        parts = node.parts
        return "".join(p.value for p in parts if isinstance(p, cst.FormattedStringText))
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        left, right = string(node.left), string(node.right)
        return None if left is None and right is None else (left or "") + (right or "")
    return None


def is_true(node: cst.CSTNode | None) -> bool:
    """Return whether an expression is the constant ``True``."""
    return isinstance(node, cst.Name) and node.value == "True"


def is_false(node: cst.CSTNode | None) -> bool:
    """Return whether an expression is the constant ``False``."""
    return isinstance(node, cst.Name) and node.value == "False"


def number(node: cst.CSTNode | None) -> float | None:
    """Return the value of a constant number, also a negative one, or None."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = number(node.expression)
        return None if inner is None else -inner
    if isinstance(node, cst.Integer | cst.Float):
        return float(node.evaluated_value)
    return None


def pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what is assigned to what; the parts of two tuples of the same length one by one."""
    sequences = cst.Tuple | cst.List
    if isinstance(target, sequences) and isinstance(value, sequences):
        same = len(target.elements) == len(value.elements)
        starred = any(
            isinstance(each, cst.StarredElement) for each in (*target.elements, *value.elements)
        )
        if same and not starred:
            for left, right in zip(target.elements, value.elements, strict=True):
                yield from pairs(left.value, right.value)
            return
    yield target, value


def block(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Return the statements of a block, or of a compound statement's body."""
    body = getattr(node, "body", ())
    if isinstance(body, cst.BaseSuite):
        body = body.body
    return cast("Sequence[cst.CSTNode]", body)

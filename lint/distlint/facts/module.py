"""One walk over a module; everything that rules ask is answered from what it collects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

import libcst as cst

from distlint.facts.classes import ClassFacts, collect_classes
from distlint.facts.factories import Place
from distlint.facts.flow import Definition
from distlint.facts.invariance import is_gathering
from distlint.facts.known import DDP_CLASSES
from distlint.facts.project import NO_PROJECT, Project
from distlint.facts.scopes import BINDING_KINDS, LOCAL, Scope, bind_params, bind_statement, resolve
from distlint.facts.tree import children, is_name, walk, walk_scope
from distlint.modules import absolute_name, module_key

_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)
_SCOPES = (
    cst.FunctionDef,
    cst.ClassDef,
    cst.Lambda,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
)
_INDEXED = (cst.Call, cst.ClassDef, cst.FunctionDef, cst.Lambda, cst.Assign, cst.AnnAssign)


class ModuleFacts:
    """A parsed module with parents, scopes and indexes.

    Args:
        module: the tree.
        path: the file's name, for messages alone.
        project: what is known of other files, and of the user's own code.
    """

    def __init__(self, module: cst.Module, path: str = "<string>", project: Project = NO_PROJECT) -> None:
        self.module = module
        self.path = path
        self.project = project
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.places: dict[cst.CSTNode, Place] = {}
        self.reached: dict[cst.Name, list[Definition]] = {}  # by ``flow.reaching``
        self._scopes: dict[cst.CSTNode, Scope] = {}
        self._index: dict[type[cst.CSTNode], list[cst.CSTNode]] = {kind: [] for kind in _INDEXED}
        self._walk()

    def _walk(self) -> None:
        root = Scope(self.module, None)
        self._scopes[self.module] = root
        stack: list[tuple[cst.CSTNode, Scope]] = [(self.module, root)]
        parents, index = self.parents, self._index
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            if kind in index:
                index[kind].append(node)
            if kind in BINDING_KINDS:
                bind_statement(scope, node)
            if kind in _SCOPES:
                scope = self._open(node, scope)
            below = children(node)
            for child in below:
                parents[child] = node
            below.reverse()
            stack.extend((child, scope) for child in below)

    def _open(self, node: cst.CSTNode, outer: Scope) -> Scope:
        scope = Scope(node, outer)
        self._scopes[node] = scope
        if isinstance(node, cst.FunctionDef | cst.Lambda):
            bind_params(scope, node.params)
        return scope

    def nodes(self, kind: type[_NodeT]) -> list[_NodeT]:
        """All nodes of one indexed kind, in source order."""
        return self._index[kind]  # type: ignore[return-value]

    @cached_property
    def order(self) -> dict[cst.CSTNode, int]:
        """Every node's place in the source, as a running number."""
        return {node: number for number, node in enumerate(walk(self.module))}

    @cached_property
    def classes(self) -> dict[cst.ClassDef, ClassFacts]:
        """Kinds, methods and attributes of every class in the module."""
        return collect_classes(self)

    @cached_property
    def key(self) -> str:
        """What full names in this module begin with."""
        return module_key(self.path)

    def full_name(self, definition: ClassFacts | cst.FunctionDef) -> str:
        """What the project calls a class or function of this module."""
        node = definition.node if isinstance(definition, ClassFacts) else definition
        return f"{self.key}.{self.own_scope(node).qualname()}"

    @cached_property
    def wraps_model(self) -> bool:
        """Whether the module makes a ``DistributedDataParallel``, whose backward pass reduces the gradients."""
        return any(self.resolve(call.func) in DDP_CLASSES for call in self.nodes(cst.Call))

    @cached_property
    def gathering(self) -> list[cst.Call]:
        """Every call that brings the ranks' values together."""
        return [call for call in self.nodes(cst.Call) if is_gathering(self, call)]

    def imports(self, root: str) -> bool:
        """Whether the module imports a package, or something from it."""
        return any(target.partition(".")[0] == root for target in self.import_targets())

    def import_targets(self) -> Iterator[str]:
        """Full names of what the module imports at its top level."""
        return (each.target for found in self._scopes[self.module].bindings.values() for each in found)

    def scope(self, node: cst.CSTNode) -> Scope:
        """The scope that ``node`` is evaluated in."""
        current = self.parents.get(node)
        while current is not None:
            if current in self._scopes:
                return self._scopes[current]
            current = self.parents.get(current)
        return self._scopes[self.module]

    def own_scope(self, node: cst.CSTNode) -> Scope:
        """The scope that a function, class or the module opens."""
        return self._scopes[node]

    def resolve(self, node: cst.CSTNode | None) -> str | None:
        """The full dotted name an expression stands for, or None."""
        return None if node is None else resolve(node, self.scope(node))

    def absolute_name(self, node: cst.CSTNode | None) -> str | None:
        """The full name that an expression has in the whole project, or None."""
        name = self.resolve(node)
        return None if name is None else self.absolute(name)

    def absolute(self, name: str) -> str:
        """The name that a resolved one has in the whole project: names of this file and relative imports are told."""
        return f"{self.key}.{name.removeprefix(LOCAL)}" if name.startswith(LOCAL) else absolute_name(self.key, name)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Parents, from the nearest to the module."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The nearest function around ``node``."""
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return above
        return None

    def method_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The method around ``node``, functions inside of it passed over."""
        method = self.function_of(node) if not isinstance(node, cst.FunctionDef) else node
        while method is not None and self.class_of(method) is None:
            method = self.function_of(method)
        return method

    def class_of(self, method: cst.FunctionDef) -> ClassFacts | None:
        """The class whose method this is; None for a plain or local function."""
        for above in self.ancestors(method):
            if isinstance(above, cst.ClassDef):
                return self.classes[above]
            if isinstance(above, cst.FunctionDef | cst.Lambda):
                return None
        return None

    def owner(self, node: cst.CSTNode) -> ClassFacts | None:
        """The class in one of whose methods ``node`` stands."""
        method = self.method_of(node)
        return None if method is None else self.class_of(method)

    def self_attribute(self, node: cst.CSTNode | None) -> str | None:
        """``x`` when the expression is ``self.x`` in a method."""
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
            return None
        method = self.method_of(node)
        params = method.params.params if method is not None else ()
        if method is None:
            return node.attr.value if is_name(node.value, "self") else None
        return node.attr.value if params and is_name(node.value, params[0].name.value) else None

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The simple or compound statement around ``node``."""
        for above in (node, *self.ancestors(node)):
            if isinstance(above, cst.BaseStatement):
                return above
        return node

    def code(self, node: cst.CSTNode) -> str:
        """The source of an expression, on one line."""
        return " ".join(self.module.code_for_node(node).split())

    def local_function(self, call: cst.Call) -> cst.FunctionDef | None:
        """The function or method of this module that a call reaches, when only one can be meant."""
        func = call.func
        if isinstance(func, cst.Name):
            bindings = self.scope(func).lookup(func.value)
            if len(bindings) == 1 and isinstance(bindings[0].node, cst.FunctionDef):
                return bindings[0].node
            return None
        name = self.self_attribute(func)
        owner = self.owner(call)
        return owner.method(name) if name is not None and owner is not None else None

    def returns(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        """The values that a function returns."""
        found = (node for node in walk_scope(function) if isinstance(node, cst.Return))
        return [node.value for node in found if node.value is not None]

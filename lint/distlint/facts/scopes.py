"""Which import or assignment a name stands for. Our own resolver: small, and fast enough for every file."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from distlint.facts.tree import children, dotted

# What a name means in a snippet that shows no imports. In a whole file such a name would be an error anyway.
CONVENTIONAL = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "dist": "torch.distributed",
    "np": "numpy",
    "math": "math",
    "pl": "lightning.pytorch",
    "L": "lightning",
    "LightningModule": "lightning.pytorch.LightningModule",
    "LightningDataModule": "lightning.pytorch.LightningDataModule",
    "Callback": "lightning.pytorch.Callback",
    "LightningLite": "lightning.pytorch.lite.LightningLite",
    "Trainer": "lightning.pytorch.Trainer",
    "Dataset": "torch.utils.data.Dataset",
    "DataLoader": "torch.utils.data.DataLoader",
    "Accelerator": "accelerate.Accelerator",
    "torchmetrics": "torchmetrics",
    "distmetrics": "distmetrics",
    "rank_zero_only": "lightning.pytorch.utilities.rank_zero_only",
}
LOCAL = "<here>."
_BUILTINS = frozenset(dir(builtins))


@dataclass
class Binding:
    """One way in which a name gets its value.

    Attributes:
        kind: import, value, param, function, class or other.
        node: the import, definition or parameter; for a value the target.
        value: the expression assigned, if there is one.
        steps: how the value is taken apart: an index for unpacking, ``"iter"`` for a loop.
        target: for an import, the full dotted name.
    """

    kind: str
    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    steps: tuple[int | str, ...] = ()
    target: str = ""


@dataclass
class Scope:
    """The names of a module, class, function, lambda or comprehension."""

    node: cst.CSTNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)

    def bind(self, name: str, binding: Binding) -> None:
        """Add one way in which ``name`` gets its value."""
        self.bindings.setdefault(name, []).append(binding)

    def lookup(self, name: str) -> list[Binding]:
        """The bindings of the nearest scope that has the name; classes are seen from their own body alone."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, cst.ClassDef)):
                return scope.bindings[name]
            scope = scope.parent
        return []

    def function(self) -> Scope | None:
        """The nearest enclosing function, if any."""
        scope: Scope | None = self
        while scope is not None and not isinstance(scope.node, cst.FunctionDef):
            scope = scope.parent
        return scope

    def qualname(self) -> str:
        """Dotted names of the classes and functions around, without the module."""
        parts: list[str] = []
        scope: Scope | None = self
        while scope is not None:
            if isinstance(scope.node, cst.FunctionDef | cst.ClassDef):
                parts.append(scope.node.name.value)
            scope = scope.parent
        return ".".join(reversed(parts))


def target_names(
    target: cst.CSTNode, steps: tuple[int | str, ...] = ()
) -> Iterator[tuple[cst.Name, tuple[int | str, ...]]]:
    """Every plain name that an assignment target binds, with the way to its value."""
    if isinstance(target, cst.Name):
        yield target, steps
    elif isinstance(target, cst.Tuple | cst.List):
        starred = any(isinstance(element, cst.StarredElement) for element in target.elements)
        for index, element in enumerate(target.elements):
            yield from target_names(element.value, (*steps, "unknown" if starred else index))


def import_bindings(node: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, Binding]]:
    """The names that an import statement binds."""
    prefix = ""
    if isinstance(node, cst.ImportFrom):
        prefix = "." * len(node.relative) + (f"{dotted(node.module)}." if node.module is not None else "")
        if isinstance(node.names, cst.ImportStar):
            return
    for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
        full = dotted(alias.name) or ""
        if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
            yield alias.asname.name.value, Binding("import", node, target=prefix + full)
        elif isinstance(node, cst.Import):
            root = full.partition(".")[0]
            yield root, Binding("import", node, target=root)
        else:
            yield full, Binding("import", node, target=prefix + full)


BINDING_KINDS = frozenset(
    {
        cst.AnnAssign,
        cst.Assign,
        cst.AugAssign,
        cst.ClassDef,
        cst.CompFor,
        cst.ExceptHandler,
        cst.ExceptStarHandler,
        cst.For,
        cst.FunctionDef,
        cst.Import,
        cst.ImportFrom,
        cst.NamedExpr,
        cst.WithItem,
    }
)


def bind_statement(scope: Scope, node: cst.CSTNode) -> None:
    """Enter into ``scope`` what one node, of one of the kinds above, binds."""
    if isinstance(node, cst.Import | cst.ImportFrom):
        for name, binding in import_bindings(node):
            scope.bind(name, binding)
    elif isinstance(node, cst.Assign):
        for target in node.targets:
            _bind_target(scope, target.target, node.value)
    elif isinstance(node, cst.AnnAssign):
        if node.value is not None:
            _bind_target(scope, node.target, node.value)
    elif isinstance(node, cst.NamedExpr):
        _bind_target(scope, node.target, node.value)
    elif isinstance(node, cst.For | cst.CompFor):
        _bind_target(scope, node.target, node.iter, ("iter",))
    elif isinstance(node, cst.AugAssign):
        _bind_other(scope, node.target)
    elif isinstance(node, cst.WithItem):
        _bind_other(scope, node.asname.name if node.asname is not None else None)
    elif isinstance(node, cst.ExceptHandler | cst.ExceptStarHandler):
        _bind_other(scope, node.name.name if node.name is not None else None)
    elif isinstance(node, cst.FunctionDef | cst.ClassDef):
        kind = "function" if isinstance(node, cst.FunctionDef) else "class"
        scope.bind(node.name.value, Binding(kind, node))


def _bind_other(scope: Scope, target: cst.CSTNode | None) -> None:
    for name, _ in target_names(target) if target is not None else ():
        scope.bind(name.value, Binding("other", name))


def _bind_target(
    scope: Scope, target: cst.CSTNode, value: cst.BaseExpression, steps: tuple[int | str, ...] = ()
) -> None:
    for name, path in target_names(target, steps):
        scope.bind(name.value, Binding("value", name, value, path))


def bind_params(scope: Scope, params: cst.Parameters) -> None:
    """Enter the parameters of a function or lambda."""
    for param in children(params):
        if isinstance(param, cst.Param):
            scope.bind(param.name.value, Binding("param", param, param.default))


def resolve(node: cst.CSTNode | None, scope: Scope, depth: int = 0) -> str | None:
    """The full dotted name that an expression stands for, or None when that cannot be known.

    Names defined in this module come back with the prefix ``<here>.``, relative imports with their dots.
    """
    if depth > 4:
        return None
    if isinstance(node, cst.Attribute):
        base = resolve(node.value, scope, depth)
        return None if base is None else f"{base}.{node.attr.value}"
    if not isinstance(node, cst.Name):
        return None
    bindings = scope.lookup(node.value)
    if not bindings:
        is_builtin = node.value in _BUILTINS  # what else is unbound comes from a star import
        return CONVENTIONAL.get(node.value, f"builtins.{node.value}" if is_builtin else None)
    imports = [binding for binding in bindings if binding.kind == "import"]
    if imports and all(binding.kind == "import" or _is_fallback(binding) for binding in bindings):
        return imports[0].target
    if len(bindings) != 1:
        return None
    return _resolve_one(node.value, bindings[0], scope, depth)


def _is_fallback(binding: Binding) -> bool:
    """``except ImportError: name = None``."""
    return isinstance(binding.value, cst.Name) and binding.value.value in ("None", "False")


def _resolve_one(name: str, binding: Binding, scope: Scope, depth: int) -> str | None:
    if binding.kind in ("function", "class"):
        return LOCAL + name
    if binding.kind == "value" and not binding.steps and isinstance(binding.value, cst.Name | cst.Attribute):
        if dotted(binding.value) == name:
            return None
        return resolve(binding.value, scope, depth + 1)
    return None

"""What moves with a module: its parameters, its buffers, and modules with such of their own."""

from __future__ import annotations

import ast

from distlint.analysis.places import OnDevice, Places, has_weights
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, last_name


def registered(index: SyntaxIndex, owner: ClassNode) -> tuple[Places, set[str]]:
    """Return where the registered tensors of a class are, as ``self.name``, and its modules with weights."""
    tensors: Places = {}
    modules: set[str] = set()
    for each in index.lineage(owner):
        for method in each.methods.values():
            for node in ast.walk(method.node):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    _read_assign(index, method, node, node.value, tensors, modules)
                elif isinstance(node, ast.Call) and last_name(node.func) == "register_buffer" and node.args:
                    first = node.args[0]
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        tensors[f"self.{first.value}"] = OnDevice(node)
    return tensors, modules


def _read_assign(
    index: SyntaxIndex,
    method: FunctionNode,
    node: ast.Assign,
    value: ast.Call,
    tensors: Places,
    modules: set[str],
) -> None:
    names = [index.text_of(target) for target in node.targets if isinstance(target, ast.Attribute)]
    made = index.qualify(value.func, method)
    for name in names:
        if made in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            tensors[name] = OnDevice(value)
        elif has_weights(made):
            modules.add(name.removeprefix("self."))


def moves_itself(owner: ClassNode) -> bool:
    """True if a class has a say in how it is moved."""
    return not {"_apply", "cuda", "to"}.isdisjoint(owner.methods)

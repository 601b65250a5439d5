"""What moves with a module: its parameters, its buffers, and modules with such of their own."""

from __future__ import annotations

import ast

from distlint.analysis.places import OnDevice, Places
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, last_name

_WITH_WEIGHTS = (
    "Attention",
    "BatchNorm",
    "Bilinear",
    "Conv",
    "Embedding",
    "GRU",
    "LSTM",
    "LayerNorm",
    "Linear",
    "RNN",
    "Transformer",
)
# What only tensors have: a parameter of which this is asked is one.
_ONLY_TENSORS = frozenset(
    {"detach", "device", "flatten", "is_cuda", "new_ones", "new_tensor", "new_zeros", "permute", "size", "transpose"}
    | {"unsqueeze", "view"}
)


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


def tensors_given(index: SyntaxIndex, function: FunctionNode) -> Places:
    """Return the parameters that are tensors, by their annotation or by what is asked of them; and a step's batch."""
    found: Places = {}
    batch = function.parameters[1:2] if function.name.endswith("_step") else []
    for parameter in function.parameters:
        name = ast.Name(parameter.arg, ast.Load(), lineno=parameter.lineno, col_offset=parameter.col_offset)
        is_said = parameter.annotation is not None and index.text_of(parameter.annotation).endswith("Tensor")
        if is_said or parameter in batch:
            found[parameter.arg] = OnDevice(name)
    names = {parameter.arg for parameter in function.parameters[1:]}
    for node in ast.walk(function.node):
        asked = node.value if isinstance(node, ast.Attribute) and node.attr in _ONLY_TENSORS else None
        if isinstance(asked, ast.Name) and asked.id in names:
            found[asked.id] = OnDevice(asked)
    return found


def has_weights(name: str) -> bool:
    """True if a qualified name is that of a module of torch with parameters."""
    module, _, last = name.rpartition(".")
    return module == "torch.nn" and any(word in last for word in _WITH_WEIGHTS)

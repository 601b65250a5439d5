"""Where objects go: calls that are given a device, and the classes whose objects a trainer moves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distlint.analysis.events import Event
from distlint.analysis.hooks import takes_data
from distlint.analysis.module import Analysis
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, dotted, statements

_MOVED = frozenset({"callback", "data_module", "fabric", "lightning_module", "module"})
_MOVERS = frozenset({"cuda", "to", "transfer_batch_to_device", "_apply"})  # whose business devices are
_CUDA = re.compile(r"cuda(:\d+)?")
_ASKS_FOR_CUDA = re.compile(r"cuda|get_device|['\"]gpu['\"]", re.IGNORECASE)


def device_node(event: Event) -> ast.expr | None:
    """Return the device that a call is given."""
    is_mover = isinstance(event.node, ast.Call) and dotted_last(event.node.func) in ("cuda", "to")
    return event.argument_node(0 if is_mover else -1, "device")


def dotted_last(func: ast.expr) -> str:
    """Return the method that is called on anything, or ""."""
    return func.attr if isinstance(func, ast.Attribute) else ""


def hard_coded(event: Event) -> str:
    """Return how a call names the CUDA device that it is given, where that is written down; else ""."""
    method = dotted_last(event.node.func) if isinstance(event.node, ast.Call) else ""
    node = device_node(event)
    if node is None:
        return ".cuda()" if method == "cuda" else ""
    given = event.argument(0 if method in ("cuda", "to") else -1, "device")
    device = given.constant if given is not None and not isinstance(node, ast.Attribute) else None
    shown = ""
    if isinstance(device, str) and _CUDA.fullmatch(device):
        shown = f'"{device}"'
    elif method in ("cuda", "to") and type(device) is int:
        shown = str(device)
    elif method == "cuda" and isinstance(node, ast.Constant) and node.value is None:
        shown = "None"
    if not shown:
        return ""
    return f".{method}({shown})" if method in ("cuda", "to") else f"device={shown}"


def is_chosen(index: SyntaxIndex, event: Event) -> bool:
    """True if a place is reached by the answer to a question for CUDA: other devices go another way."""
    asked = (index.text_of(guard.node) for guard in event.guards if guard.kind != "with")
    entered = (index.text_of(guard.node) for guard in event.guards if guard.kind == "with")
    return any(map(_ASKS_FOR_CUDA.search, asked)) or any("cuda.device" in text for text in entered)


def method_around(function: FunctionNode) -> FunctionNode:
    """Return the method that a function stands in, or is."""
    while not function.is_method and function.parent is not None:
        function = function.parent
    return function


def family_of(analysis: Analysis, owner: ClassNode) -> str:
    """Return what a class is by its bases, in whatever file they are, or by its methods; or ""."""
    return analysis.family(owner) or analysis.project.family(f"{analysis.index.name}.{owner.name}")


def is_moved(analysis: Analysis, function: FunctionNode) -> bool:
    """True if a trainer may move the objects that a function is a method of; of hooks shown alone as well."""
    method = method_around(function)
    if method.owner is None:
        return takes_data(method.name) and [each.arg for each in method.parameters[:1]] == ["self"]
    family = family_of(analysis, method.owner)
    if family == "module" and analysis.project.is_launched and not analysis.is_placed(method.owner):
        return False
    return family in _MOVED and method.name not in _MOVERS


def is_seen_moved(analysis: Analysis, owner: ClassNode | None) -> bool:
    """True if a trainer, Fabric or Accelerate is seen to be given objects of a class."""
    return owner is not None and (family_of(analysis, owner) == "fabric" or analysis.is_placed(owner))


def has_own_device(analysis: Analysis, owner: ClassNode) -> bool:
    """True if a class says itself what ``device`` is: else it is the framework's."""
    lineage = list(analysis.index.lineage(owner))
    return any("device" in each.methods or (each, "device") in analysis.attributes for each in lineage)


def assigned_in(method: FunctionNode, *, to_self: bool) -> Iterator[ast.expr]:
    """What a method assigns as it is: to attributes alone, or to names as well."""
    for each in statements(method.node.body):
        if isinstance(each, ast.Assign):
            names = map(dotted, each.targets)
            yield from [each.value] if not to_self or any(name.startswith("self.") for name in names) else []

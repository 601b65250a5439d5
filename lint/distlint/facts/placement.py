"""Where a value lives: on the device of its module, on the CPU because nothing says otherwise, or on none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.classes import STEP_HOOKS, ClassFacts
from distlint.facts.factories import Place, made
from distlint.facts.flow import Definition, reaching
from distlint.facts.networks import keeps_device
from distlint.facts.submodules import is_receiver, is_submodule, registered_buffers
from distlint.facts.tree import is_name, keyword, positional, tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST = 20
_NUMBERS = (cst.BaseNumber, cst.BaseString, cst.SimpleString, cst.FormattedString)
_TORCH_TENSOR_VIEWS = frozenset({"T", "mT", "H", "data", "real", "imag", "grad"})
_PLAIN_ATTRIBUTES = frozenset({"shape", "device", "dtype", "ndim", "is_cuda", "requires_grad"})
_TENSOR_EVIDENCE = frozenset({"shape", "device", "size", "view", "unsqueeze", "permute", "transpose", "reshape", "dim"})
_PLAIN_CALLS = frozenset({"len", "int", "float", "bool", "str", "range", "isinstance", "max", "min", "round", "id"})
_SCALAR_WORDS = ("len", "idx", "index", "step", "epoch", "size", "num", "scale", "rate", "prob", "temperature")


def makes_fresh(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a call makes a tensor of rank 1 or more on the CPU, for want of a device."""
    return made(facts, call) is Place.FRESH


def place(facts: ModuleFacts, node: cst.BaseExpression | None, depth: int = 0) -> Place:
    """Where the value of an expression lives."""
    if node is None or depth > _DEEPEST:
        return Place.UNKNOWN
    found = facts.places.get(node)
    if found is None:
        found = facts.places[node] = _place(facts, node, depth)
    return found


def _place(facts: ModuleFacts, node: cst.BaseExpression, depth: int) -> Place:
    if isinstance(node, _NUMBERS):
        return Place.PLAIN
    if isinstance(node, cst.Name):
        return _of_name(facts, node, depth + 1)
    if isinstance(node, cst.Attribute):
        return _of_attribute(facts, node, depth + 1)
    if isinstance(node, cst.Subscript):
        return _of_subscript(facts, node, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        return together(place(facts, each, depth + 1) for each in (node.left, node.right))
    if isinstance(node, cst.UnaryOperation):
        return place(facts, node.expression, depth + 1)
    if isinstance(node, cst.Comparison):
        return together(
            place(facts, each, depth + 1) for each in (node.left, *(c.comparator for c in node.comparisons))
        )
    if isinstance(node, cst.IfExp):
        return _same(place(facts, each, depth + 1) for each in (node.body, node.orelse))
    if isinstance(node, cst.List | cst.Tuple):
        return together(place(facts, element.value, depth + 1) for element in node.elements)
    return _of_call(facts, node, depth + 1) if isinstance(node, cst.Call) else Place.UNKNOWN


def together(places: Iterable[Place]) -> Place:
    """Where the result of an operation lives, by its operands."""
    found = set(places)
    for decisive in (Place.DEVICE, Place.UNKNOWN, Place.FRESH):
        if decisive in found:
            return decisive
    return Place.PLAIN


def _same(places: Iterable[Place]) -> Place:
    found = set(places)
    return found.pop() if len(found) == 1 else Place.UNKNOWN


def _of_name(facts: ModuleFacts, node: cst.Name, depth: int) -> Place:
    if node.value in ("True", "False", "None"):
        return Place.PLAIN
    return _same(_of_definition(facts, each, depth) for each in reaching(facts, node))


def _of_definition(facts: ModuleFacts, definition: Definition, depth: int) -> Place:
    if isinstance(definition.node, cst.Param):
        return _of_parameter(facts, definition.node)
    found = place(facts, definition.value, depth)
    return found if not definition.steps or found is Place.DEVICE else Place.UNKNOWN


def _of_parameter(facts: ModuleFacts, param: cst.Param) -> Place:
    """What a hook or a method is given: tensors on the device, where the signature or the body says so."""
    function = facts.function_of(param)
    if function is None or function.name.value == "__init__":
        return _of_default(facts, param)
    if param.annotation is not None:
        is_tensor = "Tensor" in facts.code(param.annotation.annotation)
        return Place.DEVICE if is_tensor and not is_scalar_name(param.name.value) else Place.UNKNOWN
    hook = function.name.value
    order = [each.name.value for each in function.params.params]
    if (hook in STEP_HOOKS or hook == "forward") and order[1:2] == [param.name.value] and param.default is None:
        return Place.DEVICE
    is_used = param.default is None and not is_scalar_name(param.name.value) and _is_used_as_tensor(function, param)
    return Place.DEVICE if is_used else Place.UNKNOWN


def _of_default(facts: ModuleFacts, param: cst.Param) -> Place:
    """What a module is made from: numbers and settings, unless it is said to be more."""
    said = facts.code(param.annotation.annotation) if param.annotation is not None else ""
    return Place.UNKNOWN if any(word in said for word in ("Tensor", "Module", "ndarray")) else Place.PLAIN


def is_scalar_name(name: str) -> bool:
    """Whether a name is one of a number, a length or an index, rather than of a tensor of the model."""
    return any(word in name.lower() for word in _SCALAR_WORDS)


def _is_used_as_tensor(function: cst.FunctionDef, param: cst.Param) -> bool:
    for node in walk(function.body):
        if not isinstance(node, cst.Attribute) or node.attr.value not in _TENSOR_EVIDENCE:
            continue
        if is_name(node.value, param.name.value):
            return True
    return False


def _of_attribute(facts: ModuleFacts, node: cst.Attribute, depth: int) -> Place:
    name = facts.self_attribute(node)
    if name is not None:
        return _of_own(facts, facts.owner(node), name, depth)
    if node.attr.value in _PLAIN_ATTRIBUTES:
        return Place.PLAIN
    if node.attr.value in _TORCH_TENSOR_VIEWS:
        return place(facts, node.value, depth)
    return Place.PLAIN if (facts.resolve(node) or "").startswith(("torch.", "math.")) else Place.UNKNOWN


def _of_own(facts: ModuleFacts, owner: ClassFacts | None, name: str, depth: int) -> Place:
    """``self.x``: a parameter or buffer moves with its module."""
    if owner is None:
        return Place.UNKNOWN
    if name in registered_buffers(facts, owner):
        return Place.DEVICE
    values = owner.values(name)
    if any(isinstance(value, cst.Call) and tail(value.func) == "Parameter" for value in values):
        return Place.DEVICE
    if values and all(place(facts, value, depth + 2) is Place.PLAIN for value in values):
        return Place.PLAIN
    return Place.UNKNOWN


def _of_subscript(facts: ModuleFacts, node: cst.Subscript, depth: int) -> Place:
    found = place(facts, node.value, depth)
    return found if found is not Place.FRESH or only_adds_dimensions(node) else Place.UNKNOWN


def only_adds_dimensions(node: cst.Subscript) -> bool:
    """``x[None, :, 1:]``: no dimension is lost."""
    for element in node.slice:
        index = element.slice
        value = index.value if isinstance(index, cst.Index) else None
        if value is not None and not isinstance(value, cst.Ellipsis) and not _is_none(value):
            return False
    return True


def _is_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"


def _of_call(facts: ModuleFacts, node: cst.Call, depth: int) -> Place:
    new = made(facts, node)
    if new is not None:
        return _where_told(facts, node, new, depth)
    full, last = facts.resolve(node.func) or "", tail(node.func) or ""
    if (full.startswith("builtins.") and last in _PLAIN_CALLS) or full.startswith("math."):
        return Place.PLAIN
    if full.startswith("torch."):
        return _of_torch(facts, node, full, depth)
    if not isinstance(node.func, cst.Attribute):
        return Place.DEVICE if is_receiver(facts, node.func) else Place.UNKNOWN
    if is_submodule(facts, node.func):
        return Place.DEVICE
    if keeps_device(facts, node.func):
        given = {place(facts, value, depth) for value in operands(node)}
        return Place.DEVICE if Place.DEVICE in given else Place.UNKNOWN
    return _of_method(facts, node, node.func, depth)


def _where_told(facts: ModuleFacts, node: cst.Call, new: Place, depth: int) -> Place:
    """What a factory makes; beside ``x``, for ``device=x.device``, it is where ``x`` is."""
    device = keyword(node, "device")
    if new is not Place.DEVICE or not isinstance(device, cst.Attribute) or device.attr.value != "device":
        return new
    return Place.FRESH if place(facts, device.value, depth) is Place.FRESH else new


def _of_torch(facts: ModuleFacts, node: cst.Call, full: str, depth: int) -> Place:
    last = full.rpartition(".")[2]
    if last in names.FACTORIES or (not full.startswith("torch.nn.functional.") and full.count(".") > 1):
        return Place.UNKNOWN
    if keyword(node, "device") is not None:
        return Place.DEVICE
    found = together(place(facts, value, depth) for value in operands(node))
    keeps = last in names.KEEPS or last in names.MEETS or last.endswith("_like")
    return found if found is not Place.FRESH or keeps else Place.UNKNOWN


def operands(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """The arguments of a function of torch that may be tensors; lists are opened."""
    for arg in call.args:
        if arg.keyword is None or arg.keyword.value in ("input", "other", "tensors", "weight", "mask", "target"):
            if isinstance(arg.value, cst.List | cst.Tuple):
                yield from (element.value for element in arg.value.elements)
            else:
                yield arg.value


def _of_method(facts: ModuleFacts, node: cst.Call, func: cst.Attribute, depth: int) -> Place:
    name = func.attr.value
    if name in names.LEAVES:
        return Place.PLAIN
    if name == "cpu":
        return Place.UNKNOWN
    found = place(facts, func.value, depth)
    if moves(facts, node):
        return Place.DEVICE
    if found is Place.UNKNOWN and name in names.SHAPES | names.RANKS and node.args and _is_tensor_in_init(facts, func):
        return Place.FRESH
    if name in names.MOVES or name in names.KEEPS:
        return found
    if name in names.MEETS:
        return together([found, *(place(facts, value, depth) for value in operands(node))])
    return found if found is Place.DEVICE else Place.UNKNOWN


def moves(facts: ModuleFacts, call: cst.Call) -> bool:
    """``x.to(device)``, ``x.cuda()``, ``x.type_as(y)``; not ``x.to(torch.float32)``."""
    name = tail(call.func)
    if name not in names.MOVES:
        return False
    if name not in ("to", "type"):
        return True
    if keyword(call, "device") is not None or keyword(call, "other") is not None:
        return True
    given = positional(call)
    full = (facts.resolve(given[0]) or "") if given else "torch.dtype"  # .to(dtype=...)
    is_dtype = full.startswith(("torch.", "numpy.")) or tail(given[0] if given else None) == "dtype"
    return not is_dtype


def _is_tensor_in_init(facts: ModuleFacts, func: cst.Attribute) -> bool:
    """``torch.tensor(mean).view(1, 3, 1, 1)`` where a module is made: of plain numbers, whatever their names."""
    function = facts.function_of(func)
    new = func.value
    if function is None or function.name.value != "__init__" or not isinstance(new, cst.Call):
        return False
    if facts.resolve(new.func) != "torch.tensor" or keyword(new, "device") is not None:
        return False
    return place(facts, next(iter(positional(new)), None)) is not Place.DEVICE

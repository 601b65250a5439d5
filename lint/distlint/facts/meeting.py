"""Whether a tensor left on the CPU meets one of the module's device, and which: data flow from where it is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.factories import Place
from distlint.facts.flow import reaching
from distlint.facts.networks import is_network, takes_from_host
from distlint.facts.placement import is_scalar_name, moves, only_adds_dimensions, operands, place, together
from distlint.facts.submodules import is_receiver
from distlint.facts.tree import tail, walk, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST = 8
_LONGEST = 60
_MOVER = re.compile(r"to_(device|gpu)|(^|_)cuda(_|$)|^use_gpu")


@dataclass(frozen=True)
class Meeting:
    """Where two devices meet.

    Attributes:
        node: the operation.
        partner: the operand on the device; for a layer, what is called.
    """

    node: cst.CSTNode
    partner: cst.BaseExpression

    def text(self, facts: ModuleFacts) -> str:
        """The operation's source, cut where it is long."""
        code = facts.code(self.node)
        return code if len(code) <= _LONGEST else f"{code[: _LONGEST - 3]}..."


def meeting(facts: ModuleFacts, node: cst.BaseExpression, depth: int = 0) -> Meeting | None:
    """The first operation that a fresh tensor, or what is made of it, shares with one of the device."""
    if depth > _DEEPEST:
        return None
    parent = facts.parents.get(node)
    if isinstance(parent, cst.Arg):
        return _in_call(facts, node, parent, depth)
    if isinstance(parent, cst.Element):
        return _in_list(facts, node, parent, depth)
    if isinstance(parent, cst.BinaryOperation):
        other = parent.right if parent.left is node else parent.left
        return _with(facts, parent, [other], depth)
    if isinstance(parent, cst.Comparison):
        return _compared(facts, parent, [node], depth)
    if isinstance(parent, cst.ComparisonTarget):
        above = facts.parents[parent]
        return _compared(facts, above, [node], depth) if isinstance(above, cst.Comparison) else None
    if isinstance(parent, cst.UnaryOperation | cst.IfExp) and node is not getattr(parent, "test", None):
        return meeting(facts, parent, depth + 1)
    if isinstance(parent, cst.Attribute):
        return _attribute(facts, parent, depth)
    if isinstance(parent, cst.Subscript):
        return meeting(facts, parent, depth + 1) if only_adds_dimensions(parent) else None
    if isinstance(parent, cst.AugAssign):
        return _augmented(facts, node, parent)
    return _assigned(facts, node, parent, depth)


def _with(
    facts: ModuleFacts, operation: cst.BaseExpression, others: Iterable[cst.BaseExpression], depth: int
) -> Meeting | None:
    """What becomes of an operation with ``others``."""
    places = [(place(facts, other), other) for other in others]
    for found, other in places:
        if found is Place.DEVICE:
            return Meeting(operation, other)
    if together(found for found, _ in places) is Place.UNKNOWN:
        return None
    return meeting(facts, operation, depth + 1)


def _compared(facts: ModuleFacts, node: cst.Comparison, own: list[cst.BaseExpression], depth: int) -> Meeting | None:
    if any(isinstance(each.operator, cst.In | cst.NotIn | cst.Is | cst.IsNot) for each in node.comparisons):
        return None
    sides = [node.left, *(each.comparator for each in node.comparisons)]
    return _with(facts, node, [side for side in sides if side not in own], depth)


def _in_call(facts: ModuleFacts, node: cst.BaseExpression, arg: cst.Arg, depth: int) -> Meeting | None:
    call = facts.parents.get(arg)
    if not isinstance(call, cst.Call) or arg.star:
        return None
    full = facts.resolve(call.func) or ""
    last = tail(call.func) or ""
    if full == f"torch.nn.functional.{last}" and last in names.FUNCTIONAL_MEETS:
        return _with(facts, call, [value for value in operands(call) if value is not node], depth)
    if full == f"torch.{last}" and (last in names.MEETS or last in names.KEEPS or last.endswith("_like")):
        opened = node.elements if isinstance(node, cst.List | cst.Tuple) else ()
        own = {node, *(element.value for element in opened)}
        return _with(facts, call, [value for value in operands(call) if value not in own], depth)
    if not isinstance(call.func, cst.Attribute):
        return None
    if _is_layer(facts, call.func):
        return Meeting(call, call.func)
    if is_network(facts, call.func) and not _is_host_argument(facts, node, call):
        others = (value for value in operands(call) if value is not node)
        return next((Meeting(call, each) for each in others if place(facts, each) is Place.DEVICE), None)
    if last in names.MEETS and not is_receiver(facts, call.func.value):
        return _with(facts, call, [call.func.value], depth) if not full.startswith("torch.") else None
    return None


def _is_host_argument(facts: ModuleFacts, node: cst.BaseExpression, call: cst.Call) -> bool:
    """Lengths and indexes, and the targets of ``CTCLoss``: what modules do take from the CPU."""
    owner, name = facts.owner(call), facts.self_attribute(call.func) or ""
    is_ctc = owner is not None and any(tail(value) == "CTCLoss" for value in owner.values(name))
    return is_ctc or is_scalar_name(tail(node) or "") or takes_from_host(facts, node, call)


def _in_list(facts: ModuleFacts, node: cst.BaseExpression, element: cst.Element, depth: int) -> Meeting | None:
    around = facts.parents.get(element)
    if not isinstance(around, cst.List | cst.Tuple):
        return None
    siblings = [each.value for each in around.elements if each is not element]
    if not isinstance(facts.parents.get(around), cst.Arg):
        return None
    call = facts.parents.get(facts.parents[around])
    if not isinstance(call, cst.Call) or facts.resolve(call.func) != f"torch.{tail(call.func)}":
        return None
    for sibling in siblings if tail(call.func) in names.MEETS else ():
        if place(facts, sibling) is Place.DEVICE:
            return Meeting(call, sibling)
    if together(place(facts, sibling) for sibling in siblings) is Place.UNKNOWN:
        return None
    return meeting(facts, around, depth + 1)


def _attribute(facts: ModuleFacts, attribute: cst.Attribute, depth: int) -> Meeting | None:
    """``x.T`` and methods of the tensor."""
    name = attribute.attr.value
    call = facts.parents.get(attribute)
    if not isinstance(call, cst.Call) or call.func is not attribute:
        return meeting(facts, attribute, depth + 1) if name in ("T", "mT") else None
    if moves(facts, call):
        return None
    if name in names.KEEPS or name in names.MOVES:
        return meeting(facts, call, depth + 1)
    return _with(facts, call, operands(call), depth) if name in names.MEETS else None


def _is_layer(facts: ModuleFacts, func: cst.Attribute) -> bool:
    name, owner = facts.self_attribute(func), facts.owner(func)
    if name is None or owner is None:
        return False
    values = [value for value in owner.values(name) if not _is_nothing(value)]
    return bool(values) and all(
        isinstance(value, cst.Call)
        and (facts.resolve(value.func) or "").startswith("torch.nn.")
        and tail(value.func) in names.LAYERS
        for value in values
    )


def _is_nothing(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"


def _augmented(facts: ModuleFacts, node: cst.BaseExpression, statement: cst.AugAssign) -> Meeting | None:
    other = statement.value if node is statement.target else statement.target
    return Meeting(statement, other) if place(facts, other) is Place.DEVICE else None


def _assigned(facts: ModuleFacts, node: cst.BaseExpression, parent: cst.CSTNode | None, depth: int) -> Meeting | None:
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target: cst.CSTNode = parent.targets[0].target
    elif isinstance(parent, cst.AnnAssign):
        target = parent.target
    else:
        return None
    if not isinstance(target, cst.Name) or parent.value is not node:
        return None
    for use in _uses(facts, parent, target.value):
        found = meeting(facts, use, depth + 1)
        if found is not None:
            return found
    return None


def _uses(facts: ModuleFacts, definition: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    """Where a local name is read with the value of one assignment."""
    function = facts.function_of(definition)
    for node in walk_scope(function.body) if function is not None else ():
        if isinstance(node, cst.Name) and node.value == name and _is_value(facts, node):
            found = reaching(facts, node)
            others = [each.value for each in found if each.node is not definition]
            if len(others) < len(found) and not any(_is_moved(facts, value) for value in others):
                yield node


def _is_moved(facts: ModuleFacts, value: cst.BaseExpression | None) -> bool:
    """``mask = mask.cuda()`` on some way to the use, as after ``if x.is_cuda``; also among others, or in a wrapper."""
    inside = walk(value) if value is not None else ()
    return any(isinstance(node, cst.Call) and (moves(facts, node) or _says_so(node)) for node in inside)


def _says_so(call: cst.Call) -> bool:
    """``mask = send_to_device(mask)``, told by the name."""
    return _MOVER.search(tail(call.func) or "") is not None


def _is_value(facts: ModuleFacts, node: cst.Name) -> bool:
    """Whether a name stands for its value here: no target, keyword or attribute's name."""
    parent = facts.parents.get(node)
    if isinstance(parent, cst.Arg):
        return parent.value is node
    return not isinstance(parent, cst.AssignTarget) and not (isinstance(parent, cst.Attribute) and parent.attr is node)

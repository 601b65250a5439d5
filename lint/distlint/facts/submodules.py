"""What a module consists of: its buffers, and the modules that it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts
from distlint.facts.networks import local_class, moves_tensors
from distlint.facts.tree import argument, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


def registered_buffers(facts: ModuleFacts, owner: ClassFacts) -> set[str]:
    """The names given to ``register_buffer`` or ``register_parameter`` in a class and its bases in the module."""
    found: set[str] = set()
    for info in owner.lineage():
        for node in info.body():
            if isinstance(node, cst.Call) and tail(node.func) in ("register_buffer", "register_parameter"):
                text = text_of(argument(node, 0, "name"))
                found.update(() if text is None else (text,))
    return found


def is_receiver(facts: ModuleFacts, node: cst.BaseExpression) -> bool:
    """``self`` of a module, called."""
    method = facts.method_of(node)
    params = method.params.params if method is not None else ()
    return isinstance(node, cst.Name) and bool(params) and node.value == params[0].name.value


def is_submodule(facts: ModuleFacts, func: cst.Attribute) -> bool:
    """``self.layer``, or ``self.forward``, of which the module says that it is a module."""
    name, owner = facts.self_attribute(func), facts.owner(func)
    if name is None or owner is None:
        return False
    return name == "forward" or any(_makes_module(facts, value) for value in owner.values(name))


def _makes_module(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    made = local_class(facts, value)
    if made is not None:
        return not moves_tensors(made)
    full = facts.resolve(value.func) or "" if isinstance(value, cst.Call) else ""
    return full.startswith("torch.nn.") and full.rpartition(".")[2][:1].isupper()

"""Attributes that a module calls: which of them have weights, and take tensors as they are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.classes import ClassFacts
from distlint.facts.project import MOVING, kinds_of
from distlint.facts.scopes import LOCAL
from distlint.facts.tree import argument, is_name, tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_NETWORK = re.compile(
    r"(^|_)(actor|attention|attn|backbone|bert|block|classifier|conv|critic|decoder|denoiser|discriminator|embed"
    r"|embedder|embedding|encoder|fc|generator|gpt|gru|head|layer|linear|llm|lstm|mlp|model|net|network|policy|rnn"
    r"|student|teacher|transformer|trunk|unet|vae|vit)s?\d*(_|$)"
)
_NO_NETWORK = re.compile(r"loss|criteri|metric|match|sampl|tokeniz|process|transform(?!er)|augment|scheduler|noise_s")
# Libraries whose models take what they are given.
_OF_MODELS = frozenset(
    {"clip", "diffusers", "monai", "open_clip", "segmentation_models_pytorch", "timm", "torchaudio", "torchvision"}
    | {"transformers", "x_transformers"}
)
_GIVE_BACK = frozenset(
    {"apply", "bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_", "to", "train"}
)
_READS = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel", "tolist", "item"})


def is_network(facts: ModuleFacts, func: cst.Attribute) -> bool:
    """``self.encoder`` in a module, where all that is known of it says that it has weights and moves nothing.

    A loss may move its labels, a matcher may answer on the CPU: what is not known is no network. A module of this file
    may move what it is given, see ``takes_from_host``.
    """
    name, owner = facts.self_attribute(func), facts.owner(func)
    if name is None or owner is None or "module" not in owner.kinds or owner.method(name) is not None:
        return False
    values = [value for value in owner.values(name) if not is_name(value, "None")]
    return bool(values) and all(_is_network(facts, value, name) for value in values)


def keeps_device(facts: ModuleFacts, func: cst.Attribute) -> bool:
    """Whether what a network gives back is where it was given: none of this file's that moves tensors."""
    name, owner = facts.self_attribute(func), facts.owner(func)
    values = owner.values(name) if owner is not None and name is not None else ()
    made = (local_class(facts, value) for value in values)
    return is_network(facts, func) and not any(each is not None and moves_tensors(each) for each in made)


def takes_from_host(facts: ModuleFacts, node: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether a module of this file that is called may move one of its arguments, or uses it as an index alone."""
    name, owner = facts.self_attribute(call.func), facts.owner(call)
    for value in owner.values(name) if owner is not None and name is not None else ():
        made = local_class(facts, value)
        forward = made.method("forward") if made is not None else None
        param = _parameter(call, node, forward) if forward is not None else None
        if made is None or forward is None:
            continue
        if param is None or _is_index(facts, forward, param) or _may_move(facts, made, forward, param):
            return True
        if _are_lengths(forward, param):
            return True
    return False


def _are_lengths(forward: cst.FunctionDef, param: str) -> bool:
    """Whether a parameter is handed to ``pack_padded_sequence`` as lengths, which have to be on the CPU."""
    packs = (node for node in walk(forward.body) if isinstance(node, cst.Call))
    given = (argument(call, 1, "lengths") for call in packs if tail(call.func) == "pack_padded_sequence")
    return any(value is not None and is_name(value, param) for value in given)


def _is_network(facts: ModuleFacts, value: cst.BaseExpression, name: str) -> bool:
    value = _without_placing(value)
    if not isinstance(value, cst.Call | cst.Name):
        return False
    full = facts.resolve(value.func) or "" if isinstance(value, cst.Call) else ""
    if full.startswith("torch.nn."):
        return full.rpartition(".")[2][:1].isupper()
    made = local_class(facts, value)
    if made is not None:
        return made.method("forward") is not None or not moves_tensors(made)
    found = facts.project.find_class(full) if full else None
    if found is not None and "module" in kinds_of(found):
        return True
    if _is_of_library(full) or found is not None:
        return False
    return _NETWORK.search(name.lower()) is not None and _NO_NETWORK.search(name.lower()) is None


def _without_placing(value: cst.BaseExpression) -> cst.BaseExpression:
    """``Encoder(…)`` of ``Encoder(…).to(device).eval()``: methods of a module that give back the module."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _GIVE_BACK:
        value = value.func.value
    return value


def _is_of_library(full: str) -> bool:
    """A class or function of a library that is not known for its models."""
    root = full.partition(".")[0]
    is_of_project = not full or full.startswith((LOCAL, ".")) or full.endswith("instantiate")
    return not is_of_project and root not in _OF_MODELS


def local_class(facts: ModuleFacts, value: cst.BaseExpression | None) -> ClassFacts | None:
    """The module of this file that a call makes."""
    value = None if value is None else _without_placing(value)
    full = facts.resolve(value.func) or "" if isinstance(value, cst.Call) else ""
    found = (each for each in facts.classes.values() if full == LOCAL + each.name and "module" in each.kinds)
    return next(found, None)


def moves_tensors(made: ClassFacts) -> bool:
    """Whether a method of a class but ``__init__`` brings tensors elsewhere."""
    methods = (each for info in made.lineage() for each in info.methods.values() if each.name.value != "__init__")
    return any(_is_move(node) for method in methods for node in walk(method.body))


def _is_move(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in MOVING


def _parameter(call: cst.Call, node: cst.BaseExpression, forward: cst.FunctionDef) -> str | None:
    """What ``forward`` calls the argument."""
    for place, arg in enumerate(call.args):
        if arg.value is node:
            order = [each.name.value for each in forward.params.params[1:]]
            if arg.keyword is not None:
                return arg.keyword.value
            return order[place] if place < len(order) else None
    return None


def _may_move(facts: ModuleFacts, made: ClassFacts, forward: cst.FunctionDef, param: str) -> bool:
    """Whether the parameter, or what is made of it in one step, is moved, or given to what moves tensors.

    That is a method of the class, or a module of the project that it keeps.
    """
    for call in walk(forward.body):
        if not isinstance(call, cst.Call) or not any(is_name(node, param) for node in walk(call)):
            continue
        name = facts.self_attribute(call.func) or ""
        method = made.method(name)
        if _is_move(call) or (method is not None and any(_is_move(node) for node in walk(method.body))):
            return True
        if any(_makes_mover(facts, value) for value in made.values(name)):
            return True
    return False


def _makes_mover(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """Whether a module of the project is made that brings tensors elsewhere itself."""
    made = local_class(facts, value)
    if made is not None:
        return moves_tensors(made)
    return False


def _is_index(facts: ModuleFacts, forward: cst.FunctionDef, param: str) -> bool:
    uses = [node for node in walk(forward.body) if is_name(node, param)]
    return all(_is_harmless(facts, node) for node in uses)


def _is_harmless(facts: ModuleFacts, node: cst.CSTNode) -> bool:
    parent = facts.parents.get(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr is node or parent.attr.value in _READS
    if isinstance(parent, cst.Arg):
        call = facts.parents.get(parent)
        return parent.value is not node or (isinstance(call, cst.Call) and tail(call.func) in names.TAKES_LENGTHS)
    return isinstance(parent, cst.Index)

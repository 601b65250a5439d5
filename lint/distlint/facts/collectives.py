"""Which calls are collective: every rank has to make them, or those that do wait for ever."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import known
from distlint.facts.classes import LIGHTNING_ROOTS, base_names
from distlint.facts.flow import reaching
from distlint.facts.project import declares
from distlint.facts.scopes import LOCAL
from distlint.facts.tree import is_name, keyword, number, positional, tail
from distlint.facts.versions import saves_alone

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_WORLD_GROUPS = ("torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD", "builtins.None")
_ONE_DEVICE = re.compile(r"(?:^|_)(?:gpu|device)_?id$")
_GROUP_POSITION = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2, "reduce": 3, "gather": 3}


def collective(facts: ModuleFacts, call: cst.Call) -> str | None:
    """The name of the collective operation that a call makes, or None."""
    if facts.project.settings.collectives and _is_declared(facts, call):
        return tail(call.func)
    func = call.func
    full = None
    name = tail(func)
    if name not in known.LAST_NAMES:  # an import may have renamed it
        full = facts.resolve(func) if isinstance(func, cst.Name) else None
        name = (full or "").rpartition(".")[2]
    if name not in known.LAST_NAMES:
        return None
    full = full or facts.resolve(func)
    if full is not None and full in known.FUNCTIONS:
        return None if _in_subgroup(facts, call, name) else name
    if not isinstance(func, cst.Attribute):
        return None
    if full is not None and full.startswith("distmetrics.") and full.rpartition(".")[2] in known.METHODS["strategy"]:
        return name
    kind = receiver_kind(facts, func.value)
    if name in known.TELLING_METHODS and kind is None and not _is_own_method(facts, call):
        return name
    if kind is None or name not in known.METHODS[kind]:
        return _sharded_state(facts, call) if name == "state_dict" else None
    if name == "save_checkpoint" and kind in ("trainer", "lightning_trainer") and saves_alone(facts):
        return None
    return None if _is_own_method(facts, call) else name


def backward(facts: ModuleFacts, call: cst.Call) -> str | None:
    """``backward`` where it reduces the gradients of a wrapped model, or None."""
    name = tail(call.func)
    if name not in known.BACKWARD.values() or not isinstance(call.func, cst.Attribute):
        return None
    kind = receiver_kind(facts, call.func.value)
    is_wrapped = facts.wraps_model if kind is None and name == "backward" else known.BACKWARD.get(kind or "") == name
    return name if is_wrapped and not _is_own_method(facts, call) and not _is_without_sync(facts, call) else None


def _is_declared(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether the user says so: by the full name of a function, of a method and its class, or ``*.name``."""
    settings, name, owner = facts.project.settings, facts.self_attribute(call.func), facts.owner(call)
    if name is not None and owner is not None:
        classes = [facts.full_name(owner), *(base.name for base in facts.project.ancestors(facts.full_name(owner)))]
        return any(declares(settings.collectives, f"{base}.{name}") is not None for base in classes)
    full = facts.absolute_name(call.func)
    return declares(settings.collectives, full if full is not None else f".{tail(call.func)}") is not None


def _in_subgroup(facts: ModuleFacts, call: cst.Call, name: str) -> bool:
    """Whether the call names a group that may be smaller than the world."""
    group = keyword(call, "group") or keyword(call, "process_group")
    given = positional(call)
    place = _GROUP_POSITION.get(name)
    if group is None and place is not None and place < len(given):
        group = given[place]
    return group is not None and not is_name(group, "None") and facts.resolve(group) not in _WORLD_GROUPS


def _is_own_method(facts: ModuleFacts, call: cst.Call) -> bool:
    """``self.all_gather`` where the class defines it: judged by its body."""
    name = facts.self_attribute(call.func)
    owner = facts.owner(call)
    if name is None or owner is None:
        return False
    inherited = facts.project.ancestors(facts.full_name(owner))
    return owner.method(name) is not None or any(name in base.methods for base in inherited)


def receiver_kind(facts: ModuleFacts, node: cst.BaseExpression) -> str | None:
    """What a method is called on: accelerator, fabric, trainer, strategy, lightning, deepspeed, metric."""
    owner = facts.owner(node)
    if isinstance(node, cst.Name) and owner is not None and _is_receiver(facts, node):
        if "lite" in owner.kinds:
            return "fabric"
        return "lightning" if "lightning" in owner.kinds or not owner.known else None
    if is_name(node, "self") and owner is None:
        return "lightning"  # a snippet without its class
    attribute = facts.self_attribute(node)
    values = owner.values(attribute) if attribute is not None and owner is not None else _assigned(facts, node)
    for value in values:
        kind = _constructed(facts, value)
        if kind is not None:
            return kind
    if values and all(_is_other_object(facts, value) for value in values):
        return None
    kind = known.RECEIVERS.get(tail(node) or "") if isinstance(node, cst.Name | cst.Attribute) else None
    if kind != "trainer":
        return kind
    if any(facts.imports(root) for root in LIGHTNING_ROOTS):
        return "lightning_trainer"
    is_theirs = owner is None or "plain" not in owner.kinds  # Lightning hands trainers to classes of its own
    return kind if is_theirs else None


def _is_receiver(facts: ModuleFacts, node: cst.Name) -> bool:
    method = facts.method_of(node)
    params = method.params.params if method is not None else ()
    return bool(params) and node.value == params[0].name.value


def _assigned(facts: ModuleFacts, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if not isinstance(node, cst.Name):
        return []
    nearest = [each.value for each in reaching(facts, node) if each.value is not None]
    if nearest:
        return nearest
    bindings = facts.scope(node).lookup(node.value)
    return [binding.value for binding in bindings if binding.kind == "value" and binding.value is not None]


def _constructed(facts: ModuleFacts, value: cst.BaseExpression) -> str | None:
    if not isinstance(value, cst.Call):
        return None
    full = facts.resolve(value.func) or ""
    if full in known.CONSTRUCTORS:
        if known.CONSTRUCTORS[full] == "lightning_trainer" and _has_one_device(value):
            return None
        return known.CONSTRUCTORS[full]
    if _is_hf_trainer(facts, value.func, full):
        return "hf_trainer"
    is_metric = full.startswith("torchmetrics.") and full.rpartition(".")[2][:1].isupper()
    if is_metric and not is_name(keyword(value, "sync_on_compute"), "False"):
        return "metric"
    return None


def _is_hf_trainer(facts: ModuleFacts, func: cst.BaseExpression, full: str) -> bool:
    """A trainer of transformers or trl, or a class of this file that is derived from one."""
    if full.startswith(LOCAL) and isinstance(func, cst.Name):
        classes = [each.node for each in facts.scope(func).lookup(func.value) if isinstance(each.node, cst.ClassDef)]
        bases = [base for node in classes for base in base_names(facts, node)]
        return any(base.startswith(known.HF_ROOTS) and base.endswith("Trainer") for base in bases)
    return full.startswith(known.HF_ROOTS) and full.endswith("Trainer")


def _has_one_device(call: cst.Call) -> bool:
    """A trainer for one process: ``Trainer(devices=1)``, ``Trainer(devices=[rank])``, ``Trainer(gpus=gpu_id)``."""
    if number(keyword(call, "num_nodes")) not in (None, 1):
        return False
    given = [keyword(call, name) for name in ("devices", "gpus")]
    if any(number(value) in (0, 1) or _has_one_element(value) for value in given):
        return True
    strategy = keyword(call, "strategy")
    return any(map(_names_one_device, given)) and (strategy is None or is_name(strategy, "None"))


def _names_one_device(value: cst.BaseExpression | None) -> bool:
    return value is not None and _ONE_DEVICE.search(tail(value) or "") is not None


def _has_one_element(value: cst.BaseExpression | None) -> bool:
    return isinstance(value, cst.List) and len(value.elements) == 1 and isinstance(value.elements[0], cst.Element)


def _is_other_object(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """A known constructor, literal or class of this file: certainly none of the receivers we know."""
    if isinstance(value, cst.Call):
        full = facts.resolve(value.func) or ""
        is_single = known.CONSTRUCTORS.get(full) == "lightning_trainer" and _has_one_device(value)
        return is_single or full.startswith((LOCAL, "numpy.", "builtins.", "transformers."))
    return isinstance(value, cst.BaseString | cst.BaseNumber | cst.BaseList | cst.BaseDict)


def _is_without_sync(facts: ModuleFacts, call: cst.Call) -> bool:
    """``with model.no_sync():`` keeps the gradients where they are."""
    items = (item.item for above in facts.ancestors(call) if isinstance(above, cst.With) for item in above.items)
    return any(isinstance(item, cst.Call) and tail(item.func) == "no_sync" for item in items)


def _sharded_state(facts: ModuleFacts, call: cst.Call) -> str | None:
    """``model.state_dict()`` inside ``with FSDP.state_dict_type(...)`` gathers the shards of all ranks."""
    for above in facts.ancestors(call):
        if isinstance(above, cst.With):
            for item in above.items:
                if isinstance(item.item, cst.Call) and tail(item.item.func) == "state_dict_type":
                    return "state_dict"
        elif isinstance(above, cst.FunctionDef):
            return None
    return None

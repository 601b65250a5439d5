"""Which calls every rank must make, and which tests ask how many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.apis import (
    end_of,
    family_of,
    group_argument,
    is_collective_function,
    is_collective_method,
    is_rank_guard,
    is_world,
    receiver_family,
)
from distlint.source import Source, argument, decorators, dotted, is_true, keyword, last, object_of

_BRANCHES = (
    cst.If | cst.For | cst.While | cst.Try | cst.TryStar | cst.Match | cst.IfExp
    | cst.BooleanOperation
)  # fmt: skip


def collective(source: Source, call: cst.Call) -> str:
    """Return the name of a call that every rank must make, such as ``"all_gather"``, or ``""``."""
    name = source.name(call.func)
    if name and (is_collective_function(name) or is_own(source, name)):
        return end_of(name)
    owner, method = object_of(call), last(call.func)
    if owner is None:
        return ""
    family = receiver(source, owner)
    if family == "trainer" and not uses_lightning(source):
        return ""
    return method if is_collective_method(family, method) else ""


def is_about_world(source: Source, test: cst.BaseExpression) -> bool:
    """Return whether a test asks for the number of ranks."""
    return any(is_world(last(each)) for each in source.inside(test, cst.Name, cst.Attribute))


def is_own(source: Source, name: str) -> bool:
    """Return whether the user has listed a function among ``collectives``."""
    own = source.facts.collectives
    return bool(own) and (name in own or end_of(name) in own)


def receiver(source: Source, node: cst.BaseExpression) -> str:
    """Return what the object of a method call is to the frameworks, or ``""``."""
    name = dotted(node)
    if name == "self":
        found = source.class_of(node)
        if found is None:
            return ""
        return next((k for k in ("lightning_module", "fabric", "lite") if k in found.kinds), "")
    made = source.made.get(name, "")
    if made == "deepspeed.initialize":
        return "deepspeed"
    if isinstance(node, cst.Call):
        made = source.name(node.func)
    return family_of(made) or receiver_family(name or last(node))


def uses_lightning(source: Source) -> bool:
    """Return whether a file imports Lightning."""
    return any(
        name.startswith(("lightning", "pytorch_lightning")) for name in source.imports.values()
    )


def names_group(source: Source, call: cst.Call) -> bool:
    """Return whether a collective is given a process group of its own."""
    at = group_argument(source.name(call.func))
    given = argument(call, at, "group") if at is not None else keyword(call, "group")
    given = given or keyword(call, "process_group")
    if given is None or dotted(given) == "None":
        return False
    return not source.name(given).endswith("WORLD")


def is_synced_log(source: Source, call: cst.Call) -> bool:
    """Return whether a call is ``self.log(…, sync_dist=True)`` of Lightning."""
    return is_log(source, call) and is_true(keyword(call, "sync_dist"))


def is_log(source: Source, call: cst.Call) -> bool:
    """Return whether a call is ``self.log`` or ``self.log_dict`` of a LightningModule."""
    owner, method = object_of(call), last(call.func)
    if owner is None or method not in ("log", "log_dict"):
        return False
    name = dotted(owner)
    if name == "self":
        found = source.class_of(call)
        if found is None or found.defines("log") or found.defines(method):
            return False  # log_dict calls log
        return bool({"lightning_module", "callback"} & found.kinds)
    return receiver_family(name) == "lightning_module"


def straight(source: Source, function: cst.FunctionDef) -> Iterator[cst.Call]:
    """Yield the calls that a function makes whenever it is called: no branch is around them."""
    for call in source.own(function, cst.Call):
        around = next(
            e for e in source.ancestors(call) if e is function or isinstance(e, _BRANCHES)
        )
        if around is function:
            yield call


def called(source: Source, call: cst.Call) -> cst.FunctionDef | None:
    """Return the function of the file, or the method of the same class, that a call calls."""
    name = dotted(call.func)
    if name in source.functions:
        return source.functions[name]
    if name.startswith("self.") and name.count(".") == 1:
        found = source.class_of(call)
        return found.methods.get(name.removeprefix("self.")) if found is not None else None
    return None


def hidden_collective(source: Source, call: cst.Call) -> str:
    """Return the collective that a function of the file makes on its straight way, or ``""``."""
    function = called(source, call)
    if function is None or function is source.function(call):
        return ""
    return source.once("hidden", function, lambda: _made_inside(source, function))


def _made_inside(source: Source, function: cst.FunctionDef) -> str:
    if any(is_rank_guard(source.name(each)) for each in decorators(function)):
        return ""  # told inside of it
    for inner in straight(source, function):
        if returns_before(source, function, inner):
            return ""
        name = collective(source, inner)
        if name and not names_group(source, inner):
            return name
    return ""


def returns_before(source: Source, function: cst.FunctionDef, call: cst.Call) -> bool:
    """Return whether a function may have returned before it makes a call."""
    at = source.order(call)
    return any(
        source.order(each) < at and not source.is_within(call, each)
        for each in source.own(function, cst.Return)
    )

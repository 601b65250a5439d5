"""Samplers of torch that deal out data: who makes them, and for which loader."""

from __future__ import annotations

import re

import libcst as cst

from distlint.source import (
    Source,
    argument,
    dotted,
    has_spread,
    is_false,
    is_true,
    keyword,
    last,
    self_attribute,
)

_EVALUATION = re.compile(
    r"(?:^|_)(?:val|valid|validation|validate|eval|evaluation|evaluate|test|dev|infer|inference)"
    r"(?:_|\d|$)|^(?:val|valid|eval|test)(?:set|data|dataset|loader|sampler|dataloader)"
)
_TRAINING = re.compile(r"(?:^|_|is)train", re.IGNORECASE)


def is_sampler(source: Source, node: cst.CSTNode | None) -> bool:
    """Return whether an expression makes a ``DistributedSampler`` of torch."""
    if not isinstance(node, cst.Call):
        return False
    name = source.name(node.func)
    return name.startswith("torch.") and name.endswith(".DistributedSampler")


def shuffles(call: cst.Call) -> bool | None:
    """Return whether a ``DistributedSampler`` shuffles; None where that is not written out."""
    given = argument(call, 3, "shuffle")
    if given is None:
        return None if has_spread(call) else True
    return True if is_true(given) else False if is_false(given) else None


def names_evaluation(text: str) -> bool:
    """Return whether a name says that something is for an evaluation, and not for training too."""
    spelt = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return _EVALUATION.search(spelt) is not None and _TRAINING.search(spelt) is None


def names_training(text: str) -> bool:
    """Return whether a name says that something is for training."""
    return _TRAINING.search(text) is not None


def assigned(source: Source, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a variable of the function, or an attribute of the class, is given."""
    name = self_attribute(node)
    owner = source.class_of(node)
    if name and owner is not None:
        return owner.attributes.get(name, [])
    written, at = dotted(node), source.order(node)
    return [
        value
        for assign, target, value in source.assignments(source.home(node))
        if written and dotted(target) == written and source.order(assign) < at
    ]


def sampler_of(source: Source, loader: cst.BaseExpression, depth: int = 3) -> cst.Call | None:
    """Return the ``DistributedSampler`` of a loader that is always one, or None."""
    if not isinstance(loader, cst.Call):
        made = assigned(source, loader) if depth else []
        return sampler_of(source, made[0], depth - 1) if len(made) == 1 else None
    if last(loader.func) in ("enumerate", "tqdm", "iter", "list") and loader.args:
        return sampler_of(source, loader.args[0].value, depth)
    if source.name(loader.func).endswith(".DataLoader"):
        given = keyword(loader, "sampler")
        if given is None or is_sampler(source, given):
            return given if isinstance(given, cst.Call) else None
        found = [each for each in assigned(source, given) if dotted(each) != "None"]
        made_once = found[0] if len(found) == 1 else None
        if isinstance(made_once, cst.IfExp):
            made_once = made_once.body if is_sampler(source, made_once.body) else made_once.orelse
        return (
            made_once if isinstance(made_once, cst.Call) and is_sampler(source, made_once) else None
        )
    function = source.functions.get(dotted(loader.func))
    returned = source.returned(function) if function is not None and depth else None
    return sampler_of(source, returned, depth - 1) if returned is not None else None

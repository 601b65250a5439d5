"""Evaluations that a callback makes on loaders of its own, which no trainer deals out to the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.samplers import NAME
from distlint.facts.tree import tail, walk

if TYPE_CHECKING:
    from distlint.facts.classes import ClassFacts
    from distlint.facts.module import ModuleFacts

_DEEPEST = 4
_LOADER = re.compile(r"loader|(?:^|_)dls?(?:$|_)", re.IGNORECASE)
_RUNS_OVER = frozenset({"enumerate", "iter", "items", "tqdm", "track", "values", "zip"})
_DATA = frozenset({"batch", "outputs"})


def sees_all_data(facts: ModuleFacts, value: cst.CSTNode) -> bool:
    """Whether a value is computed, in a callback, after a loop over a loader that the callback was given or made.

    Every rank then has run over all of it, unless the file makes samplers that deal it out.
    """
    method, owner = facts.method_of(value), facts.owner(value)
    if method is None or owner is None or "callback" not in owner.kinds or _takes_data(facts, method, value):
        return False
    place = facts.order[value]
    loops = (node for node in walk(method.body) if isinstance(node, cst.For | cst.CompFor))
    own = (loop for loop in loops if facts.order[loop] < place and _is_own(facts, owner, loop.iter))
    return any(own) and not any(isinstance(node, cst.Name) and node.value == NAME for node in walk(facts.module))


def _takes_data(facts: ModuleFacts, method: cst.FunctionDef, value: cst.CSTNode) -> bool:
    """Whether a value is made from what the trainer gives the hook of its own batch."""
    given = {param for param in method.params.params if _DATA & set(param.name.value.split("_"))}
    names = (node for node in walk(value) if isinstance(node, cst.Name))
    return any(definition.node in given for name in names for definition in reaching(facts, name))


def _is_own(facts: ModuleFacts, owner: ClassFacts, over: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a loop runs over ``self.loader``, or over one of ``self.loaders``."""
    attribute = facts.self_attribute(over)
    if attribute is not None:
        return _holds_loader(facts, owner, attribute)
    if depth > _DEEPEST:
        return False
    if isinstance(over, cst.Subscript):
        return _is_own(facts, owner, over.value, depth + 1)
    if isinstance(over, cst.Call) and tail(over.func) in _RUNS_OVER:
        return any(_is_own(facts, owner, each, depth + 1) for each in _operands(over))
    sources = [each.value for each in reaching(facts, over)] if isinstance(over, cst.Name) else []
    return bool(sources) and all(source is not None and _is_own(facts, owner, source, depth + 1) for source in sources)


def _operands(call: cst.Call) -> Iterator[cst.BaseExpression]:
    if isinstance(call.func, cst.Attribute) and not call.args:
        yield call.func.value  # self.loaders.items()
    yield from (arg.value for arg in call.args)


def _holds_loader(facts: ModuleFacts, owner: ClassFacts, attribute: str) -> bool:
    """Whether ``__init__`` puts a loader there: by the attribute's name, or by that of what ``__init__`` was given."""
    values = owner.values(attribute)
    return bool(values) and all(_is_loader(facts, attribute, value) for value in values)


def _is_loader(facts: ModuleFacts, attribute: str, value: cst.BaseExpression) -> bool:
    function = facts.function_of(value)
    if function is None or function.name.value != "__init__":
        return False  # of the trainer, it may be
    if _LOADER.search(attribute):
        return True
    sources = reaching(facts, value) if isinstance(value, cst.Name) else []
    params = [source.node for source in sources if isinstance(source.node, cst.Param)]
    return bool(params) and any(_is_loader_param(facts, param) for param in params)


def _is_loader_param(facts: ModuleFacts, param: cst.Param) -> bool:
    said = facts.code(param.annotation.annotation) if param.annotation is not None else ""
    return "DataLoader" in said or _LOADER.search(param.name.value) is not None

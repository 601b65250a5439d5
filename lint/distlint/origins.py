"""What an expression is made from: what ranks agree on, single examples, or counts."""

from __future__ import annotations

import re

import libcst as cst

from distlint.apis import REDUCING
from distlint.definitions import constant_key, names, reaching, unsubscripted
from distlint.source import (
    Source,
    dotted,
    keyword,
    last,
    number,
    object_of,
    positional,
    self_attribute,
)

_LOADER = re.compile(r"(?:^|_)(?:data)?(?:loader|dl)s?\d*$|^dataloader", re.IGNORECASE)
_COUNTS = re.compile(
    r"(?:^|_)(?:tp|fp|fn|tn|true_pos\w*|false_pos\w*|false_neg\w*|n_pred\w*|intersection|union"
    r"|inter)s?(?:_|$)",
    re.IGNORECASE,
)
Additions = dict[str, list[cst.BaseExpression]]


# What ranks agree on


def is_agreed(source: Source, node: cst.BaseExpression, depth: int = 4) -> bool:
    """Return whether a collective may have a part in what an expression is made from."""
    if any(REDUCING.search(last(each.func)) for each in source.inside(node, cst.Call)):
        return True
    return depth > 0 and any(
        _is_made_together(source, each, depth - 1)
        for each in source.inside(node, cst.Name, cst.Attribute)
    )


def _is_made_together(source: Source, node: cst.BaseExpression, depth: int) -> bool:
    """Return whether ranks may have brought together what a variable or ``self.x`` holds."""
    before = reaching(source, node).listed
    if any(each.how == "reduced" for each in before):
        return True
    given = [each.value for each in before if each.value is not None]
    owner, name = source.class_of(node), self_attribute(node)
    if name and owner is not None:
        given += owner.attributes.get(name, [])
        given += additions(source, owner.node).get(name, [])
    return any(is_agreed(source, each, depth) for each in given)


def additions(source: Source, owner: cst.ClassDef) -> Additions:
    """Return what a class adds to containers on ``self``, by their names."""
    return source.once("additions", owner, lambda: _additions(source, owner))


def _additions(source: Source, owner: cst.ClassDef) -> Additions:
    found: Additions = {}
    for call in source.below(owner, cst.Call):
        name = self_attribute(object_of(call))
        if name and call.args and last(call.func) in ("append", "extend", "update", "add"):
            found.setdefault(name, []).append(call.args[0].value)
    return found


def appended(source: Source, owner: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """Return what a class appends to a list on ``self``, or to one inside of it."""
    return [
        call.args[0].value
        for call in source.below(owner, cst.Call)
        if last(call.func) == "append" and call.args
        if (held := object_of(call)) and self_attribute(unsubscripted(held)) == name
    ]


# Single examples


def is_per_element(source: Source, node: cst.BaseExpression) -> bool:
    """Return whether a loop around an expression goes over examples, not batches or classes."""
    for each in source.ancestors(node):
        if isinstance(each, cst.FunctionDef):
            return False
        loop: cst.For | cst.CompFor | None = None
        if isinstance(each, cst.For) and source.is_within(node, each.body):
            loop = each
        elif isinstance(each, cst.BaseComp):
            loop = each.for_in
        if loop is None or _is_of_batches(loop.iter):
            continue
        if _is_made_of(source, node, set(names(loop.target))):
            return True
    return False


def is_loader(node: cst.BaseExpression) -> bool:
    """Return whether a loop over this goes over batches."""
    return _LOADER.search(last(_iterated(node, "range", "zip"))) is not None


def _is_of_batches(node: cst.BaseExpression) -> bool:
    """Return whether a loop goes over batches, or over what steps have returned for each."""
    node = _iterated(node, "range")
    return is_loader(node) or "output" in last(node)


def _iterated(node: cst.BaseExpression, *ends: str) -> cst.BaseExpression:
    """Return ``x`` of ``enumerate(tqdm(x))``, as far as no function of these names is called."""
    while isinstance(node, cst.Call) and node.args and last(node.func) not in ends:
        node = node.args[0].value
    return node


def _is_made_of(source: Source, node: cst.BaseExpression, bound: set[str], depth: int = 3) -> bool:
    """Return whether an expression is made of what a loop takes, not of a class it names."""
    for name in source.inside(node, cst.Name):
        if _is_choice(source, name, node):
            continue
        if name.value in bound:
            return True
        made = reaching(source, name).plain if depth else []
        if any(_is_made_of(source, each, bound, depth - 1) for each in made):
            return True
    return False


def _is_choice(source: Source, name: cst.Name, node: cst.BaseExpression) -> bool:
    """Return whether a name chooses a class or entry: ``y[:, i]``, ``y == i``, ``x[key + "y"]``."""
    below: cst.CSTNode = name
    for each in source.ancestors(name):
        if isinstance(each, cst.Comparison):
            return True
        if isinstance(each, cst.Subscript) and below in each.slice:
            return below in each.slice[1:] or constant_key(each) is not None
        if each is node:
            return False
        below = each
    return False


# Counts


def is_ratio_of_counts(source: Source, node: cst.BinaryOperation) -> bool:
    """Return whether this is ``tp / (tp + fp)`` or ``intersection / union``, of numbers."""
    above, below = _counts(source, node.left), _counts(source, node.right)
    named = {each.value.lower() for each in below}
    if {"tp", "tn"} <= {name[:1] + name[-1:] for name in named}:
        return False  # all of the confusion matrix: the number of examples
    is_sum = len({each.value for each in below}) > 1 and any(
        source.inside(node.right, cst.BinaryOperation)
    )
    is_union = any("union" in name for name in named)
    return (is_sum or is_union) and bool(above) and _are_plain(source, node)


def _counts(source: Source, node: cst.BaseExpression) -> list[cst.Name]:
    return [each for each in source.inside(node, cst.Name) if _COUNTS.search(each.value)]


def _are_plain(source: Source, node: cst.BaseExpression) -> bool:
    """Return whether all counts of a ratio are sums over everything, none of one example."""
    made = [reaching(source, each).listed for each in _counts(source, node)]
    return all(all(_is_total(source, d.value) for d in each) and each for each in made)


def _is_total(source: Source, node: cst.BaseExpression | None) -> bool:
    """Return whether an expression is a number: a sum or a count over all dimensions."""
    for call in source.inside(node, cst.Call) if node is not None else ():
        if last(call.func) in ("sum", "len", "count_nonzero"):
            is_sum = last(call.func) == "sum" and not isinstance(call.func, cst.Name)
            return not is_sum or not reduces_some(call)
    return number(node) is not None


def is_mean_of_squares(source: Source, node: cst.BaseExpression) -> bool:
    """Return whether this is a mean over all squares, by how it is written."""
    text = source.code(node).lower()
    is_mean = "mse" in text or "squared_error" in text
    is_mean |= "mean" in text and ("** 2" in text or "square" in text or "pow(" in text)
    return is_mean and not any(map(reduces_some, source.inside(node, cst.Call)))


def reduces_some(call: cst.Call) -> bool:
    """Return whether a call keeps a dimension: ``x.mean(1)``, ``torch.mean(x, dim=1)``."""
    if keyword(call, "dim", "axis", "reduction") is not None:
        return True
    is_function = dotted(call.func).startswith(("torch.", "np.", "numpy."))
    return last(call.func) in ("mean", "sum") and len(positional(call)) > is_function

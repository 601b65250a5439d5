"""What the tests around a node ask: the stage of the training, the step, the world."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from distlint.collectives import is_about_world
from distlint.guards import guards
from distlint.source import Source

_TRAINING = re.compile(r"(?<![a-z_])(?:is_)?train(?:ing)?(?![a-z_])")
_EVALUATING = re.compile(r"(?<![a-z_])(?:is_)?(?:val|valid|validation|eval|test)(?![a-z_])")


def tests_around(
    source: Source, node: cst.CSTNode, outer: cst.CSTNode
) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the tests between a node and what it is in, nearest first, and whether they hold."""
    below = node
    for each in source.ancestors(node):
        if each is outer:
            return
        if isinstance(each, cst.If | cst.IfExp) and below is not each.test:
            yield each.test, below is each.body
        below = each


def asks_training(source: Source, test: cst.BaseExpression) -> bool | None:
    """Return whether a test is true in training, or None where it does not ask for the stage."""
    text = source.code(test)
    is_turned = "not " in text or "!=" in text
    if _TRAINING.search(text):
        return not is_turned
    return is_turned if _EVALUATING.search(text) else None


def evaluates(source: Source, call: cst.Call, stages: Collection[str], key: str) -> bool:
    """Return whether validation or test makes a log on every rank, as ``Rule.stages`` tells."""
    method = source.method(call)
    if method is None or not {"validation", "test"} & set(stages):
        return False
    if any(guards(source, call)):
        return False
    is_helper = "training" in stages
    for test, holds in tests_around(source, call, method):
        if is_about_world(source, test) or (is_helper and asks_training(source, test) == holds):
            return False
    return not (is_helper and key.lower().startswith("train"))

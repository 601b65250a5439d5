"""Metrics that a project computes itself: told by the name of the function, or of what is unpacked from its result.

Only names that hardly ever stand for a mean over examples count: an own ``iou`` or ``dice`` often is one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint import averageable
from distlint.facts.flow import reaching
from distlint.facts.invariance import is_gathered
from distlint.facts.metric_calls import Verdict, is_per_example
from distlint.facts.tree import names_in, tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Short names, with the entry of the table that they stand for.
_NAMES = {
    "f1": "f1",
    "macrof1": "f1",
    "f1macro": "f1",
    "auc": "auroc",
    "auroc": "auroc",
    "rocauc": "auroc",
    "aucroc": "auroc",
    "auprc": "auprc",
    "prauc": "auprc",
    "mcc": "matthewscorrcoef",
    "matthewscorrcoef": "matthewscorrcoef",
    "cohenkappa": "cohenkappa",
    "qwk": "cohenkappa",
}
_AROUND = re.compile(r"^(?:compute|calc|calculate|get|eval|evaluate|val|valid|validation|test|train|avg|mean)_")
_FOREIGN = (*averageable.LIBRARIES, "torch.", "numpy.", "scipy.", "builtins.", "evaluate.", "datasets.")


def own_metric(facts: ModuleFacts, call: cst.Call) -> Verdict | None:
    """The verdict on a call of a function that is called like a metric and is of no known library."""
    full = facts.resolve(call.func) or ""
    if not full or full.startswith(_FOREIGN) or not _is_read_alone(facts, call, full):
        return None
    return _verdict(facts, call, tail(call.func) or "")


def unpacked_metric(facts: ModuleFacts, name: cst.Name) -> Verdict | None:
    """The verdict on ``f1`` of ``accuracy, f1 = metrics(x, y)``."""
    if _entry(name.value) is None:
        return None
    found = reaching(facts, name)
    calls = [each.value for each in found if isinstance(each.value, cst.Call) and _is_unpacked(each.steps)]
    others = [each.value for each in found if each.value not in calls]
    if len(calls) != 1 or not all(isinstance(value, cst.Integer | cst.Float) for value in others):
        return None
    call = calls[0]
    full = facts.resolve(call.func) or ""
    if full.startswith(_FOREIGN) or "metric" not in (tail(call.func) or "").lower():
        return None
    return _verdict(facts, call, name.value) if _is_read_alone(facts, call, full) else None


def _verdict(facts: ModuleFacts, call: cst.Call, name: str) -> Verdict | None:
    entry = _entry(name)
    if entry is None or is_gathered(facts, call) or is_per_example(facts, call):
        return None
    return Verdict(name, entry.reason, call)


def _entry(name: str) -> averageable.Entry | None:
    text = name.lower()
    while _AROUND.match(text):
        text = _AROUND.sub("", text)
    stem = _NAMES.get(averageable.stem(text))
    return averageable.ENTRIES[stem] if stem is not None else None


def _is_read_alone(facts: ModuleFacts, call: cst.Call, full: str) -> bool:
    """Whether the function, as far as it can be seen, makes no collective itself."""
    summary = facts.project.functions.get(full)
    if summary is not None and summary.collectives:
        return False
    function = facts.local_function(call)
    if function is None:
        return True
    values = facts.returns(function)
    return not any(is_gathered(facts, value) or _is_mean_of_examples(facts, function, value) for value in values)


def _is_mean_of_examples(facts: ModuleFacts, function: cst.FunctionDef, value: cst.BaseExpression) -> bool:
    """``sum(scores) / len(examples)``, where the examples are what the function is given."""
    if isinstance(value, cst.Name):
        made = [each.value for each in reaching(facts, value)[:1] if not each.steps]
        return any(
            each is not None and not isinstance(each, cst.Name) and _is_mean_of_examples(facts, function, each)
            for each in made
        )
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Divide):
        return False
    lengths = [node for node in walk(value.right) if isinstance(node, cst.Call) and tail(node.func) == "len"]
    given = {param.name.value for param in function.params.params}
    return tail(value.left) == "sum" and any(names_in(length) & given for length in lengths)


def _is_unpacked(steps: tuple[int | str, ...]) -> bool:
    return len(steps) == 1 and isinstance(steps[0], int)

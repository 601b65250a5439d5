"""What a value measures, where the mean of the ranks' values is not that of all data."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from distlint import averageable
from distlint.analysis.value import Measure, Value

# Short names that hardly ever stand for a mean over examples, with the entry of the table that they stand for.
_NAMES = {
    "f1": "f1",
    "auc": "auroc",
    "auroc": "auroc",
    "rocauc": "auroc",
    "auprc": "auprc",
    "prauc": "auprc",
    "mcc": "matthewscorrcoef",
    "cohenkappa": "cohenkappa",
}
_AROUND = re.compile(r"^(?:compute|calc|calculate|get|eval|evaluate|val|valid|validation|test|train|avg|mean|macro)_")
_SAMPLEWISE = ("torchmetrics.segmentation.", "torchmetrics.functional.segmentation.")
_MICRO_IS_ACCURACY = frozenset({"f1", "fbeta", "precision", "recall"})


Reasons = Callable[[str], "str | None"]  # of a qualified name, why its mean over ranks is wrong


def told_by_library(full: str, options: Mapping[str, object], reasons: Reasons) -> str | None:
    """Return why the mean over ranks of a library's metric is wrong with these options; None where it is not.

    Args:
        full: the qualified name of a function, or of the class of a metric object.
        options: arguments by name, those that are constants.
        reasons: what the table and the user say of a name.
    """
    reason = reasons(full) or _by_options(full, options)
    return None if reason is None or _is_averaged(full, options) else reason


def _by_options(full: str, options: Mapping[str, object]) -> str | None:
    """Metrics that are averageable by default, called so that they are not."""
    stem = averageable.stem(full.rpartition(".")[2])
    if not full.startswith(averageable.LIBRARIES):
        return None
    if stem == "meansquarederror" and options.get("squared") is False:
        return averageable.ROOT_REASON
    return averageable.CLASSES_REASON if stem == "accuracy" and options.get("average") == "macro" else None


def _is_averaged(full: str, options: Mapping[str, object]) -> bool:
    """Options that make a mean over examples of it, or that leave it open."""
    last = full.rpartition(".")[2]
    stem, average = averageable.stem(last), options.get("average")
    if options.get("multidim_average") == "samplewise" or average == "samples":
        return True
    if full.startswith(_SAMPLEWISE) and stem == "dice":
        return options.get("aggregation_level") != "global"
    if stem not in _MICRO_IS_ACCURACY:
        return average == "micro" and stem in ("jaccard", "jaccardindex")
    if "average" not in options and full.startswith("torchmetrics") and not last.lower().startswith("multi"):
        # torchmetrics averages micro unless told otherwise; over classes, that is the accuracy
        if "task" not in options:
            return "num_classes" in options
        return options["task"] in ("multiclass", None)
    return average == "micro"


def told_by_name(name: str) -> str | None:
    """Return why the mean over ranks of what a project's function is called by is wrong; None if that isn't known."""
    text = name.lower()
    while _AROUND.match(text):
        text = _AROUND.sub("", text)
    stem = _NAMES.get(averageable.stem(text))
    return averageable.ENTRIES[stem].reason if stem is not None else None


def guessed(name: str, node: ast.expr, text: str) -> Measure | None:
    """Return what a value measures by what it is called; None if that is not known."""
    reason = told_by_name(name)
    return Measure(name, reason, node.lineno, text, is_guess=True) if reason is not None else None


def one_of_several(scores: Value, key: object, node: ast.expr, text: str) -> Measure | None:
    """Return what one of several metrics is that a library's function returns by name."""
    entry = averageable.named(key) if isinstance(key, str) and scores.family == "scores" else None
    if entry is None or entry.kind != "not averageable" or not scores.is_local or scores.sources:
        return None
    return Measure(str(key), entry.reason, node.lineno, text)


def curved(value: Value, node: ast.expr, text: str, *, is_root: bool) -> Measure | None:
    """Return the measure that ``exp`` or the square root of a value is, where that is a mean."""
    if value.scale not in ("mean", "mean?") or value.reduced or not value.is_local:
        return None
    if is_root:
        return Measure("root of a mean squared error", averageable.ROOT_REASON, node.lineno, text, is_curved=True)
    return Measure("exp of a loss (perplexity)", averageable.EXP_REASON, node.lineno, text, is_curved=True)


def harmonic(node: ast.BinOp, text: str) -> Measure | None:
    """Return F1, of ``2 * precision * recall / (precision + recall)``."""
    above, below = (_parts(node.left, ast.Mult), _parts(node.right, ast.Add))
    if len(set(above)) != 2 or len(above) != 2 or not set(above) <= set(below):
        return None
    return Measure("the harmonic mean of two ratios (F1)", averageable.ENTRIES["f1"].reason, node.lineno, text)


def _parts(node: ast.expr, operator: type[ast.operator]) -> list[str]:
    """The source of what is multiplied or added, without numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, operator):
        return sorted(_parts(node.left, operator) + _parts(node.right, operator))
    return [] if isinstance(node, ast.Constant) else [ast.unparse(node)]


def measure_in(value: Value) -> Measure | None:
    """Return what a value measures, or the first of its parts that measures something."""
    if value.measure is not None or not value.elements:
        return value.measure
    return next(filter(None, map(measure_in, value.elements)), None)

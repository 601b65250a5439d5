"""What a call gives by the name of what it calls: objects, metrics of libraries, roots."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from distlint import averageable
from distlint.apis import REDUCING, end_of, family_of
from distlint.collectives import called
from distlint.origins import is_agreed, is_mean_of_squares, is_per_element
from distlint.source import Source, dotted, keyword, last, object_of, positional, string
from distlint.value import (
    CONSTANT,
    CRITERION,
    EXP,
    LOSS,
    METRIC,
    REDUCED,
    ROOT,
    SHARE,
    UNKNOWN,
    Value,
    joined,
    same,
)

Of = Callable[[cst.BaseExpression | None], Value]  # what is known of an expression
# Functions that give back what they are given, as far as rules are concerned.
KEEPS = re.compile(
    r"item_?|detach|cpu|cuda|float(32)?|double|half|long|int|(from_)?numpy|clone|to(list)?|view|get"
    r"|reshape|(un)?squeeze|flatten|(nan)?mean|average|sum|max|min|abs|round|contiguous|type(_as)?"
    r"|size|cat|[hv]?stack|concatenate|(as_)?tensor|(as)?array|full_like|enumerate|list|tuple|sorted"
    r"|zip|track|tqdm"
)
QUANTILES = re.compile(r"(nan)?(median|quantile)|percentile")
# Libraries whose functions are arithmetic, as far as nothing else is said of them.
_PRIMITIVES = re.compile(
    r"torch(vision|audio)?|numpy|math|statistics|einops|operator|functools|itertools|os|time|random"
    r"|copy|logging|json|pathlib|typing|collections|pandas|cv2|PIL"
)
# Functions of libraries that average over all decisions unless they are told otherwise.
_MICRO = re.compile(
    r"torcheval\.(.*\.)?multiclass_(?!.*au)\w+"
    r"|(torchmetrics|torcheval|lightning\.pytorch\.metrics)\.(.*\.)?"
    r"(f1|fbeta|f1_score|fbeta_score|precision|recall|specificity|dice|precision_recall|stat_scores)"
)


def quantile(name: str) -> Value:
    """Return what a quantile is."""
    return Value("not averageable", name, "a quantile of all data is not a mean of quantiles")


def made(source: Source, value: cst.BaseExpression, of: Of) -> Value:
    """Return what an object is by what constructs it: a metric, a criterion, or unknown."""
    if dotted(value) in ("None", "True", "False"):
        return CONSTANT
    if isinstance(value, cst.IfExp):
        return joined([made(source, value.body, of), made(source, value.orelse, of)])
    if not isinstance(value, cst.Call):
        return UNKNOWN
    name, owner = source.name(value.func), object_of(value)
    if family_of(name) == "metric":
        return METRIC
    if owner is not None and last(value.func) == "to":
        return made(source, owner, of)
    if owner is not None and last(value.func) == "clone":
        return METRIC if of(owner).kind == "metric" else UNKNOWN
    if name in ("torch.nn.ModuleDict", "torch.nn.ModuleList") and value.args:
        return same([made(source, each, of) for each in _parts(value.args[0].value)])
    if "metric" in source.kinds(name):
        return METRIC
    is_criterion = name.startswith("torch.nn.") and name.endswith("Loss")
    return CRITERION if is_criterion else UNKNOWN


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    match node:
        case cst.Dict() | cst.List() | cst.Tuple():
            return [each.value for each in node.elements]
        case cst.DictComp(value=inner) | cst.ListComp(elt=inner):
            return [inner]
    return []


def listed(source: Source, node: cst.Call, name: str, of: Of) -> Value | None:
    """Return what the tables, the user's own first, say of a function."""
    if not name:
        return None
    facts, end = source.facts, end_of(name)
    for own in (name, end):
        if own in facts.non_averageable:
            reason = facts.non_averageable[own] or "as [tool.distlint] says"
            return Value("not averageable", end, reason)
        if own in facts.averageable:
            return SHARE
    against = _against(node, name)
    if against is not None:
        return Value("not averageable", end, against)
    if name.startswith("torch.nn.functional.") and averageable.find(name) is not None:
        return LOSS
    given = positional(node)
    kind = of(given[0]).kind if given else "unknown"
    if QUANTILES.fullmatch(end) and name.startswith(("torch.", "numpy.", "statistics.")):
        return quantile(end) if kind != "reduced" else UNKNOWN
    if end == "exp" and kind == "loss" and name.startswith(("torch.", "numpy.", "math.")):
        return EXP
    return root(source, node.args[0].value, of) if end == "sqrt" and node.args else None


def _against(call: cst.Call, name: str) -> str | None:
    """Return why the mean over ranks of a library's metric is wrong, as it is called."""
    reason, end = averageable.reason_against(name), end_of(name)
    given, reduction = keyword(call, "average"), keyword(call, "reduction")
    average = string(given)
    # Micro averages over classes count each example once, those over labels do not.
    task = string(keyword(call, "task"))
    if given is None and _MICRO.fullmatch(name) and task != "binary":
        average = "micro"
    if reason is not None and average in ("micro", "samples"):
        is_mean = "auroc" not in end and "auc" not in end
        return None if is_mean and (task != "multilabel" or average == "samples") else reason
    if reduction is not None and "segmentation" in name:
        return reason if string(reduction) in ("micro", "macro") else None
    if end == "accuracy" and average == "macro":
        return averageable.CLASSES_REASON
    return averageable.ROOT_REASON if dotted(keyword(call, "squared")) == "False" else reason


def root(source: Source, node: cst.BaseExpression, of: Of) -> Value | None:
    """Return what the root of a mean of squared errors is, as in RMSE; None for other roots."""
    if not is_mean_of_squares(source, node):
        return None  # or a root of each example
    value = of(node)
    if value.kind in ("reduced", "result") or is_agreed(source, node):
        return value if value.kind != "unknown" else REDUCED
    return SHARE if is_per_element(source, node) else ROOT


def is_opaque(source: Source, node: cst.Call, name: str) -> bool:
    """Return whether a function is one of the project, or of a library that is not known."""
    function, (head, dot, _) = called(source, node), dotted(node.func).partition(".")
    if function is not None:
        if head + dot == "self." or brings_together(source, function, or_computes=True):
            return False  # it may ask a metric object
    elif head not in source.imports or not end_of(name).islower():
        return False
    if _PRIMITIVES.fullmatch(name.partition(".")[0]) or averageable.find(name) is not None:
        return False
    return not is_agreed(source, node) and not is_per_element(source, node)


def brings_together(
    source: Source, function: cst.FunctionDef, *, or_computes: bool = False
) -> bool:
    """Return whether a function may bring ranks together, or else asks a metric object."""
    ends = [last(each.func) for each in source.below(function, cst.Call)]
    return any(REDUCING.search(end) or (or_computes and end == "compute") for end in ends)

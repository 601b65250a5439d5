"""Calls whose value is a metric that cannot be averaged: library functions, metric objects, exp(loss), sqrt(mse)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint import averageable
from distlint.facts.declared import reason_against
from distlint.facts.flow import reaching
from distlint.facts.invariance import is_gathered
from distlint.facts.metric_objects import origin, receiver
from distlint.facts.tensor_names import RESHAPES, SAME, TO_FLOAT
from distlint.facts.tree import is_name, keyword, number, positional, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Calls and methods that hand a value on, or average what they are given.
TRANSPARENT = frozenset(
    {
        "array",
        "asarray",
        "as_tensor",
        "FloatTensor",
        "float32",
        "float64",
        "from_numpy",
        "item",
        "mean",
        "nanmean",
        "nan_to_num",
        "numpy",
        "round",
        "stack",
        "tensor",
        "Tensor",
        "tolist",
        "type_as",
    }
    | SAME
    | TO_FLOAT
    | RESHAPES
)
_SAMPLEWISE = ("torchmetrics.segmentation.", "torchmetrics.functional.segmentation.")
_MICRO_IS_ACCURACY = frozenset({"f1", "fbeta", "precision", "recall"})


@dataclass(frozen=True)
class Verdict:
    """A value that must not be averaged over ranks.

    Attributes:
        what: the metric.
        reason: why the mean of parts is not the whole.
        node: where it is computed.
        key: its key, where it is one entry of a dict.
    """

    what: str
    reason: str
    node: cst.CSTNode
    key: str | None = None


@dataclass(frozen=True)
class _Mean:
    """How a mean over examples is recognised: last word of its name, function, class of the callable."""

    words: frozenset[str]
    functions: frozenset[str]
    classes: frozenset[str]


_LOSS = _Mean(
    frozenset({"loss", "losses", "nll", "ce", "entropy", "xent", "nelbo"}),
    frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy"}),
    frozenset({"CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss"}),
)
_SQUARES = _Mean(frozenset({"mse"}), frozenset({"mse_loss", "mean_squared_error"}), frozenset({"MSELoss"}))


def library_metric(facts: ModuleFacts, node: cst.Call) -> Verdict | None:
    """The verdict on a call of a library's function, or of a metric object kept on ``self``."""
    options, name = node, facts.resolve(node.func) or ""
    if name.rpartition(".")[2][:1].isupper():
        return None  # makes a metric object
    attribute, owner = facts.self_attribute(node.func), facts.owner(node)
    if attribute is not None and owner is not None:
        values = [value for value in owner.values(attribute) if isinstance(value, cst.Call)]
        if len(values) != 1:
            return None
        options, name = values[0], facts.resolve(values[0].func) or ""
    reason = reason_against(facts, name) or _reason_by_options(name, options)
    if reason is None or _is_averaged(name, options) or is_per_example(facts, node):
        return None
    return Verdict(name.rpartition(".")[2], reason, node)


def collection_metric(facts: ModuleFacts, node: cst.BaseExpression | None) -> Verdict | None:
    """The verdict on calling a ``MetricCollection`` kept on ``self``: on the first of its metrics that has one."""
    made = _constructor(facts, node) if isinstance(node, cst.Call) else None
    if made is not None and tail(made.func) == "clone":  # self.val = metrics.clone(prefix="val_")
        made = origin(facts, receiver(made))
    if made is None or not (facts.resolve(made.func) or "").startswith("torchmetrics.MetricCollection"):
        return None
    for part in walk(made):
        if isinstance(part, cst.Call) and part is not made:
            full = facts.resolve(part.func) or ""
            reason = reason_against(facts, full)
            if reason is not None and not _is_averaged(full, part):
                return Verdict(full.rpartition(".")[2], reason, part)
    return None


def _reason_by_options(full: str, call: cst.Call) -> str | None:
    """Metrics that are averageable by default, called so that they are not."""
    name = averageable.stem(full.rpartition(".")[2])
    if not full.startswith(averageable.LIBRARIES):
        return None
    if name == "meansquarederror" and is_name(keyword(call, "squared"), "False"):
        return averageable.ROOT_REASON
    if name == "accuracy" and text_of(keyword(call, "average")) == "macro":
        return averageable.CLASSES_REASON
    return None


def _is_averaged(full: str, call: cst.Call) -> bool:
    """Options that make a mean over examples of it, or that leave it open."""
    last = full.rpartition(".")[2]
    stem, average = averageable.stem(last), keyword(call, "average")
    if text_of(keyword(call, "multidim_average")) == "samplewise" or text_of(average) == "samples":
        return True
    if full.startswith(_SAMPLEWISE) and stem == "dice":
        return text_of(keyword(call, "aggregation_level")) != "global"
    if stem not in _MICRO_IS_ACCURACY:
        return text_of(average) == "micro" and stem in ("jaccard", "jaccardindex")
    if average is None and full.startswith("torchmetrics") and not last.lower().startswith("multi"):
        # torchmetrics averages micro unless told otherwise; over classes, that is the accuracy
        task = keyword(call, "task")
        return text_of(task) == "multiclass" or (task is None and keyword(call, "num_classes") is not None)
    return text_of(average) == "micro"


def is_per_example(facts: ModuleFacts, node: cst.Call) -> bool:
    """Whether a comprehension calls the metric for one example after another: their mean averages."""
    for value in positional(node)[:2]:
        base, indexed = value, False
        while isinstance(base, cst.Subscript | cst.Call | cst.Attribute):
            if isinstance(base, cst.Subscript):
                if len(base.slice) > 1:
                    return False  # one column a turn: a class
                index = base.slice[0].slice
                indexed = indexed or (isinstance(index, cst.Index) and _runs(facts, index.value))
            base = base.func if isinstance(base, cst.Call) else base.value
        if indexed or _runs(facts, base):
            return True
    return False


def _runs(facts: ModuleFacts, node: cst.BaseExpression) -> bool:
    """Whether a name takes its value from a loop."""
    if not isinstance(node, cst.Name):
        return False
    return any("iter" in definition.steps for definition in reaching(facts, node)[:1])


def exponential(facts: ModuleFacts, node: cst.Call, value: cst.BaseExpression | None) -> Verdict | None:
    """The verdict on ``exp(value)``: perplexity, if the value is a mean loss."""
    if value is None or not _is_mean(facts, value, _LOSS):
        return None
    return Verdict("exp of a loss (perplexity)", averageable.EXP_REASON, node)


def is_loss(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """Whether a value is a loss, a mean over examples: made by such a function, or called so."""
    return _is_mean(facts, value, _LOSS)


def root(facts: ModuleFacts, node: cst.BaseExpression, value: cst.BaseExpression | None) -> Verdict | None:
    """The verdict on ``sqrt(value)``: RMSE, if the value is a mean of squares."""
    if value is None:
        return None
    if not any(_is_mean(facts, value, kind) for kind in (_SQUARES, _LOSS)) and not _is_mean_of_squares(facts, value):
        return None
    return Verdict("root of a mean squared error", averageable.ROOT_REASON, node)


def _is_mean(facts: ModuleFacts, value: cst.BaseExpression, kind: _Mean, depth: int = 0) -> bool:
    """Whether a value is a mean over examples of some kind: made by such a function, or called so."""
    if depth > 4 or is_gathered(facts, value):
        return False
    if isinstance(value, cst.Call):
        if tail(value.func) in kind.functions:
            return not _keeps_examples(value)
        if (made := _constructor(facts, value)) is not None:
            return tail(made.func) in kind.classes and not _keeps_examples(made)
        if tail(value.func) == "clamp" and facts.resolve(value.func) == "torch.clamp" and positional(value):
            return _is_mean(facts, positional(value)[0], kind, depth + 1)
        below = receiver(value)
        passes = tail(value.func) in TRANSPARENT or tail(value.func) in ("clamp", "clip")
        return passes and below is not None and _is_mean(facts, below, kind, depth + 1)
    if isinstance(value, cst.Subscript):
        index = value.slice[0].slice
        return isinstance(index, cst.Index) and _last_word(text_of(index.value)) in kind.words
    if isinstance(value, cst.Name):
        for definition in reaching(facts, value):
            made_by = definition.value if not definition.steps else None
            if isinstance(made_by, cst.Call) and tail(made_by.func) in kind.functions:
                return _is_mean(facts, made_by, kind, depth + 1)
    return isinstance(value, cst.Name | cst.Attribute) and _last_word(tail(value)) in kind.words


def _constructor(facts: ModuleFacts, call: cst.Call) -> cst.Call | None:
    """How the callable kept on ``self`` was made."""
    attribute, owner = facts.self_attribute(call.func), facts.owner(call)
    values = owner.values(attribute) if attribute is not None and owner is not None else []
    return values[0] if len(values) == 1 and isinstance(values[0], cst.Call) else None


def _is_mean_of_squares(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    """``((a - b) ** 2).mean()`` over everything."""
    if not isinstance(value, cst.Call) or tail(value.func) != "mean" or is_gathered(facts, value):
        return False
    given = positional(value)
    is_function = (facts.resolve(value.func) or "") in ("torch.mean", "numpy.mean")
    if len(value.args) != int(is_function):
        return False  # a mean along one axis: still a value for every example
    base = given[0] if is_function and given else receiver(value)
    if isinstance(base, cst.BinaryOperation):
        return isinstance(base.operator, cst.Power) and number(base.right) == 2
    return isinstance(base, cst.Call) and tail(base.func) in ("square", "pow")


def _last_word(name: str | None) -> str:
    return (name or "").lower().replace("/", "_").rstrip("_0123456789").rpartition("_")[2]


def _keeps_examples(call: cst.Call) -> bool:
    """``reduction="none"``: a value for every example, no mean yet."""
    return text_of(keyword(call, "reduction")) in ("none", "sum") or is_name(keyword(call, "reduce"), "False")

"""What metrics return: objects that are called, functions of libraries, and functions that are called like one."""

from __future__ import annotations

import ast

from distlint import averageable
from distlint.analysis.arguments import constants_of
from distlint.analysis.given import Call
from distlint.analysis.joining import combine
from distlint.analysis.measures import curved, guessed, told_by_library
from distlint.analysis.state import State
from distlint.analysis.value import Measure, Value
from distlint.syntax import FunctionNode

CURVES = frozenset({"exp", "sqrt"})
_LIBRARIES = (*averageable.LIBRARIES, "torch.", "numpy.", "scipy.", "evaluate.", "datasets.")


def named_measure(state: State, target: FunctionNode, node: ast.Call, given: dict[str, Value], result: Value) -> Value:
    """The result of a function of this file, with what its name or the user says that it measures."""
    is_example = any(value.family == "example" for value in given.values())
    if result.measure is not None or is_example or result.scale in ("mean", "mean?") or result.elements:
        return result
    measure = measured_by(state, f"{state.index.name}.{target.name}", {}, combine(list(given.values())), node)
    return result._replace(measure=measure) if measure is not None and not result.reduced else result


def of_metric(state: State, metric: Value, node: ast.Call, whole: Value) -> Value:
    """What calling a metric object returns: its value for this batch."""
    if constants_of(metric.call).get("dist_sync_on_step") is True:
        return Value(0, reduced="gathered", family="result")
    parts = metric.elements or (metric,)
    measures = (measured_by(state, each.name, constants_of(each.call), whole, node, each) for each in parts)
    return whole._replace(family="result", call=node, measure=next(filter(None, measures), None))


def measured_by(
    state: State, name: str, options: dict[str, object], whole: Value, node: ast.Call, made: Value | None = None
) -> Measure | None:
    """What a library's metric measures, if that must not be averaged and is of this rank's data."""
    if not name or not whole.is_local or whole.sources:
        return None
    reason = told_by_library(name, options, state.facts.reason_against)
    if reason is None:
        last = name.rpartition(".")[2]
        return None if name.startswith(_LIBRARIES) else guessed(last, node, state.index.text_of(node))
    place = made.call if made is not None and made.call is not None else node
    return Measure(name.rpartition(".")[2], reason, place.lineno, state.index.text_of(place))


def imported_measure(state: State, name: str, call: Call) -> Measure | None:
    """What an imported function measures, if that must not be averaged; one example after another may be."""
    last = name.rpartition(".")[2]
    if last in CURVES and call.args:
        return curved(call.first, call.node, state.index.text_of(call.node), is_root=last == "sqrt")
    if any(value.family == "example" for value in call.args[:2]) or last[:1].isupper():
        return None
    known = {key: value.constant for key, value in call.options.items()}
    return measured_by(state, name, known, call.given, call.node)


def runs_over_examples(iterable: Value) -> bool:
    """True if a loop's turns are for single examples, so that the mean over them is one over examples."""
    if iterable.family in ("zip", "enumerate"):
        return any(map(runs_over_examples, iterable.elements))
    return iterable.is_local and iterable.family not in ("loader", "outputs", "values", "list", "dict")


def loss_scale(name: str, options: dict[str, object]) -> str:
    """Return what a loss of torch is over its examples, by its name and options; "" of anything else."""
    if not name.startswith("torch.nn.") or not name.lower().endswith(("loss", "entropy")):
        return ""
    given = options.get("reduction", "mean")
    return given if isinstance(given, str) else ""

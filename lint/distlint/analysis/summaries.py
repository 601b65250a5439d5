"""What other files must know of the functions of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distlint.analysis.events import (
    Branch,
    FunctionReport,
    Handled,
    Inlined,
    Loop,
    Node,
    Step,
    Summary,
    matters,
    with_bodies,
)
from distlint.analysis.own import defaults
from distlint.analysis.project import WrappedArgument
from distlint.analysis.samplers import shuffles
from distlint.analysis.value import Elsewhere, Value
from distlint.syntax import FunctionNode, SyntaxIndex


def summaries(index: SyntaxIndex, reports: Mapping[FunctionNode, FunctionReport]) -> Iterator[Summary]:
    """What other files must know: of functions that make collectives, or return what tells the rank or is for ranks."""
    shuffled = {} if "set_epoch" in index.source else _shuffled(index, reports)
    for function in index.all_functions:
        report = reports[function]
        if function.name == "<module>" or function.parent is not None:
            continue
        returns = _with_samplers(report.returns, shuffled)
        if not _tells(returns) and not matters(report.body):
            continue
        owner = f"{function.owner.name}." if function.owner is not None else ""
        names = tuple(each.arg for each in function.parameters)
        names = names[1:] if owner and not function.is_static else names
        name = f"{index.name}.{owner}{function.name}"
        yield Summary(name, names, _plain(report.body), returns.for_other_files(), tuple(defaults(function).items()))


def _tells(value: Value) -> bool:
    """True if other files must know of what a function returns."""
    is_for_ranks = value.wrapped or value.shuffled is not None
    return value.formula is not None or value.is_rank or bool(is_for_ranks) or any(map(_tells, value.elements))


def _shuffled(index: SyntaxIndex, reports: Mapping[FunctionNode, FunctionReport]) -> dict[int, Elsewhere]:
    """The places of shuffling samplers, by the identity of the call."""
    made = (event for report in reports.values() for event in report.events if event.kind == "sampler")
    return {
        id(each.node): Elsewhere(index.path, each.node.lineno, index.text_of(each.node))
        for each in made
        if shuffles(index, each)
    }


def _with_samplers(value: Value, shuffled: Mapping[int, Elsewhere]) -> Value:
    parts = tuple(_with_samplers(part, shuffled) for part in value.elements)
    return value._replace(elements=parts, shuffled=shuffled.get(id(value.sampler), value.shuffled))


def wrapped_arguments(reports: Mapping[FunctionNode, FunctionReport]) -> Iterator[WrappedArgument]:
    """Where a model that is wrapped for all ranks is given to a function of another file."""
    for report in reports.values():
        for event in report.events:
            if event.kind not in ("call", "opaque") or event.target is not None or not isinstance(event.node, ast.Call):
                continue
            name = event.function.module.qualify(event.node.func, event.function)
            given: list[tuple[int | str, Value]] = [*enumerate(event.args), *event.options.items()]
            yield from (WrappedArgument(name, which, value.wrapped) for which, value in given if name and value.wrapped)


def _plain(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """A body without syntax, to be sent to other files."""
    return tuple(with_bodies(_without_syntax(node), _plain) for node in body)


def _without_syntax(node: Node) -> Node:
    if isinstance(node, Step | Inlined):
        return node._replace(event=None)
    return node._replace(node=None) if isinstance(node, Branch | Loop | Handled) else node

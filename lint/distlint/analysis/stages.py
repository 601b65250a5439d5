"""In which stage of a trainer a place is reached: hooks, and helpers that they call with a stage to tell by."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distlint.analysis.events import Event, Guard
from distlint.analysis.formula import Constant
from distlint.analysis.hooks import stage_of
from distlint.analysis.logs import Log
from distlint.analysis.module import Analysis
from distlint.nodes import within
from distlint.syntax import ClassNode, FunctionNode

_DEEPEST = 5
_FAMILIES = frozenset({"lightning_module", "callback"})
# What a module or trainer says of itself while a stage runs.
_STATES: dict[str, frozenset[str]] = {
    "training": frozenset({"training"}),
    "validating": frozenset({"validation"}),
    "testing": frozenset({"test"}),
    "predicting": frozenset({"predict"}),
}
_NEVER = frozenset({"sanity_checking"})


@dataclass(frozen=True)
class Way:
    """How a function is reached.

    Attributes:
        hook: the hook where that begins.
        known: parameters whose values are known there.
        is_always: whether nothing but the stage decides on the way from the hook.
    """

    hook: str
    known: Mapping[str, object]
    is_always: bool = True

    @property
    def stage(self) -> str:
        """The stage of the hook."""
        return stage_of(self.hook)

    def is_always_taken(self, event: Event) -> bool:
        """True if nothing but the stage decides whether a place is reached from the hook."""
        return self.is_always and not any(answer(guard, self) is None for guard in event.guards if guard.kind != "for")


class Stages:
    """Finds what the hooks of a file's modules and callbacks reach."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._ways: dict[FunctionNode, list[Way]] = {}
        for function in analysis.index.all_functions:
            family = analysis.family(function.owner) if function.owner is not None else ""
            if function.is_method and family in _FAMILIES and stage_of(function.name):
                self._reach(function, Way(function.name, {}), 0)

    def ways(self, event: Event) -> list[Way]:
        """How a place is reached; nothing where no hook leads to it, or where the stage is not known to."""
        ways = self._ways.get(event.function, [])
        return [way for way in ways if passes(event.guards, way)]

    def epoch_ends(self, owner: ClassNode) -> Iterator[FunctionNode]:
        """The methods of a class and its bases that run where an epoch ends."""
        for each in self._analysis.index.lineage(owner):
            for method in each.methods.values():
                if any(way.hook.endswith("epoch_end") for way in self._ways.get(method, ())):
                    yield method

    def is_evaluation(self, log: Log) -> bool:
        """True if validation or test logs something on all ranks alike, through Lightning."""
        is_guarded = any(guard.test.is_rank and guard.kind not in ("for", "while") for guard in log.event.guards)
        return log.is_lightning and not is_guarded and self.evaluates(log.event)

    def evaluates(self, event: Event) -> bool:
        """True if validation or test reaches a place."""
        return any(way.stage in ("validation", "test") for way in self.ways(event))

    def _reach(self, function: FunctionNode, way: Way, depth: int) -> None:
        found = self._ways.setdefault(function, [])
        if depth > _DEEPEST or way in found:
            return
        found.append(way)
        for event in self._analysis.reports[function].events:
            target = event.target
            if event.kind != "call" or target is None or stage_of(target.name) or not passes(event.guards, way):
                continue
            is_always = way.is_always and not any(answer(guard, way) is None for guard in event.guards)
            self._reach(target, Way(way.hook, dict(self._given(event, target, way)), is_always), depth + 1)

    def _given(self, event: Event, target: FunctionNode, way: Way) -> Iterator[tuple[str, object]]:
        """What a call gives for parameters, or their defaults, as far as it is constant."""
        parameters = target.parameters
        if target.is_method and not target.is_static:
            parameters = parameters[1:]
        call = event.node
        written = dict(zip((each.arg for each in parameters), getattr(call, "args", ()), strict=False))
        written.update((each.arg, each.value) for each in getattr(call, "keywords", ()) if each.arg)
        for name, node in {**_defaults(target), **written}.items():
            if isinstance(node, ast.Constant):
                yield name, node.value
            elif isinstance(node, ast.Name) and node.id in way.known:
                yield name, way.known[node.id]


def _defaults(function: FunctionNode) -> dict[str, ast.expr]:
    if not isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    arguments = function.node.args
    placed = [*arguments.posonlyargs, *arguments.args]
    found = {each.arg: value for each, value in zip(placed[::-1], arguments.defaults[::-1], strict=False)}
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {**found, **{each.arg: value for each, value in named if value is not None}}


def passes(guards: tuple[Guard, ...], way: Way) -> bool:
    """True if the tests before a place may let a stage pass; one that asks for an unknown stage does not."""
    for guard in guards:
        said = answer(guard, way)
        if said is not None and said is not guard.taken:
            return False
        if said is None and isinstance(guard.node, ast.expr) and _asks_stage(guard.node, way):
            return False
    return True


def answer(guard: Guard, way: Way) -> bool | None:
    """Return the answer to a guard's test in a stage; None where it is not known."""
    if isinstance(guard.test.formula, Constant):
        return guard.test.formula.value
    return decide(guard.node, way) if isinstance(guard.node, ast.expr) and guard.kind not in ("for", "while") else None


def decide(node: ast.expr, way: Way) -> bool | None:
    """Return the answer to a test of the stage; None where it is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = decide(node.operand, way)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        answers = [decide(part, way) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        return decisive if decisive in answers else None if None in answers else not decisive
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(node, way)
    if isinstance(node, ast.Name):
        return bool(way.known[node.id]) if node.id in way.known else None
    if isinstance(node, ast.Attribute):
        if node.attr in _STATES:
            return way.stage in _STATES[node.attr]
        return False if node.attr in _NEVER else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return _call(node, node.func, way)
    return None


def _call(node: ast.Call, func: ast.Attribute, way: Way) -> bool | None:
    """``stage.startswith("val")``."""
    subject = way.known.get(func.value.id) if isinstance(func.value, ast.Name) else None
    given = node.args[0]
    if (
        func.attr not in ("startswith", "endswith")
        or not isinstance(subject, str)
        or not isinstance(given, ast.Constant)
    ):
        return None
    return bool(getattr(subject, func.attr)(given.value)) if isinstance(given.value, str) else None


def _compare(node: ast.Compare, way: Way) -> bool | None:
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(right, ast.Name) and isinstance(left, ast.Constant):
        left, right = right, left
    if not isinstance(left, ast.Name) or left.id not in way.known:
        return None
    value = way.known[left.id]
    if isinstance(operator, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) and isinstance(right, ast.Constant):
        return (value == right.value) is isinstance(operator, ast.Eq | ast.Is)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
        parts = [part.value if isinstance(part, ast.Constant) else None for part in right.elts]
        return (value in parts) is isinstance(operator, ast.In) if None not in parts else None
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.Constant) and isinstance(value, str):
        return (value in str(right.value)) is isinstance(operator, ast.In)
    return None


def _asks_stage(test: ast.expr, way: Way) -> bool:
    """Whether a test compares something with the name of a stage."""
    return any(isinstance(node.value, str) and node.value.rstrip("/_") in _WORDS for node in within(test, ast.Constant))


_WORDS = frozenset({"train", "training", "fit", "val", "valid", "validation", "validate", "test", "eval", "predict"})

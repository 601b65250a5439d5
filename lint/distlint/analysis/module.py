"""The analysis of one file: every function interpreted until what they tell each other no longer changes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from distlint.analysis.events import (
    Branch,
    Event,
    FunctionReport,
    Guard,
    Handled,
    Inlined,
    Loop,
    Node,
    Step,
    Summary,
    bodies,
)
from distlint.analysis.formula import DATA, LOCAL_ZERO, RANK, ZERO
from distlint.analysis.state import Facts
from distlint.analysis.statements import Interpreter
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Reason, Value
from distlint.api import family_of, guard_decorator
from distlint.syntax import FunctionNode, SyntaxIndex

_MOST_ROUNDS = 6
# Methods that a trainer calls with batches, by the family of the class.
_STEPS = {
    "lightning_module": ("training_step", "validation_step", "test_step", "predict_step", "forward"),
    "module": ("forward",),
    "hf_trainer": ("compute_loss", "training_step", "prediction_step"),
}
_GUARDS = {"rank==0": ZERO, "local_rank==0": LOCAL_ZERO}


class Analysis:
    """What the functions of a file do.

    Args:
        index: the file.
        find: returns the summary of a function of another file by its dotted name, or None.
        find_family: returns the family of a class of another file by its dotted name, or "".
    """

    def __init__(
        self,
        index: SyntaxIndex,
        find: Callable[[str], Summary | None] = lambda name: None,
        find_family: Callable[[str], str] = lambda name: "",
    ) -> None:
        self.index = index
        self.facts = Facts(index, find, lambda name: family_of(name) or find_family(name))
        self.reports: dict[FunctionNode, FunctionReport] = {}
        self._settle()

    def events(self, *kinds: str) -> Iterator[Event]:
        """The events of all functions, in the order of the text; of the kinds that are asked for."""
        for function in self.index.all_functions:
            for event in self.reports[function].events:
                if not kinds or event.kind in kinds:
                    yield event

    def _settle(self) -> None:
        pending = sorted(self.index.all_functions, key=_first)
        for _ in range(_MOST_ROUNDS):
            self.facts.stale = set()
            for function in pending:
                self.facts.stale.discard(function)
                self.reports[function] = self._interpret(function)
            pending = sorted(self.facts.stale, key=_first)
            if not pending:
                return

    def _interpret(self, function: FunctionNode) -> FunctionReport:
        interpreter = Interpreter(function, self.facts)
        interpreter.names.update(self.parameters(function))
        guard = next(filter(None, (guard_decorator(self._name(each)) for each in function.decorators)), "")
        if guard:
            decorator = function.decorators[0]
            reason = Reason(decorator.lineno, self._name(decorator))
            interpreter.guards = (Guard("decorator", Value(RANK, reason, _GUARDS[guard], "flag"), decorator),)
        interpreter.run(function.node.body)
        body = tuple(interpreter.block)
        if guard and body:
            place = interpreter.place(function.decorators[0])
            body = (Branch(_GUARDS[guard], body, (), place, function.decorators[0]),)
        self._tell(function, interpreter, body)
        returns = interpreter.returns or NONE_VALUE
        return FunctionReport(function, interpreter.events, body, returns, interpreter.read, interpreter.names)

    def _name(self, decorator: ast.expr) -> str:
        if isinstance(decorator, ast.Call):
            decorator = decorator.func
        return self.index.text_of(decorator)

    def _tell(self, function: FunctionNode, interpreter: Interpreter, body: tuple[Node, ...]) -> None:
        self.facts.tell_body(function, body if matters(body) else ())
        self.facts.tell(("return", function, ""), interpreter.returns or NONE_VALUE)
        if function.name == "<module>":
            for name, value in interpreter.names.items():
                self.facts.tell(("name", self.index, name), value)
        elif function.local:
            for name, value in interpreter.names.items():
                self.facts.tell(("name", function, name), value)

    def parameters(self, function: FunctionNode) -> dict[str, Value]:
        """What is known of the parameters of a function: by its callers, its class, its annotations."""
        owner = function.owner if function.is_method else None
        family = self.facts.family(owner) if owner is not None else ""
        is_step = function.name in _STEPS.get(family, ())
        values: dict[str, Value] = {}
        for position, parameter in enumerate(function.parameters):
            name = parameter.arg
            if position == 0 and owner is not None and not function.is_static:
                values[name] = Value(0, family=family, target=owner, instance=True)
                continue
            known = self.facts.read(("parameter", function, name), function)
            if is_step and not name.endswith(("_idx", "model")):
                known = Value(DATA, Reason(parameter.lineno, name), family="batch")
            annotated = self._annotated(parameter)
            values[name] = annotated if annotated is not None and known is None else known or UNKNOWN_VALUE
        return values

    def _annotated(self, parameter: ast.arg) -> Value | None:
        """What a parameter is by its annotation."""
        annotation = parameter.annotation
        if annotation is None:
            return None
        name = self.index.qualify(annotation)
        family = self.facts.family_of(name) if name else ""
        return Value(family=family, instance=True) if family else None

    def summaries(self) -> Iterator[Summary]:
        """What other files must know: of functions that make collectives or tell the rank."""
        for function in self.index.all_functions:
            report = self.reports[function]
            is_telling = report.returns.formula is not None or report.returns.is_rank
            if function.name == "<module>" or function.parent is not None:
                continue
            if not is_telling and not matters(report.body):
                continue
            owner = f"{function.owner.name}." if function.owner is not None else ""
            names = tuple(each.arg for each in function.parameters)
            names = names[1:] if owner and not function.is_static else names
            returns = report.returns._replace(target=None, elements=(), sources=frozenset())
            yield Summary(f"{self.index.name}.{owner}{function.name}", names, tuple(_plain(report.body)), returns)


def _first(function: FunctionNode) -> tuple[int, int]:
    """The file's own statements first, then methods that set attributes, then the rest."""
    if isinstance(function.node, ast.Module):
        return 0, 0
    return 2 - (function.name in ("__init__", "setup", "__post_init__")), function.node.lineno


def matters(body: tuple[Node, ...]) -> bool:
    """True if callers must know of a body: it has a step that all ranks must make."""
    return any(isinstance(node, Step) or any(map(matters, bodies(node))) for node in body)


def _plain(body: tuple[Node, ...]) -> Iterator[Node]:
    """A body without syntax, to be sent to other files."""
    for node in body:
        if isinstance(node, Branch):
            yield Branch(node.test, tuple(_plain(node.then)), tuple(_plain(node.other)), node.place)
        elif isinstance(node, Loop):
            yield node._replace(body=tuple(_plain(node.body)), node=None)
        elif isinstance(node, Inlined):
            yield Inlined(tuple(_plain(node.body)), node.place, None)
        elif isinstance(node, Handled):
            yield Handled(tuple(_plain(node.body)), tuple(tuple(_plain(each)) for each in node.handlers))
        else:
            yield node._replace(event=None) if isinstance(node, Step) else node

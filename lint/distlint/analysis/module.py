"""The analysis of one file: every function interpreted until what they tell each other no longer changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property

from distlint import averageable
from distlint.analysis.annotations import annotated
from distlint.analysis.calls import defaults
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
from distlint.analysis.formula import DATA, FALSE, LOCAL_ZERO, RANK, ZERO
from distlint.analysis.results import says_many
from distlint.analysis.stages import stage_of, takes_data
from distlint.analysis.state import Facts
from distlint.analysis.statements import Interpreter
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Reason, Value
from distlint.api import family_of, function_effect, guard_decorator
from distlint.syntax import ClassNode, FunctionNode, Located, SyntaxIndex

_MOST_ROUNDS = 6
_IS_INITIALIZED = function_effect("torch.distributed.is_initialized")
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "horovod", "lightning", "lightning_fabric", "pytorch_lightning"})
_STARTED = re.compile(r"environ|rank|world_size|initiali[sz]ed|launch", re.IGNORECASE)
_FRAMEWORKS = frozenset({"accelerator", "fabric", "lightning_module", "deepspeed"})
_SHARDS = re.compile(r"deepspeed|fsdp|fully_?sharded", re.IGNORECASE)
# Methods that a trainer calls with batches, by the family of the class.
_STEPS = {
    "distmetrics_module": ("training_step", "validation_step", "test_step", "shared_step", "forward"),
    "module": ("forward",),
    "hf_trainer": ("compute_loss", "training_step", "prediction_step"),
}
_LOSSES = {"lightning_module": ("training_step",), "hf_trainer": ("compute_loss",)}
_NO_DATA = ("_idx", "_nb", "_index", "_id", "model")  # how parameters of steps end that are no data
_HOOKED = frozenset({"lightning_module", "callback"})
_SAMPLER_SWITCHES = ("use_distributed_sampler", "replace_sampler_ddp")
_GUARDS = {"rank==0": ZERO, "local_rank==0": LOCAL_ZERO}


class Analysis:
    """What the functions of a file do.

    Args:
        index: the file.
        find: returns the summary of a function of another file by its dotted name, or None.
        find_family: returns the family of a class of another file by its dotted name, or "".
        is_declared: whether the user says that a function of this name is collective.
        saves_alone: whether a trainer of Lightning waits for nobody when it saves a checkpoint.
        reason_against: returns why the mean over ranks of a metric is wrong, by its dotted name, or None.
        find_devices: returns for what the trainers that may drive the file's modules are made: "one", "many" or "".
    """

    def __init__(
        self,
        index: SyntaxIndex,
        find: Callable[[str], Summary | None] = lambda name: None,
        find_family: Callable[[str], str] = lambda name: "",
        is_declared: Callable[[str], bool] = lambda name: False,
        reason_against: Callable[[str], str | None] = averageable.reason_against,
        find_devices: Callable[[], str] = lambda: "",
        *,
        saves_alone: bool = False,
    ) -> None:
        self._find_devices = find_devices
        self.index = index
        self.saves_alone = saves_alone
        find_class = lambda name: family_of(name) or find_family(name)  # noqa: E731
        self.facts = Facts(index, find, find_class, is_declared, reason_against)
        self.reports: dict[FunctionNode, FunctionReport] = {}
        self._settle()

    def events(self, *kinds: str) -> Iterator[Event]:
        """The events of all functions, in the order of the text; of the kinds that are asked for."""
        for function in self.index.all_functions:
            for event in self.reports[function].events:
                if not kinds or event.kind in kinds:
                    yield event

    def losses(self) -> Iterator[tuple[FunctionNode, Located, Value]]:
        """What gradients are taken of: of what ``backward`` is called, and what a trainer's steps return."""
        for function, report in self.reports.items():
            for event in report.events:
                if event.kind == "backward":
                    yield function, event.node, event.args[0] if event.args else event.receiver
            owner = function.owner if function.is_method else None
            if owner is None or function.name not in _LOSSES.get(self.facts.family(owner), ()):
                continue
            for node, value in report.returned:
                loss = value.elements[0] if value.elements and value.family == "tuple" else value
                if loss.family not in ("tuple", "dict"):
                    yield function, node, loss

    def needs_all(self, step: Step) -> bool:
        """True if a step is a collective of all ranks."""
        if step.label == "save_checkpoint" and self.saves_alone:
            return False
        return step.effect.kind in ("collective", "wrap") and step.group == FALSE

    def reduces_gradients(self, step: Step) -> bool:
        """True if a backward pass is that of a wrapped model: a framework's, or any in a file that wraps one."""
        is_framework = step.event is not None and step.event.receiver.family in _FRAMEWORKS
        return is_framework or self._wraps_model

    @cached_property
    def _wraps_model(self) -> bool:
        return any(True for _ in self.events("wrap"))

    @cached_property
    def shards_states(self) -> bool:
        """Whether the file names what shards a model's states over ranks."""
        return any(_SHARDS.search(name) for name in self.index.imports.values())

    @cached_property
    def devices(self) -> str:
        """For what the trainers that may drive the file's modules are made: "one", "many", or "" if nothing tells."""
        return self._find_devices() or ("many" if any(map(says_many, self._trainers)) else "")

    @property
    def _trainers(self) -> list[Event]:
        return [event for event in self.events("make") if event.effect.returns == "lightning_trainer"]

    @cached_property
    def evaluates_everything(self) -> bool:
        """Whether every trainer of the file is told to leave samplers alone, and nothing here deals out the data."""
        told = [
            any(event.options.get(name, UNKNOWN_VALUE).constant is False for name in _SAMPLER_SWITCHES)
            for event in self._trainers
        ]
        source = self.index.source.lower().replace(_SAMPLER_SWITCHES[0], "").replace(_SAMPLER_SWITCHES[1], "")
        return bool(told) and all(told) and "sampler" not in source

    @cached_property
    def is_one_process(self) -> bool:
        """Whether every group that the file makes is said to be of one process."""
        made = list(self.events("setup"))
        return bool(made) and not self._is_launched and all(map(_is_of_one, made))

    @property
    def _is_launched(self) -> bool:
        """Whether a library starts processes in its own way, or the file asks whether somebody has."""
        roots = {name.partition(".")[0] for name in self.index.imports.values()}
        asks = any(event.effect == _IS_INITIALIZED for event in self.events("distributed"))
        return asks or not _LAUNCHERS.isdisjoint(roots)

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
        interpreter.gradless = any(map(interpreter.stops_gradients, function.decorators))
        interpreter.run(function.node.body)
        interpreter.read |= _read_inside(function, interpreter)
        body = tuple(interpreter.block)
        if guard and body:
            place = interpreter.place(function.decorators[0])
            body = (Branch(_GUARDS[guard], body, (), place, function.decorators[0]),)
        self._tell(function, interpreter, body)
        returns = interpreter.returns or NONE_VALUE
        report = FunctionReport(function, interpreter.events, body, returns)
        report.read, report.shown, report.named = interpreter.read, interpreter.shown, interpreter.named
        report.environment = interpreter.names
        report.returned = list(interpreter.returned.values())
        return report

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
        is_step = function.name in _STEPS.get(family, ()) or (family in _HOOKED and takes_data(function.name))
        settings = function.with_default if is_step else frozenset()
        values: dict[str, Value] = {}
        for position, parameter in enumerate(function.parameters):
            name = parameter.arg
            is_self = name == "self" or (position == 0 and not function.is_static)
            if is_self and owner is not None:
                values[name] = Value(0, family=family, target=owner, instance=True)
                continue
            known = self.facts.read(("parameter", function, name), function)
            if family == "callback" and position in (1, 2) and function.name.startswith("on_"):
                known = Value(family=("trainer", "lightning_module")[position - 1], instance=True)
            elif is_step and not name.endswith(_NO_DATA) and name not in settings:
                known = self._batch(function, parameter)
            said = annotated(self.facts, parameter.annotation)
            if known is not None and (known.family or known.target or known.wrapped or known.name):
                said = known
            values[name] = (known or said)._replace(
                family=said.family, target=said.target, instance=said.instance, name=said.name
            )
        return values

    def _batch(self, function: FunctionNode, parameter: ast.arg) -> Value:
        """What a step or a hook is given: a batch, or what the step has returned for every batch."""
        reason = Reason(parameter.lineno, parameter.arg)
        stage = stage_of(function.name)
        if not function.name.endswith("_epoch_end") or function.owner is None:
            return Value(DATA, reason, family="batch")
        keys = (("return", each, "") for each in self._steps(function.owner, stage))
        known = next(filter(None, (self.facts.read(key, function) for key in keys)), None)
        if known is None or known.family == "none":
            return Value(DATA, reason, family="outputs")
        return Value(known.varies, known.reason or reason, family="outputs", elements=(known,))

    def _steps(self, owner: ClassNode, stage: str) -> Iterator[FunctionNode]:
        for each in self.index.lineage(owner):
            for name in (f"{stage}_step_end", f"{stage}_step"):
                if name in each.methods:
                    yield each.methods[name]

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
            returns = report.returns.for_other_files()
            name = f"{self.index.name}.{owner}{function.name}"
            yield Summary(name, names, tuple(_plain(report.body)), returns, tuple(defaults(function).items()))


def _is_of_one(event: Event) -> bool:
    """True if a group is made of one process, and not only where nothing has started several."""
    size = event.argument(3, "world_size")
    asks = any(_STARTED.search(ast.dump(guard.node)) for guard in event.guards)
    return size is not None and size.constant == 1 and "**" not in event.options and not asks


def _read_inside(function: FunctionNode, interpreter: Interpreter) -> set[int]:
    """Numbers of the collectives whose results inner functions may read, or others, of names of the file."""
    names = set(interpreter.names) if function.name == "<module>" else set(interpreter.captured)
    for inner in function.local.values():
        names |= {each.id for each in ast.walk(inner.node) if isinstance(each, ast.Name)}
    return {number for name in names if name in interpreter.names for number in interpreter.names[name].sources}


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
            body, last = tuple(_plain(node.body)), tuple(_plain(node.last))
            yield Handled(body, tuple(tuple(_plain(each)) for each in node.handlers), last)
        else:
            yield node._replace(event=None) if isinstance(node, Step) else node

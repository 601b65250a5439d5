"""What rules may ask of one file: what the interpreter has seen in it, and what follows from that."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from distlint.analysis.arguments import says_many
from distlint.analysis.events import Event, FunctionReport, Step
from distlint.analysis.formula import FALSE, axis_of
from distlint.analysis.project import Project
from distlint.analysis.sequences import steps
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import function_effect
from distlint.syntax import ClassNode, FunctionNode, Located, SyntaxIndex

_IS_INITIALIZED = function_effect("torch.distributed.is_initialized")
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "horovod", "lightning", "lightning_fabric", "pytorch_lightning"})
_STARTED = re.compile(r"environ|rank|world_size|initiali[sz]ed|launch", re.IGNORECASE)
_FRAMEWORKS = frozenset({"accelerator", "fabric", "lightning_module", "deepspeed"})
_SHARDS = re.compile(r"deepspeed|fsdp|fully_?sharded", re.IGNORECASE)
_LOSSES = {"lightning_module": ("training_step",), "hf_trainer": ("compute_loss",)}
_SAMPLER_SWITCHES = ("use_distributed_sampler", "replace_sampler_ddp")


@dataclass(eq=False, repr=False)
class Analysis:
    """What the functions of a file do.

    Attributes:
        index: the file.
        project: what is known of other files, and what the user has declared.
        reports: of each function of the file.
        attributes: what attributes of the file's classes hold, by class and name.
        family: returns what a class of the file is by its bases or its methods, such as "lightning_module", or "".
    """

    index: SyntaxIndex
    project: Project
    reports: Mapping[FunctionNode, FunctionReport]
    attributes: Mapping[tuple[object, str], Value]
    family: Callable[[ClassNode], str]

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
            if owner is None or function.name not in _LOSSES.get(self.family(owner), ()):
                continue
            for node, value in report.returned:
                loss = value.elements[0] if value.elements and value.family == "tuple" else value
                if loss.family not in ("tuple", "dict"):
                    yield function, node, loss

    def needs_all(self, step: Step, axis: str = "") -> bool:
        """True if a step is a collective of all ranks, or of all in a group along an axis."""
        is_of_these = axis_of(step.group) == axis if axis else step.group == FALSE
        return is_of_these and step.effect.kind in ("collective", "wrap")

    @cached_property
    def axes(self) -> list[str]:
        """The axes along which there are groups that make collectives, first "" for all ranks."""
        made = (step for report in self.reports.values() for step in steps(report.body))
        return list(dict.fromkeys(["", *(axis_of(step.group) for step in made)]))

    def reduces_gradients(self, step: Step) -> bool:
        """True if a backward pass is that of a wrapped model: a framework's, or any in a file that wraps one."""
        is_framework = step.event is not None and step.event.receiver.family in _FRAMEWORKS
        return is_framework or self._wraps_model

    @cached_property
    def _wraps_model(self) -> bool:
        return any(True for _ in self.events("wrap"))

    @cached_property
    def may_wrap_model(self) -> bool:
        """Whether a model of the file is wrapped, or is by those who hand it over as far as the file knows."""
        names = (value for report in self.reports.values() for value in report.environment.values())
        return self._wraps_model or any(value.wrapped and value.family != "loader" for value in names)

    @cached_property
    def shards_states(self) -> bool:
        """Whether the file names what shards a model's states over ranks."""
        return any(_SHARDS.search(name) for name in self.index.imports.values())

    @cached_property
    def devices(self) -> str:
        """Whether several devices run the code, by the user or a trainer of the file: "many", "" if neither says."""
        is_said = self.project.settings.devices == "many" or any(map(says_many, self._trainers))
        return "many" if is_said else ""

    def is_placed(self, owner: ClassNode) -> bool:
        """True if an object of a class of the file is seen to be handed to a trainer, Fabric or Accelerate."""
        return f"{self.index.name}.{owner.name}" in self.project.placed

    def is_pickled(self, owner: ClassNode) -> bool:
        """True if an object of a class of the file is seen to be saved whole or sent to another process."""
        return f"{self.index.name}.{owner.name}" in self.project.pickled

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


def _is_of_one(event: Event) -> bool:
    """True if a group is made of one process, and not only where nothing has started several."""
    size = event.argument(3, "world_size")
    asks = any(_STARTED.search(ast.dump(guard.node)) for guard in event.guards)
    return size is not None and size.constant == 1 and "**" not in event.options and not asks

"""What one file must know of the others: classes and functions by full name, and what the user has declared."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from distlint import averageable
from distlint.analysis.events import Summary
from distlint.api import base_family
from distlint.modules import absolute_name

_DECLARED = "declared so in [tool.distlint]"


@dataclass(frozen=True)
class ClassSummary:
    """What a class is, for classes in other files that are derived from it.

    Attributes:
        name: full dotted name.
        path: the file.
        line: of its definition.
        bases: full dotted names, as far as they are known.
        family: what it is by its bases, such as "lightning_module" or "dataset", or "".
        known: whether every base, and every base of these, is known.
        methods: the names of its own methods.
        emptied: attributes that some method of it rebinds, clears or deletes outside of ``__init__``.
    """

    name: str
    path: str
    line: int
    bases: tuple[str, ...] = ()
    family: str = ""
    known: bool = False
    methods: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()


def declares(names: Collection[str], full: str) -> str | None:
    """The declared name that a full name is, or ends with: ``pkg.sync`` for ``/src/pkg/__init__.sync``.

    ``*.sync`` stands for every function and method of that name.
    """
    if not names:
        return None
    name = full.replace(os.sep, ".").replace(".__init__.", ".")
    last = "*." + name.rpartition(".")[2]
    return next((one for one in names if one in (name, last) or name.endswith(f".{one}")), None)


@dataclass(frozen=True)
class Settings:
    """What the user has declared in ``[tool.distlint]``.

    Attributes:
        collectives: full names of functions and methods that every rank must call.
        averageable: full names whose mean over ranks is right.
        non_averageable: full names whose mean over ranks is not, each with the reason or "".
        trainer_bases: full names of classes whose subclasses a trainer places and drives.
        devices: whether the code runs on one device or on many, where the user says so.
    """

    collectives: frozenset[str] = frozenset()
    averageable: frozenset[str] = frozenset()
    non_averageable: Mapping[str, str] = field(default_factory=dict)
    trainer_bases: frozenset[str] = frozenset()
    devices: Literal["", "one", "many"] = ""


class WrappedArgument(NamedTuple):
    """A parameter of a function that some file gives a model that is wrapped for all ranks.

    Attributes:
        function: its name, as the file that calls it has it; the full one, where it is told to the function's file.
        which: the position, or the name, of the parameter.
        how: "ddp", "fsdp" or "prepared".
    """

    function: str
    which: int | str
    how: str


@dataclass(frozen=True)
class Project:
    """The files that are checked together, as one of them sees them.

    Full names begin with the path of the file without its ending, so that two modules of one name differ.

    Attributes:
        classes: its own, those that it imports, and their bases, by full name.
        functions: those with a collective, by full name; methods too.
        names: the full name of what an import of the file stands for, by its dotted text.
        opt_outs: arguments that a trainer of the project is given as False, such as ``use_distributed_sampler``.
        settings: what the user has declared.
        placed: full names of the file's classes whose objects are handed to a trainer, Fabric or Accelerate.
        pickled: the same of those that are saved whole, or handed to processes that are spawned.
        spawns: whether the file, or one that imports it, makes that the way to start processes.
        is_launched: whether all that the project says of its processes is that something outside starts them: no
            trainer moves modules to devices, and nothing sends them to other processes.
        wrapped: parameters of the file's functions that other files give wrapped models.
        evidence: what the prefilter must take for present in the file, since other files have it.
    """

    classes: Mapping[str, ClassSummary] = field(default_factory=dict)
    functions: Mapping[str, Summary] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    opt_outs: frozenset[str] = frozenset()
    settings: Settings = field(default_factory=Settings)
    evidence: bytes = b""
    placed: frozenset[str] = frozenset()
    pickled: frozenset[str] = frozenset()
    spawns: bool = False
    is_launched: bool = False
    wrapped: frozenset[WrappedArgument] = frozenset()

    def find_class(self, text: str | None) -> ClassSummary | None:
        """The class that an import, resolved to its dotted text, or a full name stands for."""
        return self.classes.get(self._full(text))

    def find_function(self, text: str | None) -> Summary | None:
        """The function with a collective that an import stands for."""
        return self.functions.get(self._full(text))

    def _full(self, text: str | None) -> str:
        return "" if text is None else self.names.get(text, text)

    def find_method(self, name: str, method: str) -> Summary | None:
        """A method with a collective, of the class of this full name or inherited by it."""
        for found in self.ancestors(name):
            if method in found.methods:
                return self.functions.get(f"{found.name}.{method}")
        return None

    def find(self, name: str) -> Summary | None:
        """The function or method with a collective that a dotted name stands for."""
        return self.find_function(name) or self.find_method(*name.rpartition(".")[::2])

    def ancestors(self, name: str) -> Iterator[ClassSummary]:
        """The class of a full name, or that an import stands for, and its bases, as far as the project knows them."""
        seen: set[str] = set()
        left = [self._full(name)]
        while left:
            current = left.pop(0)
            found = self.classes.get(current)
            if found is None or current in seen:
                continue
            seen.add(current)
            yield found
            left += found.bases

    def family(self, name: str) -> str:
        """The family of the class of another file that a dotted name stands for, or ""."""
        found = self.find_class(name)
        return found.family if found is not None else ""

    def base_family(self, name: str) -> str:
        """The family of what is derived from the class of this dotted name, or ""."""
        if declares(self.settings.trainer_bases, self._full(name)) is not None:
            return "lightning_module"
        found = self.find_class(name)
        return found.family if found is not None else base_family(name)

    def is_collective(self, name: str) -> bool:
        """Whether the user says that every rank must call what a dotted name stands for."""
        declared = self.settings.collectives
        return bool(declared) and declares(declared, self._full(name)) is not None

    def reason_against(self, module: str, name: str) -> str | None:
        """Why the mean over ranks of a metric is wrong; what the user has declared goes before the table.

        Args:
            module: the full name of the file that uses it.
            name: the metric's dotted name there.
        """
        full = absolute_name(module, name)
        if declares(self.settings.averageable, full) is not None:
            return None
        declared = declares(self.settings.non_averageable, full)
        if declared is not None:
            return self.settings.non_averageable[declared] or _DECLARED
        return averageable.reason_against(name)


NO_PROJECT = Project()

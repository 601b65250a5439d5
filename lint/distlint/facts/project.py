"""What one file must know of the others: classes and functions by full name, and what the user has declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["NO_PROJECT", "ClassSummary", "FunctionSummary", "Project", "Settings"]


@dataclass(frozen=True)
class FunctionSummary:
    """What a function does that its callers must know.

    Attributes:
        name: full dotted name, such as ``package.module.Class.method``.
        path: the file.
        line: of its definition.
        collectives: names of the collectives that every call makes, at any depth, in order.
    """

    name: str
    path: str
    line: int
    collectives: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassSummary:
    """What a class is, for classes in other files that are derived from it.

    Attributes:
        name: full dotted name.
        path: the file.
        line: of its definition.
        bases: full dotted names, as far as they are known.
        kinds: what it is to a training framework, see ``facts.classes``.
        methods: the names of its own methods.
        emptied: attributes that some method of it rebinds, clears or deletes outside of ``__init__``.
    """

    name: str
    path: str
    line: int
    bases: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Settings:
    """What the user has declared in ``[tool.distlint]``.

    Attributes:
        collectives: full names of functions and methods that every rank must call.
        averageable: full names whose mean over ranks is right.
        non_averageable: full names whose mean over ranks is not, each with the reason or "".
        trainer_bases: full names of classes whose subclasses a trainer places and drives.
    """

    collectives: frozenset[str] = frozenset()
    averageable: frozenset[str] = frozenset()
    non_averageable: Mapping[str, str] = field(default_factory=dict)
    trainer_bases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Project:
    """The files that are checked together.

    Attributes:
        classes: by full name.
        functions: by full name; methods too.
        opt_outs: arguments that some trainer of the project is given as False, such as ``use_distributed_sampler``.
        settings: what the user has declared.
    """

    classes: Mapping[str, ClassSummary] = field(default_factory=dict)
    functions: Mapping[str, FunctionSummary] = field(default_factory=dict)
    opt_outs: frozenset[str] = frozenset()
    settings: Settings = field(default_factory=Settings)

    def ancestors(self, name: str) -> Iterator[ClassSummary]:
        """The class and its bases, each once, as far as the project knows them."""
        seen: set[str] = set()
        left = [name]
        while left:
            current = left.pop(0)
            found = self.classes.get(current)
            if found is None or current in seen:
                continue
            seen.add(current)
            yield found
            left += found.bases


NO_PROJECT = Project()

"""From the outlines of many files to what each of them knows of the others."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from distlint.analysis import Summary
from distlint.analysis.project import ClassSummary, Project, Settings, WrappedArgument, declares
from distlint.api import base_family, unbound
from distlint.modules import find_module
from distlint.prefilter import EVIDENCE
from distlint.project.outline import Outline
from distlint.project.scan import Scan, imported_by
from distlint.project.told import Told

_MOST = 64  # places that may hand on a name
_STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
# Whose classes are known through and through: what is no family of the tables is of no interest.
_KNOWN = frozenset(
    {"abc", "builtins", "collections", "dataclasses", "enum", "logging", "threading", "typing", "unittest"}
)
_PLACED = frozenset({"callback", "data_module", "lightning_module", "module"})  # by a trainer, wherever they are made


class _Names:
    """What dotted texts mean in the modules of a project.

    Args:
        outlines: of the modules.
        classes: full names of the classes that they define.
    """

    def __init__(self, outlines: Mapping[str, Outline], classes: Collection[str]) -> None:
        self._outlines = outlines
        self._classes = classes
        self._known: dict[tuple[str, str], str | None] = {}

    def full_name(self, key: str, text: str) -> str | None:
        """The full name of the class, function or module of the project that a dotted text in a module means."""
        place = (key, text)
        if place not in self._known:
            self._known[place] = self._find(key, text, set())
        return self._known[place]

    def _find(self, key: str, text: str, seen: set[tuple[str, str]]) -> str | None:
        if (key, text) in seen or len(seen) > _MOST:
            return None
        seen.add((key, text))
        if text.startswith(f"{key}."):
            return self.attribute(key, text.removeprefix(f"{key}."), seen)
        found = find_module(key, text)
        if found is None:
            return None
        module, rest = found
        return self.attribute(module, rest, seen) if rest else module

    def attribute(self, module: str, rest: str, seen: set[tuple[str, str]]) -> str | None:
        """What ``rest`` is in a module that may only hand it on."""
        outline = self._outlines.get(module)
        if outline is None:
            return None
        full = f"{module}.{rest}"
        if full in self._classes or rest in outline.functions:
            return full
        head, dot, below = rest.partition(".")
        if head in outline.imports:
            return self._find(module, outline.imports[head] + dot + below, seen)
        modules = (found for star in outline.stars if (found := find_module(module, star)) is not None)
        return next(
            filter(None, (self._find(each, f"{each}.{rest}", seen) for each, left in modules if not left)), None
        )


class Linker:
    """Links outlines.

    Args:
        scan: the outlines of all files.
        settings: what the user has declared.
        told: what files of settings say.
    """

    def __init__(self, scan: Scan, settings: Settings, told: Told = Told()) -> None:  # noqa: B008 - it is frozen
        self._outlines: Mapping[str, Outline] = scan.outlines
        self._settings = settings
        self._opt_outs = scan.opt_outs | told.opt_outs
        self._raw: dict[str, tuple[str, ClassSummary]] = {}
        for key, outline in scan.outlines.items():
            for summary in outline.classes:
                self._raw[summary.name] = (key, replace(summary, path=scan.paths[key]))
        self._names = _Names(scan.outlines, self._raw)
        self._linked: dict[str, ClassSummary] = {}
        self._functions: dict[str, Summary] = {}
        self._by_module: dict[str, tuple[str, ...]] = {}
        self._changed: set[str] = set()
        self._wrapped: dict[str, dict[str, frozenset[WrappedArgument]]] = {}  # by module, and by who gives it
        self._given_by: dict[str, set[str]] = {}
        self._told: set[str] = set()
        self._users: dict[str, list[str]] = {}
        for key, outline in scan.outlines.items():
            for module in imported_by(key, outline):
                self._users.setdefault(module, []).append(key)
        for full in sorted(self._raw):  # in this order, so that even circles of bases do not depend on another
            self.linked(full)
        self._follow_objects(told)

    def linked(self, full: str) -> ClassSummary:
        """A class with the family that its bases give it, in whatever files they are."""
        if full not in self._linked:
            key, summary = self._raw[full]
            self._linked[full] = replace(summary, bases=())  # for circles
            self._linked[full] = self._link(key, summary)
        return self._linked[full]

    def _link(self, key: str, summary: ClassSummary) -> ClassSummary:
        bases = tuple(self._base(key, text) for text in summary.bases)
        found = [self.linked(base) if base in self._raw else self._outside(base) for base in bases]
        family = next((each.family for each in found if each.family), "")
        known = all(each.known for each in found)
        if not family and not known:
            family = self._by_methods(key, summary)
        return replace(summary, bases=bases, family=family, known=known)

    def _base(self, key: str, text: str) -> str:
        """The full name of a base; of what is not in the project, how the tables call it."""
        if text and "." not in text:  # imported by a star, if at all
            stars = self._names.attribute(key, text, set())
            return stars or unbound(text) or (f"builtins.{text}" if hasattr(builtins, text) else text)
        return self._names.full_name(key, text) or text

    def _outside(self, base: str) -> ClassSummary:
        """What a base is that no file of the project defines."""
        if declares(self._settings.trainer_bases, base) is not None:
            return ClassSummary(base, "", 0, family="lightning_module", known=True)
        family = base_family(base)
        return ClassSummary(base, "", 0, family=family, known=bool(family) or base.partition(".")[0] in _KNOWN)

    def _by_methods(self, key: str, summary: ClassSummary) -> str:
        """What a class of unknown bases is: by a trainer's hooks, or a ``forward`` in a file that imports torch."""
        if not _STEPS.isdisjoint(summary.methods):
            return "lightning_module"
        return "module" if "forward" in summary.methods and self._outlines[key].has_torch else ""

    def _follow_objects(self, told: Told) -> None:
        """Find the classes whose objects are placed or pickled, here or there."""
        handed = {key: outline.handed for key, outline in self._outlines.items()}
        self._makes = {name: (key, each.makes[name]) for key, each in handed.items() for name in each.makes}
        self._is_launched = frozenset().union(*(each.starts for each in handed.values())) == {"launch"}
        self._spawned = self._imported_from(key for key, each in handed.items() if each.spawns)
        classes = told.classes if any(each.placed for each in handed.values()) else frozenset[str]()
        by_settings = (
            full
            for full, summary in self._linked.items()
            if summary.family in _PLACED and full.rpartition(".")[2] in classes
        )
        sent = {key: each.loaded if key in self._spawned else frozenset[str]() for key, each in handed.items()}
        pickled = ((key, each.pickled | sent[key]) for key, each in handed.items())
        self._placed = self._with_parts(
            [*by_settings, *self._named((key, each.placed) for key, each in handed.items())]
        )
        self._pickled = self._with_parts(self._named(pickled))

    def _imported_from(self, programs: Iterable[str]) -> set[str]:
        """Files with all that they import, directly or not: what may run in their process."""
        found, left = set[str](), list(programs)
        while left:
            key = left.pop()
            if key not in found and key in self._outlines:
                found.add(key)
                left += imported_by(key, self._outlines[key])
        return found

    def _named(self, texts: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
        names = (self._names.full_name(key, text) for key, some in texts for text in some if text)
        return [name for name in names if name is not None]

    def _with_parts(self, left: list[str]) -> frozenset[str]:
        """Classes, their bases, and the classes whose objects they make for themselves."""
        found = set[str]()
        while left:
            name = left.pop()
            if name in found or name not in self._raw:
                continue
            found.add(name)
            left += self.linked(name).bases
            left += self._named([self._makes[name]])
        return frozenset(found)

    def set_functions(self, key: str, functions: Collection[Summary]) -> None:
        """Enter what has been found out of a module's functions, and remember who must be told."""
        old = {full: self._functions.pop(full) for full in self._by_module.get(key, ())}
        new = {function.name: function for function in functions}
        self._functions.update(new)
        self._by_module[key] = tuple(new)
        if old != new:
            self._changed.add(key)

    def set_wrapped(self, key: str, arguments: Collection[WrappedArgument]) -> None:
        """Enter what a module gives wrapped models, and remember whose functions these are."""
        given: dict[str, set[WrappedArgument]] = {}
        for each in arguments:
            full = self._names.full_name(key, each.function)
            if full is not None:
                given.setdefault(full.rpartition(".")[0], set()).add(each._replace(function=full))
        for module in given.keys() | self._given_by.get(key, set()):
            new = frozenset(given.get(module, ()))
            if self._wrapped.setdefault(module, {}).get(key, frozenset()) != new:
                self._wrapped[module][key] = new
                self._told.add(module)
        self._given_by[key] = set(given)

    def affected(self) -> list[str]:
        """The modules of which something has changed since the last call: functions that may be visible, or arguments.

        Those that import a changed module, and those that import these: a module may hand on what it imports.
        """
        reached, left = set(self._changed), list(self._changed)
        self._changed = set()
        told, self._told = self._told, set()
        while left:
            users = [user for user in self._users.get(left.pop(), ()) if user not in reached]
            reached.update(users)
            left += users
        return [key for key in self._outlines if key in reached or key in told]

    def view(self, key: str) -> Project:
        """What one file can know: the classes and functions it imports, its own classes, and all their bases."""
        outline = self._outlines[key]
        names: dict[str, str] = {}
        for text in outline.targets:
            names.update(self._visible(key, text))
        own = [summary.name for summary in outline.classes]
        classes: dict[str, ClassSummary] = {}
        for full in (*own, *names.values()):
            self._add_ancestors(full, classes)
        methods = (f"{found.name}.{method}" for found in classes.values() for method in found.methods)
        foreign = (full for full in (*names.values(), *methods) if not full.startswith(f"{key}."))
        return Project(
            classes,
            {full: self._functions[full] for full in foreign if full in self._functions},
            names,
            self._opt_outs,
            self._settings,
            self._evidence(key, own) + (EVIDENCE["wrapped"] if any(self._wrapped.get(key, {}).values()) else b""),
            self._placed.intersection(own),
            self._pickled.intersection(own),
            key in self._spawned,
            self._is_launched,
            frozenset().union(*self._wrapped.get(key, {}).values()),
        )

    def _visible(self, key: str, text: str) -> Iterator[tuple[str, str]]:
        """Classes and collective functions that an import makes visible, with the text they are reached by."""
        full = self._names.full_name(key, text)
        if full is not None and full in self._outlines:
            for name in self._namespace(full):
                below = self._names.attribute(full, name, set())
                if below is not None and (below in self._raw or below in self._functions):
                    yield f"{text}.{name}", below
        elif full is not None and (full in self._raw or full in self._functions):
            yield text, full

    def _namespace(self, module: str) -> Iterator[str]:
        outline = self._outlines[module]
        yield from (summary.name.removeprefix(f"{module}.") for summary in outline.classes)
        yield from outline.functions
        yield from outline.imports

    def _add_ancestors(self, full: str, classes: dict[str, ClassSummary]) -> None:
        if full in classes or full not in self._raw:
            return
        classes[full] = self.linked(full)
        for base in classes[full].bases:
            self._add_ancestors(base, classes)

    def _evidence(self, key: str, own: list[str]) -> bytes:
        """What stands for the bases of the file's classes that are in other files, see ``prefilter``."""
        families = {
            self.linked(full).family
            for full in own
            if any(base in self._raw and not base.startswith(f"{key}.") for base in self.linked(full).bases)
        }
        return b"".join(EVIDENCE[family] for family in sorted(families) if family in EVIDENCE)

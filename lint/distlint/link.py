"""From the outlines of many files to what each of them knows of the others."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from distlint.analysis import Summary
from distlint.drivers import Drivers
from distlint.facts.classes import kinds_by_methods, kinds_of_base
from distlint.facts.outline import HERE, Outline
from distlint.facts.project import ClassSummary, Project, Settings
from distlint.facts.releases import NEW, OLD, OLD_HOOKS, SHARDED
from distlint.facts.scopes import CONVENTIONAL
from distlint.facts.settings import MARKS, NAMED
from distlint.handing import Handing
from distlint.modules import find_module
from distlint.prefilter import KIND_EVIDENCE

_DEEPEST = 12  # re-exports of re-exports


class Linker:
    """Links outlines.

    Args:
        outlines: by module key, see ``modules.module_key``.
        paths: how findings name each module's file.
        settings: what the user has declared.
        opt_outs: arguments that a trainer of the project is given as False.
    """

    def __init__(
        self,
        outlines: Mapping[str, Outline],
        paths: Mapping[str, str],
        settings: Settings,
        opt_outs: Collection[str] = (),
    ) -> None:
        self._outlines = outlines
        self._settings = settings
        self._opt_outs = frozenset(each for each in opt_outs if each not in MARKS and not each.startswith(NAMED))
        self._raw: dict[str, tuple[str, ClassSummary]] = {}
        self._names: dict[tuple[str, str], str | None] = {}
        self._linked: dict[str, ClassSummary] = {}
        for key, outline in outlines.items():
            for summary in outline.classes:
                full = f"{key}.{summary.name}"
                self._raw.setdefault(full, (key, replace(summary, name=full, path=paths[key])))
        self._no_names = Project(settings=settings)
        self.functions: dict[str, Summary] = {}
        self._by_module: dict[str, tuple[str, ...]] = {}
        self._changed: set[str] = set()
        users: dict[str, list[str]] = {}
        for key, outline in outlines.items():
            for text in (*outline.targets, *outline.stars):
                if (found := find_module(key, text)) is not None:
                    users.setdefault(found[0], []).append(key)
        self._drivers = Drivers(outlines, users, opt_outs)
        self._joining = self._all_joining()
        for full in sorted(self._raw):  # in this order, so that even circles of bases do not depend on another
            self.linked(full)
        by_settings = (full for full in self._raw if self._drivers.is_set_up(full.rpartition(".")[2]))
        self._handing = Handing(outlines, self.full_name, self._bases_of, by_settings)
        self._saves_alone = self._is_old()
        self._is_alone = self._drivers.are_for_one_process(is_old=self._saves_alone)

    def full_name(self, key: str, text: str) -> str | None:
        """The full name of the class, function or module of the project that a dotted text in a module means."""
        place = (key, text)
        if place not in self._names:
            self._names[place] = self._find(key, text, frozenset())
        return self._names[place]

    def _find(self, key: str, text: str, seen: frozenset[tuple[str, str]]) -> str | None:
        if (key, text) in seen or len(seen) > _DEEPEST:
            return None
        seen |= {(key, text)}
        if text.startswith(HERE):
            return self._attribute(key, text.removeprefix(HERE), seen)
        found = find_module(key, text)
        if found is None:
            return None
        module, rest = found
        return self._attribute(module, rest, seen) if rest else module

    def _attribute(self, module: str, rest: str, seen: frozenset[tuple[str, str]] = frozenset()) -> str | None:
        """What ``rest`` is in a module that may only hand it on."""
        outline = self._outlines.get(module)
        if outline is None:
            return None
        full = f"{module}.{rest}"
        if full in self._raw or rest in outline.functions:
            return full
        head, dot, below = rest.partition(".")
        if head in outline.imports:
            return self._find(module, outline.imports[head] + dot + below, seen)
        for star in outline.stars:
            found = self._find(module, f"{star}{'' if star.endswith('.') else '.'}{rest}", seen)
            if found is not None:
                return found
        return None

    def linked(self, full: str) -> ClassSummary:
        """A class with the kinds that its bases give it, in whatever files they are."""
        if full not in self._linked:
            key, summary = self._raw[full]
            self._linked[full] = replace(summary, bases=())  # for circles
            self._linked[full] = self._link(key, summary)
        return self._linked[full]

    def _link(self, key: str, summary: ClassSummary) -> ClassSummary:
        kinds: set[str] = set()
        known, bases = True, []
        for text in summary.bases:
            base = self._base(key, summary.name, text)
            if base is not None and base in self._raw:
                found = self.linked(base)
                bases.append(base)
                project = replace(self._no_names, classes={base: found}, names={text: base})
            else:
                text = self._outside(text)
                bases.append(text)
                project = self._no_names
            more, sure = kinds_of_base(text, text.rpartition(".")[2], project)
            kinds |= more
            known = known and sure
        if not known:
            kinds |= kinds_by_methods(summary.methods, has_torch=self._outlines[key].has_torch)
        if not kinds and known:
            kinds.add("plain")
        return replace(summary, bases=tuple(bases), kinds=frozenset(kinds), known=known)

    def _base(self, key: str, name: str, text: str) -> str | None:
        if text.startswith(HERE):  # perhaps beside a nested class
            around = name.rpartition(".")[0]
            while len(around) > len(key):
                full = f"{around}.{text.removeprefix(HERE)}"
                if full in self._raw:
                    return full
                around = around.rpartition(".")[0]
        return self.full_name(key, text) if text else None

    @staticmethod
    def _outside(text: str) -> str:
        """The dotted name of a base that no file of the project defines."""
        if not text.startswith(HERE):
            return text
        name = text.removeprefix(HERE)
        return CONVENTIONAL.get(name, f"builtins.{name}" if hasattr(builtins, name) else name)

    def _bases_of(self, full: str) -> tuple[str, ...]:
        return self.linked(full).bases if full in self._raw else ()

    def set_functions(self, key: str, functions: Collection[Summary]) -> None:
        """Enter what has been found out of a module's functions, and remember who must be told."""
        old = {full: self.functions.pop(full) for full in self._by_module.get(key, ())}
        new = {function.name: function for function in functions}
        self.functions.update(new)
        self._by_module[key] = tuple(new)
        if old != new:
            self._changed.add(key)

    def affected(self) -> list[str]:
        """The modules to which functions may be visible that have changed since the last call."""
        changed, self._changed = self._changed, set()
        reached = self._drivers.reached(changed)
        return [key for key in self._outlines if key in reached]

    def view(self, key: str) -> Project:
        """What one file can know: the classes and functions it imports, its own classes, and all their bases."""
        outline = self._outlines[key]
        names: dict[str, str] = {}
        for text in outline.targets:
            names.update(self._visible(key, text))
        classes: dict[str, ClassSummary] = {}
        own = [f"{key}.{summary.name}" for summary in outline.classes]
        for full in (*own, *names.values()):
            self._add_ancestors(full, classes)
        methods = (f"{found.name}.{method}" for found in classes.values() for method in found.methods)
        foreign = (full for full in (*names.values(), *methods) if not full.startswith(f"{key}."))
        functions = {full: self.functions[full] for full in foreign if full in self.functions}
        evidence, devices = self._evidence(key, own), self._drivers.devices(key)
        return Project(
            classes,
            functions,
            names,
            self._opt_outs,
            self._settings,
            evidence,
            self._handing.placed.intersection(own),
            self._handing.pickled.intersection(own),
            self._handing.spawns,
            devices,
            self._joining_for(key),
            self._saves_alone,
            self._is_alone or self._drivers.is_unused(key),
            self._drivers.is_placed(key),
        )

    def _is_old(self) -> bool:
        """Whether what Lightning 2.0 took away is used, nothing that it brought, and nothing that shards states."""
        signs = self._opt_outs.union(*(outline.releases for outline in self._outlines.values()))
        modules = (summary for summary in self._linked.values() if "lightning" in summary.kinds)
        is_old = OLD in signs or any(OLD_HOOKS & summary.methods for summary in modules)
        return is_old and signs.isdisjoint({NEW, SHARDED})

    def _joining_for(self, key: str) -> frozenset[str]:
        """What the file calls that joins results by example, as it is written there."""
        outline = self._outlines[key]
        if not self._joining:
            return frozenset()
        calls = (text for joiner in outline.joiners.values() for text in joiner.calls)
        return frozenset(text for text in calls if self.full_name(key, outline.full(text)) in self._joining)

    def _all_joining(self) -> frozenset[str]:
        """Full names of the functions and classes that join results by example, or call what does."""
        joiners = [
            (key, f"{key}.{name}", joiner)
            for key, outline in self._outlines.items()
            for name, joiner in outline.joiners.items()
        ]
        found = {full for _, full, joiner in joiners if joiner.joins}
        callers: dict[str | None, list[str]] = {}
        for key, full, joiner in joiners if found else ():
            for text in joiner.calls:
                callers.setdefault(self.full_name(key, self._outlines[key].full(text)), []).append(full)
        left = list(found)
        while left:
            more = [full for full in callers.get(left.pop(), ()) if full not in found]
            found.update(more)
            left += more
        return frozenset(found)

    def _visible(self, key: str, text: str) -> Iterator[tuple[str, str]]:
        """Classes and collective functions that an import makes visible, with the text they are reached by."""
        full = self.full_name(key, text)
        if full is not None and full in self._outlines:
            for name in self._namespace(full):
                below = self._attribute(full, name)
                if below is not None and (below in self._raw or below in self.functions):
                    yield f"{text}.{name}", below
        elif full is not None and (full in self._raw or full in self.functions):
            yield text, full

    def _namespace(self, module: str) -> Iterator[str]:
        outline = self._outlines[module]
        yield from (summary.name for summary in outline.classes if "." not in summary.name)
        yield from outline.functions
        yield from outline.imports

    def _add_ancestors(self, full: str, classes: dict[str, ClassSummary]) -> None:
        if full in classes or full not in self._raw:
            return
        classes[full] = self.linked(full)
        for base in classes[full].bases:
            self._add_ancestors(base, classes)

    def _evidence(self, key: str, own: list[str]) -> bytes:
        kinds: set[str] = set()
        for full in own:
            if any(not base.startswith(f"{key}.") and base in self._raw for base in self.linked(full).bases):
                kinds |= self.linked(full).kinds
        found = [KIND_EVIDENCE[kind] for kind in sorted(kinds) if kind in KIND_EVIDENCE]
        return b"".join(found)

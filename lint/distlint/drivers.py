"""What drives the modules of a project: for how many devices its trainers are made, and whether any uses a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property

from distlint.facts.outline import Outline
from distlint.facts.settings import DYNAMIC, LOOP, NAMED, SEVERAL, WHOLE
from distlint.facts.trainers import BY_SETTINGS, DEFAULT, ONE, OTHER, UNSAID

_TEST = re.compile(r"[\\/]tests?[\\/]|[\\/](?:test_[^\\/]*|conftest)$")


class Drivers:
    """The trainers of a project.

    Args:
        outlines: by module key.
        users: which modules import a module.
        told: what settings and files say, see ``facts.settings`` and ``scan.read_opt_outs``.
    """

    def __init__(
        self, outlines: Mapping[str, Outline], users: Mapping[str, Collection[str]], told: Collection[str]
    ) -> None:
        self._outlines = outlines
        self._users = users
        self._told = frozenset(told)
        self._by_settings = ONE if ONE in self._told and OTHER not in self._told else OTHER
        by_settings = frozenset({self._by_settings} if "Trainer" in self._told else ())
        self._devices = by_settings.union(*(self._tells(key) for key in outlines))

    def devices(self, key: str) -> frozenset[str]:
        """Of the file and those that import it; where it makes no trainer itself, of all others in the project, too.

        Where none of these is known to drive it, settings may name its classes: then nothing is known, unless settings
        and all trainers of the project are for one device.
        """
        own = self._settled(self._outlines[key].devices)
        found = own.union(*(self._tells(user) for user in self.reached({key}) - {key}))
        if not found and self._by_settings == ONE and self._devices <= {ONE}:
            return frozenset({ONE})
        return found if own or not found else found | self._devices

    def are_for_one_process(self, *, is_old: bool) -> bool:
        """Whether there are trainers, and neither they, nor settings, nor any word name several devices.

        A word counts where a trainer leaves the number open.

        Args:
            is_old: whether a trainer that is told nothing is one process, as before Lightning 2.0.
        """
        if not self._devices or not self._devices <= {ONE, UNSAID, DEFAULT} or OTHER in self._told:
            return False
        return self._devices <= ({ONE, DEFAULT} if is_old else {ONE}) or SEVERAL not in self._told

    def is_unused(self, key: str) -> bool:
        """Whether, of a whole project, neither a file nor settings use this file's classes, as they do others.

        Or the project trains in a loop of its own, and has no trainer. What looks up names may use any class.
        """
        if WHOLE not in self._told or DYNAMIC in self._told or self._outlines[key].devices or self._is_used(key):
            return False
        return not self._outlines[key].uses_classes and (self._uses_modules or self._has_loop_alone)

    @cached_property
    def _uses_modules(self) -> bool:
        """Whether some module that a trainer could drive is imported, or named by settings."""
        steps = {"training_step", "validation_step"}
        having = (key for key, each in self._outlines.items() if any(steps & own.methods for own in each.classes))
        return any(self._is_used(key) for key in having)

    @property
    def _has_loop_alone(self) -> bool:
        return not self._devices and LOOP in self._told

    def _is_used(self, key: str) -> bool:
        """Whether an import has the name of this file in it, or settings that of a class of it."""
        return self._is_named(key) or _stem(key) in self._imported

    def is_set_up(self, name: str) -> bool:
        """Whether settings name a class, in a project with a trainer."""
        return bool(self._devices) and f"{NAMED}{name}" in self._told

    def _is_named(self, key: str) -> bool:
        """Whether settings name a class of a file."""
        return any(f"{NAMED}{summary.name}" in self._told for summary in self._outlines[key].classes)

    @cached_property
    def _imported(self) -> frozenset[str]:
        """All parts of the names that are imported: where they lead to depends on how a file is started."""
        texts = (text for each in self._outlines.values() for text in (*each.targets, *each.stars))
        return frozenset(part for text in texts for part in text.split("."))

    def is_placed(self, key: str) -> bool:
        """Whether a file, or one that imports it, names or imports what places modules, or that cannot be told.

        It cannot where not all files are known, where none places any, and where names are looked up or in settings.
        """
        if WHOLE not in self._told or DYNAMIC in self._told or not self._places:
            return True
        return self._is_named(key) or not self._places.isdisjoint(self.reached({key}))

    @cached_property
    def _places(self) -> frozenset[str]:
        """The files that name what places modules, and those that import these."""
        return frozenset(self.reached({key for key, outline in self._outlines.items() if outline.places}))

    def reached(self, keys: set[str]) -> set[str]:
        """Modules, and those that import them: a module may hand on what it imports."""
        reached, left = set(keys), list(keys)
        while left:
            for user in self._users.get(left.pop(), ()):
                if user not in reached:
                    reached.add(user)
                    left.append(user)
        return reached

    def _settled(self, devices: frozenset[str]) -> frozenset[str]:
        """With what settings say."""
        return devices - {BY_SETTINGS} | {self._by_settings} if BY_SETTINGS in devices else devices

    def _tells(self, key: str) -> frozenset[str]:
        """What a file tells others of its trainers; that a test is content with one device says nothing."""
        outline = self._outlines[key]
        devices = self._settled(outline.devices)
        return devices - {ONE, UNSAID, DEFAULT} if _is_test(key, outline) else devices


def _stem(key: str) -> str:
    """The name of a module, or of the package that its file makes."""
    parts = re.split(r"[\\/]", key)
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]


def _is_test(key: str, outline: Outline) -> bool:
    """Whether a file is one of tests by its place or name; ``train_test.py`` may train, and test the model."""
    if _TEST.search(key):
        return True
    tests = (*outline.functions, *(summary.name for summary in outline.classes))
    return key.endswith("_test") and any(name.lower().startswith("test") for name in tests)

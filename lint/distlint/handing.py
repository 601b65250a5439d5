"""From what the files of a project hand on to the classes whose objects are placed or pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from distlint.facts.outline import Outline


class Handing:
    """What becomes of the objects of a project's classes.

    Args:
        outlines: by module key.
        full_name: of the class that a dotted text in a module stands for.
        bases: of a class by full name, as full names.
        by_settings: classes that settings name, in a project with a trainer.

    Attributes:
        placed: full names of classes whose objects are handed to a trainer, Fabric or Accelerate.
        pickled: the same of those that are saved whole, or handed to processes that are spawned.
        spawns: whether some file makes that the way to start processes.
    """

    def __init__(
        self,
        outlines: Mapping[str, Outline],
        full_name: Callable[[str, str], str | None],
        bases: Callable[[str], Iterable[str]],
        by_settings: Iterable[str],
    ) -> None:
        self._outlines = outlines
        self._full_name = full_name
        self._bases = bases
        handed = {key: outline.handed for key, outline in outlines.items()}
        self._makes = {
            f"{key}.{name}": (key, texts) for key, each in handed.items() for name, texts in each.makes.items()
        }
        self.spawns = any(each.spawns for each in handed.values())
        placed = {key: each.placed for key, each in handed.items()}
        pickled = {key: each.pickled | (each.loaded if self.spawns else frozenset()) for key, each in handed.items()}
        self.placed = self._with_parts([*by_settings, *self._named(placed)])
        self.pickled = self._with_parts(self._named(pickled))

    def _named(self, texts: Mapping[str, Iterable[str]]) -> Iterator[str]:
        for key, some in texts.items():
            for text in some:
                full = self._full_name(key, self._outlines[key].full(text)) if text else None
                if full is not None:
                    yield full

    def _with_parts(self, names: Iterable[str]) -> frozenset[str]:
        """Classes, their bases, and the classes whose objects they make for themselves."""
        found, left = set[str](), list(names)
        while left:
            name = left.pop()
            if name in found:
                continue
            found.add(name)
            left += self._bases(name)
            key, texts = self._makes.get(name, ("", ()))
            left += self._named({key: texts})
        return frozenset(found)

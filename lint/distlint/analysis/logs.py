"""Calls of Lightning's ``log`` and ``log_dict``: what they log, and how."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from distlint.analysis.events import Branch, Event, Node, Step, with_bodies
from distlint.analysis.hooks import stage_of
from distlint.analysis.module import Analysis
from distlint.analysis.value import UNKNOWN_VALUE, Value

_LOG = re.compile(rb"\.(?:\s|\\|#[^\n]*\n)*log(?:_dict)?\b")
UNKNOWN_KEYS = "(a dict)"


@dataclass(frozen=True)
class Log:
    """One such call.

    Attributes:
        event: the call.
        many: whether it logs a dict of values.
    """

    event: Event

    @property
    def many(self) -> bool:
        """True for ``log_dict``."""
        return self.event.label == "log_dict"

    @property
    def is_lightning(self) -> bool:
        """True if Lightning logs it."""
        return self.event.receiver.family in ("lightning_module", "callback")

    @property
    def is_plain(self) -> bool:
        """True if it synchronises nothing, keeps no rank from logging, and something is kept of it."""
        is_kept = not all(name in self.event.options and self.flag(name) is False for name in ("on_step", "on_epoch"))
        return is_kept and self.flag("sync_dist") is False and self.flag("rank_zero_only") is False

    @property
    def subject(self) -> Value:
        """The value, or the dict of values."""
        position, name = (0, "dictionary") if self.many else (1, "value")
        return self.event.argument(position, name) or UNKNOWN_VALUE

    @property
    def node(self) -> ast.expr | None:
        """The expression of the value, or of the dict of values."""
        position, name = (0, "dictionary") if self.many else (1, "value")
        return self.event.argument_node(position, name)

    def flag(self, name: str) -> bool | None:
        """Return a switch of the call: False where it is absent, None where it cannot be known."""
        given = self.event.options.get(name)
        if given is None:
            return None if "**" in self.event.options else False
        return given.constant if isinstance(given.constant, bool) else None

    def entries(self) -> Iterator[tuple[str, Value]]:
        """Each logged value with the key of the dict, where it can be seen."""
        subject = self.subject
        if self.many and subject.elements and subject.family == "dict":
            yield from zip(map(str, subject.keys or [""] * len(subject.elements)), subject.elements, strict=True)
        else:
            yield "", subject

    @property
    def waits_for_epoch(self) -> bool:
        """True if a step logs what Lightning brings together at the epoch's end alone."""
        name, on_step = self.event.function.name, self.event.options.get("on_step")
        if not name.endswith(("_step", "_step_end", "_batch_end")):
            return False
        return on_step.constant is False if on_step is not None else stage_of(name) in ("validation", "test")

    def keys(self) -> str:
        """Return what the value is logged under, as source; "" where that cannot be seen."""
        if not self.many:
            node = self.event.argument_node(0, "name")
            return ast.unparse(node) if node is not None else ""
        node = self.node
        if not isinstance(node, ast.Dict) or not all(isinstance(key, ast.Constant) for key in node.keys):
            return ""
        return ", ".join(ast.unparse(key) for key in node.keys if key is not None)


def may_log(source: bytes) -> bool:
    """True if a method called ``log`` or ``log_dict`` may be in a file, told by its bytes."""
    return _LOG.search(source) is not None


def logs(analysis: Analysis) -> Iterator[Log]:
    """Every log of a file, in the order of the text."""
    return map(Log, analysis.events("log"))


def key_of(step: Step) -> str:
    """Return what a log is told apart by: its keys, or its text where they cannot be seen; "" where not all ranks log.

    Modules of distmetrics combine by name whatever ranks have logged, but for what a training step waits for.
    """
    if step.event is None:
        return step.place.text
    log = Log(step.event)
    is_late = log.event.receiver.family == "distmetrics_module" and step.effect.kind != "log"
    if log.flag("rank_zero_only") is not False or is_late:
        return ""
    return log.keys() or UNKNOWN_KEYS


def only_logs(body: tuple[Node, ...], label: Callable[[Step], str]) -> tuple[Node, ...]:
    """Return a body with its logs alone, labelled anew; those that get no label are left out."""
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Step):
            name = label(node) if node.effect.kind in ("log", "local_log") else ""
            kept += [node._replace(label=name)] if name else []
            continue
        inside = with_bodies(node, lambda part: only_logs(part, label))
        if not isinstance(inside, Branch) or inside.then or inside.other:
            kept.append(inside)
    return tuple(kept)

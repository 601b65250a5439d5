"""What Lightning's ``self.log`` and ``self.log_dict`` are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from distlint.collectives import is_log
from distlint.definitions import reaching
from distlint.source import (
    Source,
    argument,
    has_spread,
    is_false,
    is_true,
    keyword,
    last,
    string,
)
from distlint.value import Value
from distlint.values import values_of


@dataclass(frozen=True)
class Log:
    """One value that is logged.

    Attributes:
        call: the call of ``self.log`` or ``self.log_dict``.
        key: the name, its constant parts where it is made at run time; ``""`` where nothing of it
            can be seen.
        is_exact: whether the name is a constant.
        node: the expression that is logged; of an entry of a dict that is made elsewhere, the dict.
        value: what is known of it.
    """

    call: cst.Call
    key: str
    is_exact: bool
    node: cst.BaseExpression
    value: Value

    def option(self, name: str) -> cst.BaseExpression | None:
        """Return the value of an option of the call, or None."""
        return keyword(self.call, name)

    @property
    def syncs(self) -> bool:
        """Whether ranks are reduced, or may be: an option that is no constant counts."""
        given = self.option("sync_dist")
        return has_spread(self.call) or (given is not None and not is_false(given))

    @property
    def of_step_only(self) -> bool:
        """Whether the value is of one step and never becomes one of the epoch."""
        return is_false(self.option("on_epoch"))

    @property
    def of_rank_zero(self) -> bool:
        """Whether ``rank_zero_only`` is given."""
        given = self.option("rank_zero_only")
        return given is not None and not is_false(given)


def logs(source: Source) -> Iterator[Log]:
    """Yield every value that the classes of a file log by Lightning."""
    for call in source.nodes(cst.Call):
        if is_log(source, call):
            yield from _logged(source, call)


def _logged(source: Source, call: cst.Call) -> Iterator[Log]:
    values = values_of(source)
    if last(call.func) == "log":
        name, given = argument(call, 0, "name"), argument(call, 1, "value")
        looped = _looped(source, call, given)
        items = values.entries(looped) if looped is not None else {}
        if looped is not None and items:
            for key, value in items.items():
                yield Log(call, key, False, looped, value)
        elif given is not None:
            is_exact = isinstance(name, cst.SimpleString | cst.ConcatenatedString)
            yield Log(
                call, string(name) or _constant(source, name), is_exact, given, values.of(given)
            )
        return
    given = argument(call, 0, "dictionary")
    if given is None:
        return
    shown = {}
    if isinstance(given, cst.Dict):
        for each in given.elements:
            if isinstance(each, cst.DictElement):
                shown[string(each.key) or ""] = each.value
    entries = values.entries(given)
    for key, value in entries.items():
        yield Log(call, key, True, shown.get(key, given), value)
    if not entries and not isinstance(given, cst.Dict):
        yield Log(call, "", False, given, values.of(given))  # made elsewhere, as a whole


def _looped(
    source: Source, call: cst.Call, given: cst.BaseExpression | None
) -> cst.BaseExpression | None:
    """Return the dict over whose items a loop around a call goes, if a value of it is logged."""
    for each in source.ancestors(call):
        if isinstance(each, cst.For) and isinstance(each.target, cst.Tuple):
            bound = [last(element.value) for element in each.target.elements]
            over = each.iter.func if isinstance(each.iter, cst.Call) else None
            if len(bound) == 2 and last(given) == bound[1] and isinstance(over, cst.Attribute):
                return over.value if over.attr.value == "items" else None
    return None


def _constant(source: Source, name: cst.BaseExpression | None) -> str:
    """Return the constant text that a variable is given once, or ``""``."""
    if not isinstance(name, cst.Name):
        return ""
    given = reaching(source, name).single
    return (string(given.value) or "") if given is not None else ""


def on_step(log: Log, stage: str) -> bool:
    """Return whether a value is logged at each step, as Lightning decides where nothing is said."""
    given = log.option("on_step")
    return is_true(given) if given is not None else stage == "training"

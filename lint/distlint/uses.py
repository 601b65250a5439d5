"""Where a number goes inside one function: to logs alone, or to something that decides."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from distlint.collectives import collective
from distlint.definitions import names, unsubscripted
from distlint.source import Source, dotted, last, object_of

_SHOWS = re.compile(
    r"log(_?dict|_?metrics?|kv|_?scalars?|_?stats)?|add_scalars?|set_(postfix|description)(_str)?"
    r"|print|info|debug|warning|write|writeln|report|desc"
)
_METERS = re.compile(r"meter|metric|loss|acc|avg|average|stat|log|track|monitor", re.IGNORECASE)
_CHANGES = frozenset({"update", "append", "extend", "clear", "pop", "div_", "mul_", "zero_"})
_PURE = re.compile(
    r"float|int|str|round|sum|len|max|min|dict|list|tuple|zip|format|join|sorted|isinstance"
    r"|(torch|numpy|math)\.\w+"
)


class Uses:
    """Follows a number inside one function: to logs, or to something that decides.

    Args:
        source: the file.
        call: what makes the number.
    """

    def __init__(self, source: Source, call: cst.Call) -> None:
        self._source = source
        self._function = source.home(call)
        self._call = call
        self._names: set[str] = set()
        self.seen = False

    def only_shown(self, name: str) -> bool:
        """Return whether the values of a variable after the call go to logs, one at least."""
        return self._follow(name) and self.seen

    def _follow(self, name: str) -> bool:
        if name in self._names:
            return True
        self._names.add(name)
        return all(self.is_shown(each) for each in self._reads(name))

    def _reads(self, name: str) -> Iterator[cst.Name]:
        for each in self._source.below(self._function, cst.Name):
            parent = self._source.parent(each)
            is_read = not isinstance(parent, cst.AssignTarget | cst.Arg) or (
                isinstance(parent, cst.Arg) and parent.value is each
            )
            is_field = isinstance(parent, cst.Attribute) and parent.attr is each
            is_later = self._source.order(each) > self._source.order(self._call)
            is_own = self._source.is_within(each, self._call)
            if each.value == name and is_read and not is_field and is_later and not is_own:
                yield each

    def is_shown(self, node: cst.CSTNode) -> bool:
        """Return whether an expression goes to logs, or to variables that do."""
        below = node
        for each in self._source.ancestors(node):
            if isinstance(each, cst.Call):
                if below is not each.func and not self._passes(each):
                    return self._is_log(each)
            elif isinstance(each, cst.Assign):
                return all(self._goes_to(target.target) for target in each.targets)
            elif isinstance(each, cst.AugAssign | cst.AnnAssign):
                return below is each.target or self._goes_to(each.target)
            elif isinstance(each, cst.Expr):  # a method of a container that only changes it
                return isinstance(below, cst.Call) and last(below.func) in _CHANGES
            elif isinstance(each, cst.Del):
                return True
            elif isinstance(each, cst.BaseStatement | cst.Return | cst.Comparison | cst.Raise):
                return (
                    isinstance(each, cst.For) and below is each.iter and self._goes_to(each.target)
                )
            elif isinstance(each, cst.IfExp) and below is each.test:
                return False
            below = each
        return False

    def _passes(self, call: cst.Call) -> bool:
        """Return whether a call gives back what it is given, in another form."""
        name = self._source.name(call.func)
        if _PURE.fullmatch(name) or collective(self._source, call):
            return True
        return object_of(call) is not None and last(call.func) in ("format", "join")

    def _is_log(self, call: cst.Call) -> bool:
        method = last(call.func)
        owner = object_of(call)
        if _SHOWS.fullmatch(method):
            self.seen = True
            return True
        if owner is None or method not in ("update", "append", "add", "extend"):
            return False
        root = unsubscripted(owner)
        if isinstance(root, cst.Name) and method != "add" and self._is_container(root.value):
            return self._follow(root.value)
        self.seen = self.seen or method == "update"
        return method == "update" and _METERS.search(dotted(root)) is not None

    def _is_container(self, name: str) -> bool:
        """Return whether a variable of the function is given a display of a list or dict."""
        return any(
            isinstance(assign.value, cst.Dict | cst.List)
            for assign in self._source.below(self._function, cst.Assign)
            for target in assign.targets
            if name in names(target.target)
        )

    def _goes_to(self, target: cst.BaseExpression) -> bool:
        root = unsubscripted(target)
        found = names(root)
        return bool(found) and all(self._follow(name) for name in found)

"""A list on the module that every step adds to and nothing empties."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from distlint_new.edits import Change
from distlint_new.rules.base import Rule
from distlint_new.source import Class, block, dotted, last, self_attribute
from distlint_new.values import unsubscripted

_STEP = re.compile(
    r"(?:on_)?(train|training|validation|test)_(?:step|step_end|batch_start|batch_end)"
)
_END = re.compile(r"(?:on_)?(train|training|validation|test)_epoch_end")
_EMPTIES = frozenset({"clear", "pop", "popleft", "popitem"})
_READS = re.compile(r"(?:torch|numpy|statistics|pandas|math)\.[\w.]+|len|sum|max|min|print|enumerate"
                    r"|zip|list|sorted|map|float|tuple|any|all|self\.(?:print|log|all_gather)")  # fmt: skip


class DL301(Rule):
    """A list on the module grows with every step, and nothing ever empties it.

    What goes wrong: the second epoch's metric is made of both epochs' outputs, those of the sanity
    check included, and memory grows until the job is killed:

        epoch 1   accuracy of 10000 examples
        epoch 2   accuracy of 20000 examples, half of them from the weights of epoch 1

    Why: the list is made once, in ``__init__``, and outlives the epoch. Trainers do not know of it.

    How to fix: ``self.outputs.clear()`` at the end of ``on_validation_epoch_end``; or a metric
    object, whose state the trainer resets.

    When it is silent: the class empties the list, assigns it anew, or hands it to a function that
    might; no ``*_epoch_end`` hook reads it; numbers (``loss.item()``), kept as a history; growth
    under a test of the list or of the epoch; classes with a base of the project in another file.
    """

    name = "step-outputs-never-cleared"
    tokens = ((b".append", b".extend", b"+="), (b"_step", b"_batch_"), (b"_epoch_end",))

    def check(self) -> None:
        """Report each growth of such a list in a step, one a list."""
        for owner in self.source.classes.values():
            if owner.kinds & {"lightning_module", "callback"} and not owner.inherited:
                self._check_class(owner)

    def _check_class(self, owner: Class) -> None:
        told: set[str] = set()
        for method in owner.methods.values():
            found = _STEP.fullmatch(method.name.value)
            if found is None or not self.source.is_within(method, owner.node):
                continue
            for node, name, value in self._grown(method):
                hooks = [each for each in self._hooks(owner) if self._reads(owner, each, name)]
                if name in told or not hooks or not self._is_list(owner, name):
                    continue
                if self._is_number(value) or self._is_bounded(node, method, name):
                    continue
                if self._may_empty(owner, name):
                    continue
                told.add(name)
                self.report(
                    node,
                    f"self.{name} grows in each {found[1]} step and is never emptied: "
                    f"self.{name}.clear() at the epoch's end",
                    *self._cleared(hooks, found[1], name),
                )

    def _grown(
        self, method: cst.FunctionDef
    ) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
        """Yield what adds to an attribute of ``self``: the node, the attribute, what is added."""
        for call in self.source.below(method, cst.Call):
            if last(call.func) in ("append", "extend") and isinstance(call.func, cst.Attribute):
                name = self_attribute(unsubscripted(call.func.value))
                if name and len(call.args) == 1:
                    yield call, name, call.args[0].value
        for added in self.source.below(method, cst.AugAssign):
            name = self_attribute(unsubscripted(added.target))
            is_list = isinstance(added.value, cst.List)
            if name and isinstance(added.operator, cst.AddAssign) and is_list:
                yield added, name, added.value

    def _hooks(self, owner: Class) -> Iterator[cst.FunctionDef]:
        yield from (each for name, each in owner.methods.items() if _END.fullmatch(name))

    def _reads(self, owner: Class, hook: cst.FunctionDef, name: str) -> bool:
        """Return whether a hook mentions an attribute, one call deep."""
        inner = [
            owner.methods[called]
            for call in self.source.below(hook, cst.Call)
            if (called := self_attribute(call.func)) in owner.methods
        ]
        return any(
            self_attribute(each) == name
            for function in (hook, *inner)
            for each in self.source.below(function, cst.Attribute)
        )

    def _is_list(self, owner: Class, name: str) -> bool:
        made = owner.attributes.get(name, [])
        return bool(made) and all(
            isinstance(each, cst.List | cst.Dict | cst.DictComp | cst.ListComp)
            or (isinstance(each, cst.Call) and last(each.func) in ("list", "defaultdict"))
            for each in made
        )

    def _is_number(self, value: cst.BaseExpression) -> bool:
        return isinstance(value, cst.Call) and last(value.func) in ("item", "float", "tolist")

    def _is_bounded(self, node: cst.CSTNode, method: cst.FunctionDef, name: str) -> bool:
        tests = (each.test for each in self.source.ancestors(node) if isinstance(each, cst.If))
        texts = [self.source.code(test) for test in tests]
        return any(f"self.{name}" in text or "epoch" in text for text in texts)

    def _may_empty(self, owner: Class, name: str) -> bool:
        """Return whether anything empties an attribute, or might, being handed it or its object."""
        source = self.source
        for call in source.nodes(cst.Call):
            owned = call.func.value if isinstance(call.func, cst.Attribute) else call.func
            if last(call.func) in _EMPTIES and last(unsubscripted(owned)) == name:
                return True
            if source.name(call.func) in ("setattr", "getattr", "vars"):
                return True
        for method in owner.methods.values():
            for each in source.below(method, cst.Attribute):
                if self_attribute(each) == name and self._is_handed_on(each, method):
                    return True
            handed = (a.value for c in source.below(method, cst.Call) for a in c.args)
            if _END.fullmatch(method.name.value) and any(dotted(a) == "self" for a in handed):
                return True
        return False

    def _is_handed_on(self, node: cst.Attribute, method: cst.FunctionDef) -> bool:
        source = self.source
        below: cst.CSTNode = node
        parent = source.parent(below)
        while isinstance(parent, cst.Subscript) and parent.value is below:
            below, parent = parent, source.parent(parent)
        if isinstance(parent, cst.Del):
            return True
        if isinstance(parent, cst.AssignTarget | cst.AnnAssign):
            return method.name.value != "__init__"
        if isinstance(parent, cst.Arg):
            call = source.parent(parent)
            return isinstance(call, cst.Call) and not _READS.fullmatch(source.name(call.func))
        return isinstance(parent, cst.Element | cst.Assign | cst.DictElement | cst.Return)

    def _cleared(self, hooks: list[cst.FunctionDef], stage: str, name: str) -> list[Change]:
        """Return the change that empties a list at the end of the one hook that reads it."""
        found = _END.fullmatch(hooks[0].name.value)
        is_of_stage = found is not None and found[1][:5] == stage[:5]
        if len(hooks) != 1 or not is_of_stage or any(self.source.below(hooks[0], cst.Return)):
            return []
        if not isinstance(hooks[0].body, cst.IndentedBlock):
            return []
        return [Change(block(hooks[0])[-1], f"self.{name}.clear()", "after")]

"""A list on the module that every step adds to and nothing empties."""

from __future__ import annotations

import re

import libcst as cst

from distlint.containers import EPOCH_END, grown, hooks, is_list, may_empty, reads
from distlint.edits import Change
from distlint.rules.base import Rule
from distlint.source import Class, block, last

_STEP = re.compile(
    r"(?:on_)?(train|training|validation|test)_(?:step|step_end|batch_start|batch_end)"
)
_LONGEST = 36  # characters of a name that a message has room for


class DL301(Rule):
    """A list on the module grows with every step, and nothing empties it.

    What goes wrong: memory grows until the job is killed, and the metric of an epoch includes the
    outputs of all epochs before, and of the sanity check:

        epoch 1   accuracy of 10000 samples
        epoch 2   accuracy of 20000 samples, half of them from the weights of epoch 1

    Why: the list is made once, in ``__init__``, and Lightning does not know of it.

    How to fix: ``self.outputs.clear()`` at the end of ``on_validation_epoch_end``. Or use a metric
    object, which Lightning resets when it is logged.

    When it is silent:

    - the class empties the list, assigns it anew, or passes it to a function that may empty it
    - no ``*_epoch_end`` hook reads the list
    - on a history of numbers (``loss.item()``)
    - under a condition on the list or the epoch
    - in classes with a base class of the project in another file
    """

    name = "step-outputs-never-cleared"
    shown = ("bad_validation_outputs", "good_cleared", "bad_callback", "good_numbers_are_a_history")
    tokens = ((b".append", b".extend", b"+="), (b"_step", b"_batch_"), (b"_epoch_end",))
    in_lightning = True

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
            for node, name, value in grown(self.source, method):
                ends = [each for each in hooks(owner) if reads(self.source, owner, each, name)]
                if name in told or not ends or not is_list(owner, name):
                    continue
                if _is_number(value) or self._is_bounded(node, name):
                    continue
                if may_empty(self.source, owner, name):
                    continue
                told.add(name)
                shown = f"self.{name}" if len(name) <= _LONGEST else "this list"
                self.report(
                    node,
                    f"{shown} grows in each {found[1]} step and nothing empties it: "
                    "clear() it at the end of the epoch",
                    *self._cleared(ends, found[1], name),
                )

    def _is_bounded(self, node: cst.CSTNode, name: str) -> bool:
        tests = (each.test for each in self.source.ancestors(node) if isinstance(each, cst.If))
        texts = [self.source.code(test) for test in tests]
        return any(f"self.{name}" in text or "epoch" in text for text in texts)

    def _cleared(self, hooks: list[cst.FunctionDef], stage: str, name: str) -> list[Change]:
        """Return the change that empties a list at the end of the one hook that reads it."""
        found = EPOCH_END.fullmatch(hooks[0].name.value)
        is_of_stage = found is not None and found[1][:5] == stage[:5]
        if len(hooks) != 1 or not is_of_stage or any(self.source.below(hooks[0], cst.Return)):
            return []
        if not isinstance(hooks[0].body, cst.IndentedBlock):
            return []
        return [Change(block(hooks[0])[-1], f"self.{name}.clear()", "after")]


def _is_number(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and last(value.func) in ("item", "float", "tolist")

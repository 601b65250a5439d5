"""Ranks that wait for each other in every training step, only to log a number."""

from __future__ import annotations

import re

import libcst as cst

from distlint.branches import tests_around
from distlint.collectives import collective, hidden_collective, is_about_world
from distlint.definitions import unsubscripted
from distlint.guards import guards, leaves
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import is_true, keyword, last
from distlint.uses import Uses

_REDUCES = re.compile(r"reduce|gather", re.IGNORECASE)
_LOOPS = cst.For | cst.While


class DL304(Rule):
    """A reduction makes all ranks wait in every training step, only to log a number.

    What goes wrong: the reduction waits for the slowest rank, and ``item()`` waits for the device:

        loss = accelerator.gather(loss).mean().item()    # waits for the ranks, and for the device
        wandb.log({"loss": loss})                        # 3 such values: 6 waits in each step

    Why: as Python has waited, the device has no work queued when the next step begins.

    How to fix: reduce in every n-th step, under ``if step % 50 == 0``, with all values stacked in
    one tensor. Or log the value of one rank, which shows the trend as well. ``distmetrics.Log``
    adds up on the device, and combines all ranks, names and steps of a window in one exchange.

    Of several reductions in a step, the first is reported.

    When it is silent:

    - the reduction is under a condition, such as one on the step
    - its result is compared, returned, kept on ``self``, or passed to a function
    - the loop has no backward pass
    - on ``self.log(…, sync_dist=True)``, which is DL302
    """

    name = "stall-for-logging"
    shown = (
        "bad_all_reduce_for_wandb",
        "good_every_nth_step",
        "bad_average_of_accumulated_steps",
        "good_evaluation",
    )
    severity = "warning"
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather"), (b"backward", b"training_step"))

    def check(self) -> None:
        """Report the first reduction of each step whose result is only logged."""
        told: set[cst.CSTNode] = set()
        steps = {step for call in self.source.nodes(cst.Call) if (step := self._backward(call))}
        for call in self.source.nodes(cst.Call):
            step = self._step(call, steps)
            if step is None or step in told:
                continue
            name = collective(self.source, call) or hidden_collective(self.source, call)
            if _REDUCES.search(name) and self._is_each(call, step) and self._is_shown(call):
                told.add(step)
                said = f"every rank waits in this {name} at each step only to log a number"
                self.report(call, f"{said}: do it once every n steps")

    def _backward(self, call: cst.Call) -> cst.CSTNode | None:
        """Return the loop whose turns a backward pass is in, or a training step of Lightning."""
        if last(call.func) not in ("backward", "manual_backward"):
            return None
        return next((e for e in self.source.ancestors(call) if isinstance(e, _LOOPS)), None)

    def _step(self, call: cst.Call, steps: set[cst.CSTNode]) -> cst.CSTNode | None:
        for each in self.source.ancestors(call):
            if each in steps:
                return each
            if isinstance(each, cst.FunctionDef):
                return each if each.name.value == "training_step" else None
        return None

    def _is_each(self, call: cst.Call, step: cst.CSTNode) -> bool:
        """Return whether each turn makes a call, on every rank."""
        source = self.source
        if any(guards(source, call)) or is_true(keyword(call, "async_op")):
            return False
        for test, _ in tests_around(source, call, step):
            if not is_about_world(source, test) and "sync_gradients" not in source.code(test):
                return False
        return not any(
            source.order(each) < source.order(call) and leaves(each.body) and self._counts(each)
            for each in source.below(step, cst.If)
        )

    def _counts(self, branch: cst.If) -> bool:
        return "%" in self.source.code(branch.test)

    def _is_shown(self, call: cst.Call) -> bool:
        """Return whether the result of a reduction goes nowhere but to logs."""
        found = Uses(self.source, call)
        statement = self.source.parent(call)
        if isinstance(statement, cst.Expr):  # in place
            target = unsubscripted(call.args[0].value) if call.args else None
            return isinstance(target, cst.Name) and found.only_shown(target.value)
        return found.is_shown(call) and found.seen

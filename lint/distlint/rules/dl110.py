"""A backward pass that one rank skips because of its own data."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.guards import guards
from distlint.rules.base import Rule
from distlint.source import is_false, last
from distlint.training import (
    DISTRIBUTED_TOKENS,
    Loop,
    Tests,
    goes_on,
    is_backward,
    is_decided_together,
    is_distributed,
    joins,
    leaving,
    loop_of,
    works,
)

_FAILS = "a rank that fails here skips backward, and the others hang: let the exception end the job"
_WAITING = (
    "a rank that skips this batch leaves the others waiting in backward: "
    "let all ranks decide by one all_reduce"
)
_ALONE = "only rank 0 leaves this loop, so the others hang: broadcast its decision"


class DL110(Rule):
    """A rank skips the backward pass because of its own data: the others wait in theirs, and hang.

    What goes wrong: ``backward()`` reduces gradients over ranks, so it is a collective. A rank that
    skips a batch makes one fewer:

        rank 0   backward of batch 7    … waits for rank 1
        rank 1   NaN, continue          → backward of batch 8: gradients of different batches meet

    When rank 1 has no batch left, the job hangs.

    Why: whether a loss is NaN, a batch is empty or a file is broken differs between ranks. In
    Lightning, ``return None`` in ``training_step`` skips the backward pass. A loop that rank 0
    alone leaves skips it, too.

    How to fix: let all ranks decide together, ``dist.all_reduce(bad, op=dist.ReduceOp.MAX)``, and
    skip on all. Or skip on none: after the forward pass,
    ``loss = sum(p.sum() for p in model.parameters()) * 0.0`` gives zero gradients. A NaN loss times
    0 may give NaN gradients. Replace broken samples in the data set.

    When it is silent:

    - the condition was reduced, gathered or broadcast before
    - the condition is on a setting or the number of the step
    - the rank raises or exits instead
    - the training is in a ``join`` context
    - the file of a loop names no distributed training
    - the project of a ``training_step`` does not name several devices
    """

    name = "skipped-backward"
    shown = (
        "bad_nan_loss_is_skipped",
        "good_decided_together",
        "bad_training_step_returns_none",
        "good_zero_loss_instead",
    )
    tokens = ((b"backward", b"training_step"), (*DISTRIBUTED_TOKENS, b"training_step"))
    several_devices = True

    def check(self) -> None:
        """Report skips in loops that train, and steps that return nothing."""
        source, self.tests = self.source, Tests(self.source)
        told: set[cst.CSTNode] = set()
        for call in source.nodes(cst.Call) if is_distributed(source) else ():
            loop = loop_of(source, call)
            if loop is None or not is_backward(source, call) or joins(source, call):
                continue
            for place, message in (*self._skips(call, loop), *self._stops(call)):
                if place not in told:
                    told.add(place)
                    self.report(place, message, several_devices=False)
        for method in self.methods_of("lightning_module"):
            if method.name.value == "training_step":
                self._check_step(method)

    def _skips(self, backward: cst.Call, loop: Loop) -> Iterator[tuple[cst.CSTNode, str]]:
        source, at = self.source, self.source.order(backward)
        for branch in source.below(loop, cst.If):
            if loop_of(source, branch) is not loop or source.order(branch) > at:
                continue
            is_around = source.is_within(backward, branch.body)
            left = any(leaving(source, branch.body, loop))
            is_apart = left and not source.is_within(backward, branch)
            if (is_around or is_apart) and self.tests.is_own(branch.test):
                yield branch, _WAITING
                if is_around:
                    return  # the tests inside of it say the same
        for tried in source.below(loop, cst.Try):
            if loop_of(source, tried) is not loop or source.order(tried) > at:
                continue
            calls = list(source.below(tried.body, cst.Call))
            if any(is_backward(source, each) for each in calls):
                continue  # DL109
            if not any(works(each) for each in calls):
                continue
            for handler in tried.handlers:
                if goes_on(source, handler) and any(leaving(source, handler, loop)):
                    yield handler, _FAILS
        for leave in source.below(loop, cst.Break):
            guard = next(guards(source, leave), None)
            if loop_of(source, leave) is not loop or guard is None or not guard.first:
                continue
            if source.is_within(guard.node, loop):
                yield leave, _ALONE

    def _stops(self, backward: cst.Call) -> Iterator[tuple[cst.CSTNode, str]]:
        """Yield the leaves of loops around a pass by what only rank 0 has set."""
        source = self.source
        scope = source.function(backward) or source.module
        for leave in source.own(scope, cst.Break):
            branch = next((e for e in source.ancestors(leave) if isinstance(e, cst.If)), None)
            loop, test = loop_of(source, leave), branch.test if branch is not None else None
            if loop is None or not isinstance(test, cst.Name):
                continue
            if not source.is_within(backward, loop) or is_decided_together(source, test):
                continue
            for each in source.assigned(scope).get(test.value, []):
                guard = next(guards(source, each.statement), None)
                if guard is not None and guard.first and source.is_within(guard.node, loop):
                    yield leave, _ALONE

    def _check_step(self, method: cst.FunctionDef) -> None:
        source = self.source
        if any(
            is_false(assign.value)
            for assign in source.nodes(cst.Assign)
            if any(last(t.target) == "automatic_optimization" for t in assign.targets)
        ):
            return
        for branch in source.own(method, cst.If):
            if self._returns_nothing(branch.body, method) and self.tests.is_own(branch.test):
                self.report(
                    branch,
                    "a rank that returns None skips backward, and the others hang: "
                    "return a zero loss instead",
                )
        for handler in source.own(method, cst.ExceptHandler):
            if goes_on(source, handler) and self._returns_nothing(handler, method):
                self.report(handler, _FAILS)

    def _returns_nothing(self, node: cst.CSTNode, method: cst.FunctionDef) -> bool:
        left = leaving(self.source, node, method)
        return any(isinstance(each, cst.Return) for each in left)

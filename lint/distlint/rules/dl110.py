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
_TOGETHER = "let all ranks decide by one all_reduce"

_ALONE = "only rank 0 leaves this loop, so the others hang: decide on every rank"


class DL110(Rule):
    """A rank skips the backward pass because of its own data: the others wait in theirs, and hang.

    What goes wrong: gradients are reduced inside of ``backward()``, so that it is a collective. A
    rank that leaves out a bad batch makes one fewer:

        rank 0   backward of batch 7    … waits for rank 1
        rank 1   NaN, continue          → backward of batch 8: gradients of different batches meet

    At the end, when rank 1 has run out of batches, the others wait for ever.

    Why: whether a loss is NaN, a batch is empty or a file is broken is a question of each rank's
    own data. In ``training_step`` of Lightning, ``return None`` skips the backward pass in the same
    way.

    How to fix: let all ranks decide together, ``dist.all_reduce(bad, op=dist.ReduceOp.MAX)``, and
    all skip. Or skip nobody: ``loss = torch.nan_to_num(loss) * 0.0`` keeps the backward pass and
    adds nothing. Broken samples are best replaced in the dataset.

    When it is silent: what is tested was reduced, gathered or broadcast before; the test is of
    settings or the number of the step; the process ends; training in a ``join`` context; nothing in
    the file says that several devices train.
    """

    name = "skipped-backward"
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
                yield (
                    branch,
                    f"a rank that skips this batch leaves the others in backward: {_TOGETHER}",
                )
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
                    "return a loss times 0 instead",
                )
        for handler in source.own(method, cst.ExceptHandler):
            if goes_on(source, handler) and self._returns_nothing(handler, method):
                self.report(handler, _FAILS)

    def _returns_nothing(self, node: cst.CSTNode, method: cst.FunctionDef) -> bool:
        left = leaving(self.source, node, method)
        return any(isinstance(each, cst.Return) for each in left)

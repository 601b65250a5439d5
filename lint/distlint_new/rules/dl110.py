"""A backward pass that one rank skips because of its own data."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint_new.guards import guards
from distlint_new.rules.base import Rule
from distlint_new.source import argument, dotted, is_false, last, number
from distlint_new.training import (
    Loop,
    goes_on,
    is_agreed,
    is_backward,
    is_distributed,
    leaving,
    loop_of,
    works,
)

_FINITE = frozenset({"isnan", "isfinite", "isinf", "is_nan", "is_finite"})
_SIZES = frozenset({"numel", "nelement", "len", "size", "sum", "count_nonzero"})
_LARGE = cst.GreaterThan | cst.GreaterThanEqual | cst.LessThan | cst.LessThanEqual
_TOGETHER = "let all ranks decide by one all_reduce"


class DL110(Rule):
    """A rank skips the backward pass because of its own data: the others wait in theirs, and hang.

    What goes wrong: gradients are reduced inside of ``backward()``, so that it is a collective. A
    rank that leaves out a bad batch makes one fewer:

        rank 0   backward of batch 7    … waits for rank 1
        rank 1   NaN, continue          → backward of batch 8: gradients of different batches meet

    At the end, when rank 1 has run out of batches, the others wait for ever.

    Why: whether a loss is NaN, a batch is empty or a file is broken is a question of each rank's own
    data. In ``training_step`` of Lightning, ``return None`` skips the backward pass in the same way.

    How to fix: let all ranks decide together, ``dist.all_reduce(bad, op=dist.ReduceOp.MAX)``, and
    all skip. Or skip nobody: ``loss = torch.nan_to_num(loss) * 0.0`` keeps the backward pass and
    adds nothing. Broken samples are best replaced in the dataset.

    When it is silent: what is tested was reduced, gathered or broadcast before; the test is of
    settings or the number of the step; the process ends; training in a ``join`` context; nothing in
    the file says that several devices train.
    """

    name = "skipped-backward"
    tokens = ((b"backward", b"training_step"),)
    several_devices = True

    def check(self) -> None:
        """Report skips in loops that train, and steps that return nothing."""
        source = self.source
        told: set[cst.CSTNode] = set()
        for call in source.nodes(cst.Call) if is_distributed(source) else ():
            loop = loop_of(source, call)
            if loop is None or not is_backward(source, call) or self._joins(call):
                continue
            for place, message in self._skips(call, loop):
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
            left = any(True for _ in leaving(source, branch.body, loop))
            is_apart = left and not source.is_within(backward, branch)
            if (is_around or is_apart) and self._is_own(branch.test):
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
            if not any(works(source, each) for each in calls):
                continue
            for handler in tried.handlers:
                if goes_on(source, handler) and any(True for _ in leaving(source, handler, loop)):
                    yield (
                        handler,
                        (
                            "a rank that fails here skips backward, and the others hang: "
                            "let the exception end the job"
                        ),
                    )
        for leave in source.below(loop, cst.Break):
            guard = next(guards(source, leave), None)
            if loop_of(source, leave) is not loop or guard is None or not guard.first:
                continue
            if source.is_within(guard.node, loop):
                yield (
                    leave,
                    "only rank 0 leaves this loop, so the others hang: decide on every rank",
                )

    def _check_step(self, method: cst.FunctionDef) -> None:
        source = self.source
        if any(
            is_false(assign.value)
            for assign in source.nodes(cst.Assign)
            if any(last(t.target) == "automatic_optimization" for t in assign.targets)
        ):
            return
        for branch in source.own(method, cst.If):
            if self._returns_nothing(branch.body, method) and self._is_own(branch.test):
                self.report(
                    branch,
                    "a rank that returns None skips backward, and the others hang: "
                    "return a loss times 0 instead",
                )
        for handler in source.own(method, cst.ExceptHandler):
            if goes_on(source, handler) and self._returns_nothing(handler, method):
                self.report(
                    handler,
                    "a rank that fails here skips backward, and the others hang: "
                    "let the exception end the job",
                )

    def _returns_nothing(self, node: cst.CSTNode, method: cst.FunctionDef) -> bool:
        left = leaving(self.source, node, method)
        return any(isinstance(each, cst.Return) for each in left)

    def _joins(self, node: cst.CSTNode) -> bool:
        around = (each for each in self.source.ancestors(node) if isinstance(each, cst.With))
        items = (item.item for each in around for item in each.items)
        return any(last(i.func) in ("join", "Join") for i in items if isinstance(i, cst.Call))

    # What is tested

    def _is_own(self, test: cst.BaseExpression) -> bool:
        """Return whether a test may come out differently on each rank, because of its data."""
        if isinstance(test, cst.BooleanOperation):
            sides = test.left, test.right
            if isinstance(test.operator, cst.And) and any(map(self._is_mode, sides)):
                return False
            return any(map(self._is_own, sides))
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._is_own(test.expression)
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return self._compares(test) and not is_agreed(self.source, self.values, test)
        return self._asks(test) and not is_agreed(self.source, self.values, test)

    def _is_mode(self, test: cst.BaseExpression) -> bool:
        """Return whether a test asks for a setting that somebody has to give."""
        if not isinstance(test, cst.Comparison) or not isinstance(test.left, cst.Attribute):
            return False
        return dotted(test.comparisons[0].comparator) == "None" and not self._is_data(test.left)

    def _asks(self, test: cst.BaseExpression) -> bool:
        """Return whether this is ``isnan(loss)``, ``all(valid)``, ``mask.any()`` or ``len(batch)``."""
        if isinstance(test, cst.Name):  # a flag that was set by such a test
            found = self.values.definitions(test.value, test).listed
            asked = [each.value for each in found if each.how == "is" and each.value is not None]
            is_test = len(asked) == 1 and not isinstance(asked[0], cst.Name)
            return is_test and self._is_own(asked[0])
        if not isinstance(test, cst.Call):
            return False
        name, given = last(test.func), argument(test, 0)
        inner = test.func.value if isinstance(test.func, cst.Attribute) else None
        if name in ("item", "any", "all", "bool") and self._asks(inner or given or test.func):
            return True
        about = given if given is not None else inner
        if about is None or "grad" in self.source.code(about):
            return False
        if name in _FINITE:
            return True
        return name in ("all", "any", "len", "numel", "nelement") and self._is_data(about)

    def _compares(self, test: cst.Comparison) -> bool:
        left, right = test.left, test.comparisons[0].comparator
        operator, limit = test.comparisons[0].operator, number(right)
        if dotted(right) == "None":
            return isinstance(operator, cst.Is | cst.Equal) and self._is_data(left)
        if limit is None:
            return False
        about = left.value if isinstance(left, cst.Subscript) else left
        if isinstance(about, cst.Attribute) and about.attr.value == "shape":
            return limit == 0 and self._is_data(about.value)
        if isinstance(left, cst.Call) and last(left.func) in _SIZES:
            given = argument(left, 0) if last(left.func) == "len" else None
            inner = left.func.value if isinstance(left.func, cst.Attribute) else given
            is_empty = limit == 0 or (limit == 1 and isinstance(operator, cst.LessThan))
            return is_empty and self._is_data(inner)
        return isinstance(operator, _LARGE) and self.values.of(left).kind == "loss"

    def _is_data(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a value is of the batch, or a loss made of it."""
        return node is not None and self.values.of(node).kind in ("share", "loss")

"""Where a function trains, and what of it all ranks agree on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.apis import REDUCING
from distlint.collectives import called, collective, straight
from distlint.definitions import reaching
from distlint.source import Source, argument, dotted, last, number, object_of
from distlint.values import values_of

# What stands in files that train on several devices by themselves.
DISTRIBUTED_TOKENS = (
    b"DistributedDataParallel", b"DDP", b"FullyShardedDataParallel", b"FSDP", b"fully_shard",
    b"Accelerator", b"accelerator", b"Fabric", b"fabric", b"LightningLite", b"deepspeed",
    b"torch.distributed", b"horovod",
)  # fmt: skip
# Exceptions that are the same on all ranks (of the code, of who stops a job), or are waited for.
_EXPECTED = frozenset({
    "AttributeError", "EOFError", "Empty", "ImportError", "KeyboardInterrupt",
    "ModuleNotFoundError", "NameError", "NotImplementedError", "StopIteration", "SystemExit",
    "TypeError",
})  # fmt: skip
_ENDS = frozenset({"exit", "_exit", "quit", "abort", "kill", "fail", "destroy_process_group"})
_SHOWS = frozenset(
    {"print", "info", "debug", "warning", "error", "exception", "log", "time", "sleep"}
)
_FINITE = frozenset({"isnan", "isfinite", "isinf", "is_nan", "is_finite"})
_SIZES = frozenset({"numel", "nelement", "len", "size", "sum", "count_nonzero"})
_LARGE = cst.GreaterThan | cst.GreaterThanEqual | cst.LessThan | cst.LessThanEqual
Loop = cst.For | cst.While


def is_distributed(source: Source) -> bool:
    """Return whether a file wraps a model for several devices, or a framework does it there."""
    text = source.text.text
    return any(token.decode() in text for token in DISTRIBUTED_TOKENS)


def is_backward(source: Source, call: cst.Call) -> bool:
    """Return whether a call runs the backward pass, itself or on the straight way of a function."""
    if last(call.func) in ("backward", "manual_backward"):
        return "autograd" not in dotted(call.func)
    function = called(source, call)
    if function is None or function is source.function(call):
        return False
    return any(
        last(each.func) in ("backward", "manual_backward") for each in straight(source, function)
    )


def joins(source: Source, node: cst.CSTNode) -> bool:
    """Return whether a ``join`` context makes up for the passes that a rank leaves out."""
    calls = (each for each in source.contexts(node) if isinstance(each, cst.Call))
    return any(last(each.func) in ("join", "Join") for each in calls)


def loop_of(source: Source, node: cst.CSTNode) -> Loop | None:
    """Return the loop of the same function that a node is in."""
    for each in source.ancestors(node):
        if isinstance(each, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(each, cst.For | cst.While):
            return each
    return None


def leaving(source: Source, node: cst.CSTNode, loop: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what leaves a loop or its turn from inside of a node, or the function with nothing."""
    for leave in source.below(node, cst.Return):
        if leave.value is None or dotted(leave.value) == "None":
            yield leave
    for each in source.below(node, cst.Continue, cst.Break):
        if loop_of(source, each) is loop:
            yield each


def goes_on(source: Source, handler: cst.ExceptHandler) -> bool:
    """Return whether a handler lets this rank go on, whatever the others do."""
    if handler.type is not None:
        caught = source.inside(handler.type, cst.Name, cst.Attribute)
        if not _EXPECTED.isdisjoint(map(last, caught)):
            return False
    calls = source.below(handler, cst.Call)
    if any(last(each.func) in _ENDS or collective(source, each) for each in calls):
        return False
    if not any(source.below(handler, cst.Raise)):
        return True
    # A branch of it, as for "out of memory", goes on; the rest raises.
    loop = loop_of(source, handler)
    return loop is not None and any(leaving(source, handler, loop))


def is_decided_together(source: Source, node: cst.CSTNode, depth: int = 3) -> bool:
    """Return whether something that brings ranks together has a part in an expression."""
    calls = source.inside(node, cst.Call)
    if any(REDUCING.search(dotted(each.func) or last(each.func)) for each in calls):
        return True
    names = list(source.inside(node, cst.Name))
    before = [each for name in names for each in reaching(source, name).listed]
    if any(each.how == "reduced" for each in before):
        return True
    made = [each.value for each in before if each.value is not None] if depth else []
    return any(is_decided_together(source, each, depth - 1) for each in made) or any(
        _is_given(source, name) for name in names
    )


def _is_given(source: Source, name: cst.Name) -> bool:
    """Return whether a function that brings ranks together has been given a variable before."""
    function = source.function(name)
    if function is None:
        return False
    return any(
        isinstance(given.value, cst.Name) and given.value.value == name.value
        for call in source.below(function, cst.Call)
        if source.order(call) < source.order(name) and REDUCING.search(last(call.func))
        for given in call.args
    )


def works(call: cst.Call) -> bool:
    """Return whether a call does more than show something."""
    return last(call.func) not in _SHOWS


class Tests:
    """Answers which tests may come out differently on each rank, because of its data.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.values = values_of(source)

    def is_own(self, test: cst.BaseExpression) -> bool:
        """Return whether a test may come out differently on each rank, because of its data."""
        if isinstance(test, cst.BooleanOperation):
            sides = test.left, test.right
            if isinstance(test.operator, cst.And) and any(map(self._is_mode, sides)):
                return False
            return any(map(self.is_own, sides))
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.is_own(test.expression)
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return self._compares(test) and not is_decided_together(self.source, test)
        return self._asks(test) and not is_decided_together(self.source, test)

    def _is_mode(self, test: cst.BaseExpression) -> bool:
        """Return whether a test asks for a setting that somebody has to give."""
        if not isinstance(test, cst.Comparison) or not isinstance(test.left, cst.Attribute):
            return False
        return dotted(test.comparisons[0].comparator) == "None" and not self._is_data(test.left)

    def _asks(self, test: cst.BaseExpression) -> bool:
        """Return whether this is ``isnan(loss)``, ``all(valid)``, ``x.any()`` or ``len(batch)``."""
        if isinstance(test, cst.Name):  # a flag that was set by such a test
            asked = reaching(self.source, test).plain
            is_test = len(asked) == 1 and not isinstance(asked[0], cst.Name)
            return is_test and self.is_own(asked[0])
        if not isinstance(test, cst.Call):
            return False
        name, given = last(test.func), argument(test, 0)
        inner = object_of(test)
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
            inner = object_of(left) or given
            is_empty = limit == 0 or (limit == 1 and isinstance(operator, cst.LessThan))
            return is_empty and self._is_data(inner)
        return isinstance(operator, _LARGE) and self.values.of(left).kind == "loss"

    def _is_data(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a value is of the batch, or a loss made of it."""
        return node is not None and self.values.of(node).is_of_data

"""Where a function trains, and what of it all ranks agree on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint_new.apis import REDUCING
from distlint_new.collectives import called, collective, straight
from distlint_new.source import Source, dotted, last
from distlint_new.values import Values

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
Loop = cst.For | cst.While
Leaving = cst.Continue | cst.Break | cst.Return


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


def loop_of(source: Source, node: cst.CSTNode) -> Loop | None:
    """Return the loop of the same function that a node is in."""
    for each in source.ancestors(node):
        if isinstance(each, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(each, cst.For | cst.While):
            return each
    return None


def leaving(source: Source, node: cst.CSTNode, loop: cst.CSTNode) -> Iterator[Leaving]:
    """Yield what leaves a loop or its turn from inside of a node, or the function with nothing."""
    found: list[Leaving] = [
        *source.below(node, cst.Continue),
        *source.below(node, cst.Break),
        *source.below(node, cst.Return),
    ]
    for each in found:
        if isinstance(each, cst.Return):
            if each.value is None or dotted(each.value) == "None":
                yield each
        elif loop_of(source, each) is loop:
            yield each


def goes_on(source: Source, handler: cst.ExceptHandler) -> bool:
    """Return whether a handler lets this rank go on, whatever the others do."""
    if handler.type is not None:
        caught = [handler.type, *source.below(handler.type, cst.Name)]
        caught += source.below(handler.type, cst.Attribute)
        if _EXPECTED & {last(each) for each in caught}:
            return False
    calls = list(source.below(handler, cst.Call))
    if any(last(each.func) in _ENDS or collective(source, each) for each in calls):
        return False
    if not any(True for _ in source.below(handler, cst.Raise)):
        return True
    # A branch of it, as for "out of memory", goes on; the rest raises.
    loop = loop_of(source, handler)
    return loop is not None and any(True for _ in leaving(source, handler, loop))


def is_agreed(source: Source, values: Values, node: cst.CSTNode, depth: int = 3) -> bool:
    """Return whether something that brings ranks together has a part in an expression."""
    calls = [*([node] if isinstance(node, cst.Call) else []), *source.below(node, cst.Call)]
    if any(REDUCING.search(dotted(each.func) or last(each.func)) for each in calls):
        return True
    names = [*([node] if isinstance(node, cst.Name) else []), *source.below(node, cst.Name)]
    for name in names:
        for each in values.definitions(name.value, name).listed:
            if each.how == "reduced":
                return True
            if each.value is None or depth == 0:
                continue
            if is_agreed(source, values, each.value, depth - 1):
                return True
    return any(_is_given(source, name) for name in names)


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


def works(source: Source, call: cst.Call) -> bool:
    """Return whether a call does more than show something."""
    return last(call.func) not in _SHOWS

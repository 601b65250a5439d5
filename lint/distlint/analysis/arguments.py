"""What calls of frameworks are given: on how many devices, what is joined over ranks, and how."""

from __future__ import annotations

import ast

from distlint.analysis.events import Event
from distlint.analysis.value import SAME_VALUE, UNKNOWN_VALUE, Value

_MEAN = frozenset({"avg", "mean"})
_OPERATION_NAMES = ("op", "reduce_op", "reduction")
_OPERATION_AT = {"fabric": 2, "strategy": 2}


def constants_of(call: ast.Call | None) -> dict[str, object]:
    """Return the arguments of a call by name: those that are constants with their value, others with None."""
    given = call.keywords if call is not None else ()
    return {
        each.arg: each.value.value if isinstance(each.value, ast.Constant) else None
        for each in given
        if each.arg is not None
    }


def has_one_device(options: dict[str, Value]) -> bool:
    """True if a trainer is made for one process: ``devices=1``, ``devices=[gpu]``."""
    nodes = options.get("num_nodes", SAME_VALUE).constant
    devices = [options[name] for name in ("devices", "gpus") if name in options]
    return nodes in (None, 1) and any(each.constant in (0, 1, "1") or len(each.elements) == 1 for each in devices)


def says_many(trainer: Event) -> bool:
    """True if what a trainer is made with says that several processes run it; ``dp`` is one process."""
    if any(trainer.options.get(name, UNKNOWN_VALUE).constant == "dp" for name in ("strategy", "accelerator")):
        return False
    for name in ("devices", "gpus", "num_nodes"):
        given = trainer.options.get(name, UNKNOWN_VALUE)
        if len(given.elements) > 1 or (isinstance(given.constant, int) and given.constant not in (0, 1)):
            return True
    return str(trainer.options.get("strategy", UNKNOWN_VALUE).constant).startswith(("ddp", "deepspeed", "fsdp"))


def operation_of(event: Event) -> str:
    """Return how a reduction joins values: "sum", "mean", "max", "min", "product", "gathered" or ""."""
    if "gather" in event.label:
        return "gathered"
    if "reduce" not in event.label:
        return ""
    has_place = event.effect.group > 0 and not event.effect.grads
    position = event.effect.group - 1 if has_place else _OPERATION_AT.get(event.receiver.family, 1)
    said = next(filter(None, (event.argument_node(-1, name) for name in _OPERATION_NAMES)), None)
    said = said or event.argument_node(position, "op")
    if said is not None:
        text = said.value if isinstance(said, ast.Constant) else getattr(said, "attr", "")
        word = str(text).lower()
        return "mean" if word in _MEAN else word
    return "mean" if event.receiver.family in ("fabric", "strategy") else "sum"


def subject_of(event: Event) -> Value:
    """Return the value that a collective joins over ranks: of a gather into given places, the second argument."""
    is_second = bool(event.effect.changes) and "gather" in event.label
    names = ("tensor", "obj", "input_tensor", "input") if is_second else ("tensor", "data", "input")
    named = next((event.options[name] for name in names if name in event.options), UNKNOWN_VALUE)
    return event.args[is_second] if len(event.args) > is_second else named

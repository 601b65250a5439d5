"""Calls of Lightning's ``log`` and ``log_dict``, told from the many other things that are called ``log``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import known
from distlint.facts.classes import LIGHTNING_ROOTS, base_names
from distlint.facts.collectives import backward, collective, receiver_kind
from distlint.facts.operations import Operation, find_operations
from distlint.facts.stages import EVALUATION_HOOKS
from distlint.facts.tree import argument, is_name, keyword, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.classes import ClassFacts
    from distlint.facts.module import ModuleFacts

SYNCED_LOG = "log with sync_dist=True"
UNKNOWN_KEYS = "a dict"
_LOG = re.compile(rb"\.(?:\s|\\|#[^\n]*\n)*log(?:_dict)?\b")
_OTHER_TRAINERS = (*known.HF_ROOTS, "sentence_transformers.", "composer.", "fastai.")


def may_log(source: bytes) -> bool:
    """Whether a method called ``log`` or ``log_dict`` may be in a file, told by its bytes."""
    return _LOG.search(source) is not None


@dataclass(frozen=True)
class LogCall:
    """One call of ``self.log`` or ``self.log_dict``.

    Attributes:
        call: the call.
        key: what is logged, as source on one line; None where that cannot be seen.
        is_synced: whether it says ``sync_dist=True``.
        is_first_rank_only: whether it says, or may say, ``rank_zero_only=True``.
    """

    call: cst.Call
    key: str | None
    is_synced: bool
    is_first_rank_only: bool


def log_call(facts: ModuleFacts, call: cst.Call) -> LogCall | None:
    """What a call logs through Lightning, or None when it is something else."""
    name = tail(call.func)
    if name not in ("log", "log_dict") or not isinstance(call.func, cst.Attribute):
        return None
    logged = argument(call, 0, "name") if name == "log" else argument(call, 0, "dictionary")
    if logged is None or (name == "log" and argument(call, 1, "value") is None):
        return None  # another trainer's log takes one dict
    is_synced = is_name(keyword(call, "sync_dist"), "True")
    if not logs_by_lightning(facts, call):
        return None
    if combines_by_name(facts, call) and not (is_synced and _may_train(facts, call)):
        return None
    only = keyword(call, "rank_zero_only")
    return LogCall(
        call,
        facts.code(logged) if name == "log" else _keys(logged),
        is_synced,
        (only is not None and not is_name(only, "False")) or any(arg.star == "**" for arg in call.args),
    )


def waits_for_epoch(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a step logs what Lightning brings together at the epoch's end alone: of the batches that came here.

    The ranks may pass such a log any number of times, but each of them once at least.
    """
    method, on_step = facts.method_of(call), keyword(call, "on_step")
    name = "" if method is None else method.name.value
    if not name.endswith(("_step", "_step_end", "_batch_end")) or log_call(facts, call) is None:
        return False
    return is_name(on_step, "False") or (on_step is None and name in EVALUATION_HOOKS)


def logs_by_lightning(facts: ModuleFacts, call: cst.Call, kinds: frozenset[str] = frozenset({"lightning"})) -> bool:
    """Whether a method called ``log`` or ``log_dict`` is Lightning's; on ``self``, in a class of one of the kinds."""
    if not isinstance(call.func, cst.Attribute):
        return False
    owner = facts.owner(call)
    if owner is None or facts.self_attribute(call.func) is None:
        return receiver_kind(facts, call.func.value) == "lightning"
    name = call.func.attr.value
    if owner.kinds.isdisjoint(kinds) or owner.method(name) is not None or owner.values(name):
        return False
    if any(base.startswith(_OTHER_TRAINERS) for base in base_names(facts, owner.node)):
        return False
    return not _is_inherited(facts, owner, name)


def combines_by_name(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a module of distmetrics logs: what ranks have logged in an epoch is combined by name, whoever did."""
    owner = facts.owner(call)
    if owner is None or facts.self_attribute(call.func) is None:
        return False
    bases = [base for each in owner.lineage() for base in base_names(facts, each.node)]
    further = [name for base in bases for each in facts.project.ancestors(base) for name in each.bases]
    if any(base.startswith("distmetrics.") for base in bases + further):
        return True
    return not owner.known and facts.imports("distmetrics") and not any(map(facts.imports, LIGHTNING_ROOTS))


def _may_train(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a training step may come here: distmetrics, too, then waits for all ranks if any logs with sync_dist."""
    method = facts.method_of(call)
    name = "" if method is None else method.name.value
    return name not in EVALUATION_HOOKS and not name.startswith("on_")


def _is_inherited(facts: ModuleFacts, owner: ClassFacts, name: str) -> bool:
    """Whether a base in another file defines a method of that name itself."""
    return any(name in each.methods for each in facts.project.ancestors(facts.full_name(owner)))


def _keys(logged: cst.BaseExpression) -> str | None:
    """The keys of a dict display, if all of them can be seen."""
    if not isinstance(logged, cst.Dict):
        return None
    found = [text_of(each.key) if isinstance(each, cst.DictElement) else None for each in logged.elements]
    return None if None in found else ", ".join(repr(key) for key in found)


def find_logs(facts: ModuleFacts) -> dict[cst.Call, Operation]:
    """The calls of ``log`` that Lightning takes for those of every rank, by what they log."""

    def name_of(call: cst.Call) -> Operation | None:
        found = log_call(facts, call)
        return None if found is None or found.is_first_rank_only else f"log of {found.key or UNKNOWN_KEYS}"

    return find_operations(facts, name_of)


def find_synced(facts: ModuleFacts) -> dict[cst.Call, Operation]:
    """The module's collectives, with the logs and backward passes that make one."""

    def name_of(call: cst.Call) -> Operation | None:
        found = collective(facts, call) or backward(facts, call) or facts.project_function(call)
        if found is None and (log := log_call(facts, call)) is not None:
            return SYNCED_LOG if log.is_synced and not log.is_first_rank_only else None
        return found

    return find_operations(facts, name_of)

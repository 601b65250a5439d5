"""Calls of a Lightning module's ``log`` and ``log_dict``, and those of them that an evaluation reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.logs import combines_by_name, logs_by_lightning
from distlint.facts.ranks import RankTests
from distlint.facts.stages import Stages
from distlint.facts.tree import argument, is_name, keyword, walk_scope
from distlint.facts.values import Values

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Lightning lends its module's methods to callbacks. Hooks of an evaluation tell that a class is one of Lightning's:
# the rules about ranks, which look at every method, do not take just any class that is called a callback for one.
_LOGGING = frozenset({"lightning", "callback"})


@dataclass(frozen=True)
class Log:
    """One call that logs.

    Attributes:
        call: the call.
        value: what is logged; for ``log_dict`` the dict.
        many: whether it is ``log_dict``.
    """

    call: cst.Call
    value: cst.BaseExpression
    many: bool

    def flag(self, name: str) -> bool | None:
        """A switch of the call: True or False as written, False when absent, None when it cannot be known."""
        if any(arg.star == "**" for arg in self.call.args):
            return None
        given = keyword(self.call, name)
        if given is None or is_name(given, "False"):
            return False
        return True if is_name(given, "True") else None

    def values(self, facts: ModuleFacts) -> list[cst.BaseExpression]:
        """The logged value, or those of a dict as far as they can be seen."""
        if not self.many:
            return [self.value]
        return [value for _, value in Values(facts).entries(self.value)] or [self.value]


def logs(facts: ModuleFacts) -> Iterator[Log]:
    """Every call of Lightning's ``log`` and ``log_dict``, in source order."""
    for call in facts.nodes(cst.Call):
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if name not in ("log", "log_dict") or not logs_by_lightning(facts, call, _LOGGING):
            continue
        if combines_by_name(facts, call):
            continue
        value = argument(call, 1, "value") if name == "log" else argument(call, 0, "dictionary")
        if value is not None:
            yield Log(call, value, name == "log_dict")


def evaluation_logs(facts: ModuleFacts) -> list[Log]:
    """The logs that validation or test reaches in a distributed job, on every rank."""
    stages, tests = Stages(facts), RankTests(facts)
    return [
        log
        for log in logs(facts)
        if stages.is_evaluated(log.call)
        and not is_single_process(facts, tests, log.call)
        and not _is_guarded(facts, tests, log.call)
    ]


def is_single_process(facts: ModuleFacts, tests: RankTests, call: cst.Call) -> bool:
    """Whether a call is reached only where the job is not distributed."""
    below: cst.CSTNode = call
    for above in facts.ancestors(call):
        if isinstance(above, cst.If):
            outcome = tests.decide(above.test, {})
            if not tests.keys(above.test) and outcome is (below is not above.body):
                return True
        below = above
    return False


def _is_guarded(facts: ModuleFacts, tests: RankTests, call: cst.Call) -> bool:
    """Whether some ranks alone log: another rule's matter unless they say so."""
    is_said = is_name(keyword(call, "rank_zero_only"), "True")
    return not is_said and any(isinstance(above, cst.If) and tests.keys(above.test) for above in facts.ancestors(call))


def is_unconditional(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether every batch of every rank comes here: else a collective could wait for ever."""
    function = facts.function_of(call)
    if function is None or function.name.value not in ("validation_step", "test_step") or function.decorators:
        return False
    for above in facts.ancestors(call):
        if above is function:
            break
        if isinstance(above, cst.If | cst.For | cst.While | cst.Try | cst.IfExp | cst.BooleanOperation | cst.Match):
            return False
    place = facts.order[call]
    return not any(isinstance(node, cst.Return) and facts.order[node] < place for node in walk_scope(function))

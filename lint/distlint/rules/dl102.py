"""A name that a callback monitors, logged where only some ranks come."""

from __future__ import annotations

import re

import libcst as cst

from distlint.collectives import is_log, is_synced_log
from distlint.definitions import reaching
from distlint.edits import Change
from distlint.guards import Guard, before_test, unmatched
from distlint.rules.base import RANK_TOKENS, Rule
from distlint.source import argument, has_spread, is_false, is_true, keyword, last, string

_ANY = ".*"
# Hooks in which a value is one of the step, where nothing is said.
_OF_STEP = re.compile(
    r"training_step|on_train_batch_\w+|on_(before|after)_\w+|optimizer_step|configure_gradient\w+"
)


class DL102(Rule):
    """Only rank 0 logs a monitored name: callbacks on the other ranks do not find it, and fail.

    What goes wrong: ``ModelCheckpoint`` and ``EarlyStopping`` run on every rank, each with the
    values that its own rank has logged:

        rank 0   score = 0.71                      … saves, and waits for the others
        rank 1   no metric with the key "score"    … fails, or goes on without saving

    Why: ``self.log`` under a condition on the rank (``is_global_zero``, ``@rank_zero_only``) stores
    the value on that rank alone. Lightning expects it on every rank.

    How to fix: combine the values of all ranks first (``self.all_gather``, ``sync_dist=True``), and
    log the result on every rank, outside of the condition. Only rank 0 writes it to the logger. If
    no callback uses the value, pass ``rank_zero_only=True`` to ``self.log``.

    When it is silent:

    - on logs with ``rank_zero_only=True`` or ``on_epoch=False``
    - on names that nothing in code and settings monitors
    - where the other ranks log in the other branch
    - on loggers and trackers (``self.logger``, ``wandb``)
    - on ``sync_dist=True`` under the condition, which is DL101
    """

    name = "log-under-rank-guard"
    shown = (
        "bad_score_of_rank_zero",
        "good_logged_on_every_rank",
        "bad_hook_rank_zero_only",
        "good_another_name_monitored",
    )
    tokens = (RANK_TOKENS, (b".log(", b".log_dict("))
    in_lightning = True

    def check(self) -> None:
        """Report each log of a monitored name under a test of the rank."""
        for call, guard, _ in unmatched(self.source, self._log):
            if not is_synced_log(self.source, call):
                self._tell(call, guard)

    def _log(self, call: cst.Call) -> str:
        return "log" if is_log(self.source, call) else ""

    def _tell(self, call: cst.Call, guard: Guard) -> None:
        given = keyword(call, "rank_zero_only")
        is_told = has_spread(call) or (given is not None and not is_false(given))
        if is_told or is_false(keyword(call, "on_epoch")):
            return
        patterns = self._names(call)
        monitored = {name for name in self.facts.monitored if name}
        is_outside = not isinstance(guard.statement, cst.FunctionDef)
        where = "outside this condition" if is_outside else "outside this function"
        who = "only rank 0 logs" if guard.first else "rank 0 never logs"
        changes = before_test(self.source, call, guard)
        if any(re.fullmatch(p, name) for p in patterns if p != _ANY for name in monitored):
            message = f"a callback monitors this name, but {who} it: log it on every rank, {where}"
        elif _ANY in patterns and self.facts.monitored and not self._is_of_step(call):
            message = f"{who} this, and a callback may monitor it: log it on every rank, {where}"
            changes = changes or self._flagged(call)
        else:
            return
        self.report(
            call,
            message,
            *changes,
            safe=False,
            about=[(guard.node, "rank guard", "only some ranks pass here")],
        )

    def _is_of_step(self, call: cst.Call) -> bool:
        method = self.source.method(call)
        is_hook = method is not None and _OF_STEP.fullmatch(method.name.value) is not None
        return is_hook and not is_true(keyword(call, "on_epoch"))

    def _names(self, call: cst.Call) -> list[str]:
        """Return patterns of the names that a call logs; ``".*"`` for one that is not seen."""
        first = argument(call, 0, "name", "dictionary")
        if last(call.func) == "log" or first is None:
            return [_pattern(first)]
        if isinstance(first, cst.Name):
            given = reaching(self.source, first).single
            first = given.value if given is not None else None
        if not isinstance(first, cst.Dict):
            return [_ANY]
        entries = first.elements
        return [_pattern(e.key) if isinstance(e, cst.DictElement) else _ANY for e in entries]

    def _flagged(self, call: cst.Call) -> list[Change]:
        end = call.args[-1].value
        text = self.source.module.code_for_node(end)
        return [Change(end, f"{text}, rank_zero_only=True")]


def _pattern(name: cst.BaseExpression | None) -> str:
    """Return a regular expression of a name: what is not constant in it may be anything."""
    if isinstance(name, cst.FormattedString):
        parts = [
            re.escape(p.value) if isinstance(p, cst.FormattedStringText) else _ANY
            for p in name.parts
        ]
        return re.sub(r"(\.\*)+", _ANY, "".join(parts))
    if isinstance(name, cst.BinaryOperation) and isinstance(name.operator, cst.Add):
        return re.sub(r"(\.\*)+", _ANY, _pattern(name.left) + _pattern(name.right))
    text = string(name)
    return re.escape(text) if text is not None else _ANY

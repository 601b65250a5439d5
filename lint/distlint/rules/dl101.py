"""A collective that only some ranks reach."""

from __future__ import annotations

import libcst as cst

from distlint.collectives import called, collective, hidden_collective, is_synced_log, names_group
from distlint.guards import Guard, before_test, unmatched
from distlint.rules.base import COLLECTIVE_TOKENS, RANK_TOKENS, Rule
from distlint.source import last, object_of
from distlint.values import values_of


class DL101(Rule):
    """Only some ranks reach a collective: it waits for the others, and the job hangs.

    What goes wrong: rank 0 waits in the collective for the others, and these wait in their next
    collective for rank 0:

        rank 0   all_gather(x)   … waits for rank 1
        rank 1   (next step)     … waits for rank 0 in the backward pass

    Nothing is printed. After 10 to 30 minutes the timeout of the process group ends the job.

    Why: every rank must make the same collectives in the same order. Under a condition on the rank
    (``is_global_zero``, ``rank == 0``, an early ``return``, ``@rank_zero_only``) only some ranks
    make the call. ``save_state``, ``trainer.save_checkpoint``, ``compute()`` of a metric and
    ``self.log(…, sync_dist=True)`` are collectives, too.

    How to fix: make the call on every rank, before the condition. Keep under the condition what one
    rank does with the result: print, write, log with ``rank_zero_only=True``.

    When it is silent:

    - the other branch, or the opposite condition in the same function, makes the same collective
    - the call names a process group
    - the condition is on the world size
    - the collective is more than one call away
    - ``compute()`` is of torcheval, or its file names ``sync_on_compute``
    """

    name = "collective-under-rank-guard"
    shown = (
        "bad_metric_gather",
        "good_gathered_before",
        "bad_barrier_after_return",
        "good_both_arms",
    )
    tokens = (RANK_TOKENS, COLLECTIVE_TOKENS)

    def check(self) -> None:
        """Report each collective under a test of the rank."""
        for call, guard, name in unmatched(self.source, self._collective):
            if not self._waits(guard, name):
                self._tell(call, guard, name)

    def _waits(self, guard: Guard, name: str) -> bool:
        """Return whether the ranks that leave make the same call in a function before."""
        leaving = guard.statement.body if isinstance(guard.statement, cst.If) else None
        if not guard.leaves or leaving is None:
            return False
        functions = (called(self.source, each) for each in self.source.below(leaving, cst.Call))
        return any(
            collective(self.source, inner) == name
            for function in functions
            if function is not None
            for inner in self.source.below(function, cst.Call)
        )

    def _collective(self, call: cst.Call) -> str:
        source = self.source
        if names_group(source, call):
            return ""
        if is_synced_log(source, call):
            return "self.log(…, sync_dist=True)"
        owner = object_of(call)
        if owner is not None and last(call.func) == "compute":
            return "compute" if self._syncs(owner) else ""
        return collective(source, call) or hidden_collective(source, call)

    def _syncs(self, metric: cst.BaseExpression) -> bool:
        """Return whether ``compute`` of an object brings ranks together, as torchmetrics do."""
        is_metric = values_of(self.source).of(metric).kind == "metric"
        if not is_metric or "sync_on_compute" in self.source.text.text:
            return False
        return not any(name.startswith("torcheval") for name in self.source.imports.values())

    def _tell(self, call: cst.Call, guard: Guard, name: str) -> None:
        who = "only rank 0 reaches" if guard.first else "rank 0 never reaches"
        where = "outside this condition"
        if isinstance(guard.statement, cst.If | cst.FunctionDef):
            is_if = isinstance(guard.statement, cst.If)
            where = "before this condition" if is_if else "outside this function"
        # Writing a checkpoint may also end without the other ranks' part.
        what = "which needs all ranks" if name.startswith(("save", "load")) else "so the ranks hang"
        self.report(
            call,
            f"{who} this {name}, {what}: call it on every rank, {where}",
            *before_test(self.source, call, guard),
            safe=False,
            about=[(guard.node, "rank guard", "only some ranks pass here")],
        )

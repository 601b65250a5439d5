"""A failure before a collective that is caught and dropped."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.collectives import collective, hidden_collective, names_group
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import dotted, last
from distlint.training import goes_on, is_backward, is_distributed, loop_of, works
from distlint.values import values_of


class DL109(Rule):
    """One rank catches an exception and goes on: the others wait in the collective that it missed.

    What goes wrong: on rank 2 a broken sample, or a batch too large for its memory, raises in the
    ``try`` block before the collective:

        rank 0   all_reduce of batch 7       … waits for rank 2
        rank 2   out of memory, continue     → all_reduce of batch 8: different batches are added

    From then on the numbers are wrong. When rank 2 has no batch left, the job hangs.

    Why: an exception on one rank does not reach the others, which are in the collective already.

    How to fix: let the exception end the process, and the launcher stops the others. Or catch it
    around the local work alone, and let all ranks decide by ``dist.all_reduce(failed)`` whether to
    skip.

    When it is silent:

    - the handler exits, destroys the process group, or raises without a branch that continues the
      loop
    - the handler makes a collective
    - the exception is the same on all ranks (``ImportError``, ``StopIteration``)
    - nothing before the collective works on the rank's own data; a backward pass in a loop does so
      itself
    - the call names a process group
    """

    name = "swallowed-collective"
    shown = (
        "bad_out_of_memory_continue",
        "good_ranks_decide_together",
        "bad_gather_in_evaluation",
        "good_handler_raises",
    )
    tokens = ((*COLLECTIVE_TOKENS, b"backward", b".step("), (b"except",))

    def check(self) -> None:
        """Report each handler after which a rank goes on without the others."""
        source = self.source
        for tried in source.nodes(cst.Try):
            handlers = [each for each in tried.handlers if goes_on(source, each)]
            missed = next(self._missed(tried), None) if handlers else None
            if missed is None:
                continue
            node, what = missed
            self.report(
                handlers[0],
                f"a rank that fails here misses the {what}, and the others hang: "
                "let the exception end the job",
                about=[(node, "collective", "the other ranks wait here")],
            )

    def _missed(self, tried: cst.Try) -> Iterator[tuple[cst.Call, str]]:
        """Yield the collectives of a block that something before them may miss."""
        source = self.source
        loop = loop_of(source, tried)
        calls = [
            each
            for each in source.below(tried.body, cst.Call)
            if source.scope(each) is source.scope(tried) and self._is_innermost(each, tried)
        ]
        for at, call in enumerate(calls):
            if loop is not None and is_backward(source, call) and is_distributed(source):
                yield call, "backward pass"
            name = collective(source, call) or hidden_collective(source, call)
            if name and not names_group(source, call) and self._may_fail(calls[:at], call):
                yield call, name
        if loop is not None and is_distributed(source) and self._steps_after(loop, tried):
            yield from ((call, "training step") for call in calls if works(call))

    def _may_fail(self, before: list[cst.Call], call: cst.Call) -> bool:
        """Return whether a call before a collective works on this rank's own data."""
        return any(
            works(each) and values_of(self.source).of(each).is_of_data
            for each in (*before, *self.source.below(call, cst.Call))
        )

    def _is_innermost(self, call: cst.Call, tried: cst.Try) -> bool:
        """Return whether no other ``try`` is between."""
        around = self.source.ancestors(call)
        return next(each for each in around if isinstance(each, cst.Try)) is tried

    def _steps_after(self, loop: cst.CSTNode, tried: cst.Try) -> bool:
        """Return whether the turn steps an optimizer after a block in which backward must be."""
        source = self.source
        calls = [each for each in source.below(loop, cst.Call) if not source.is_within(each, tried)]
        if any(last(each.func) == "backward" for each in calls):
            return False
        return any(
            last(each.func) == "step"
            and source.order(each) > source.order(tried)
            and any("optim" in name.lower() for name in self._about(each))
            for each in calls
        )

    def _about(self, call: cst.Call) -> list[str]:
        return [dotted(call.func), *(dotted(each.value) for each in call.args)]

"""What rank 0 logs alone though every rank has another value of it."""

from __future__ import annotations

import libcst as cst

from distlint.logs import Log, logs
from distlint.origins import is_agreed
from distlint.rules.base import Rule
from distlint.source import is_true

_ALONE = "this value covers rank 0's share of the data alone"
_SWITCHED_OFF = (
    "rank_zero_only=True switches sync_dist off, so rank 0 logs its own value: drop rank_zero_only"
)


class DL203(Rule):
    """``rank_zero_only=True`` logs the value of rank 0's share of the data as that of all data.

    What goes wrong: the flag decides which rank logs, and combines nothing:

        rank 0   half of the validation set    accuracy 0.91   <- logged
        rank 1   the other half                accuracy 0.74
        all data                               accuracy 0.825

    With both flags Lightning ignores ``sync_dist=True``, and logs the value of rank 0.

    Why: a value that is made from a batch differs between ranks. The logged number, and the
    checkpoint that it chooses, are those of one share.

    How to fix: write ``sync_dist=True`` instead, or log a metric object. Or combine the values
    first, on every rank (``self.all_gather``, ``compute()`` of a metric), and log the result on
    rank 0.

    When it is silent:

    - on gathered, broadcast and reduced values, metric objects and their ``compute()``
    - on values that are not made from data (learning rate, epoch)
    - in training steps, and in projects with ``use_distributed_sampler=False``, unless both flags
      are set
    - under a condition that calls a function, which may choose the rank that holds the value (the
      last stage of a pipeline)
    """

    name = "rank-zero-only-not-synced"
    shown = ("bad_validation_loss", "good_gathered_first", "bad_both_flags", "good_learning_rate")
    tokens = ((b"rank_zero_only",), (b".log",))
    in_lightning = True

    def check(self) -> None:
        """Report each value of one rank that rank 0 alone logs, one a call."""
        told: set[cst.Call] = set()
        for log in logs(self.source):
            if (
                log.call in told
                or not is_true(log.option("rank_zero_only"))
                or not self._is_own(log)
            ):
                continue
            is_off = is_true(log.option("sync_dist"))
            if not is_off and (
                self.facts.own_sampler
                or log.of_step_only
                or not self.stages(log.call) & {"validation", "test"}
            ):
                continue
            if is_off and log.value.kind != "not averageable":
                said = _SWITCHED_OFF
            elif log.value.kind == "not averageable":
                said = f"{_ALONE}: update a metric object on every rank and log it"
            else:
                said = f"{_ALONE}: write sync_dist=True instead of rank_zero_only"
            told.add(log.call)
            self.report(log.call, said)

    def _is_own(self, log: Log) -> bool:
        """Return whether a value is made from this rank's share of the data and nothing else."""
        if log.value.kind not in ("share", "loss", "not averageable"):
            return False
        tests = (each.test for each in self.source.ancestors(log.call) if isinstance(each, cst.If))
        return not is_agreed(self.source, log.node) and not any(
            any(self.source.inside(test, cst.Call)) for test in tests
        )

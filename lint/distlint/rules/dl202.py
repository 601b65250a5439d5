"""A value of one rank's data, logged by validation or test as if it were that of all."""

from __future__ import annotations

import re

import libcst as cst

from distlint.averageable import named
from distlint.branches import evaluates
from distlint.collectives import returns_before
from distlint.edits import Change
from distlint.logs import Log, logs
from distlint.rules.base import Rule, stage_of
from distlint.source import keyword, last, string

_OWN = ("share", "loss", "not averageable")


class DL202(Rule):
    """Validation or test logs the value of one rank's share of the data as that of all data.

    What goes wrong: every rank evaluates its own share, and the logger writes the value of rank 0:

        rank 0   half of the validation set    loss 0.31   <- logged
        rank 1   the other half                loss 0.87
        all data                               loss 0.59

    Why: ``self.log`` averages over the batches of one rank, and over ranks only with
    ``sync_dist=True``. Checkpoints and early stopping follow the ranks' own values, too.

    How to fix: ``sync_dist=True`` for a loss, an accuracy or another mean over samples; ``--fix``
    adds it to losses. For F1, AUC, precision and other metrics that are not means over samples,
    update a metric object of torchmetrics and log the object.

    When it is silent:

    - nothing in the project names several devices
    - the project sets ``use_distributed_sampler=False``
    - on metric objects, their ``compute()``, and the values of calling them (DL204)
    - on gathered and reduced values
    - on ``on_epoch=False``, and on a ``sync_dist`` that is a variable
    - under a condition on the rank (DL102), and with ``rank_zero_only=True`` (DL203)
    """

    name = "eval-log-not-synced"
    shown = ("bad_validation_loss", "good_synced", "bad_f1_of_scikit_learn", "good_metric_object")
    tokens = ((b".log",), (b"validation_", b"test_"))
    in_lightning = True
    several_devices = True

    def check(self) -> None:
        """Report each evaluation log of this rank's own data, one a call."""
        if self.facts.own_sampler:
            return
        calls: dict[cst.Call, list[Log]] = {}
        for log in logs(self.source):
            calls.setdefault(log.call, []).append(log)
        for listed in calls.values():
            kinds = {each.value.kind for each in listed}
            own = [each for each in listed if each.value.kind in _OWN]
            is_own = bool(own) and "result" not in kinds and self._is_kept(own[0])
            if is_own and evaluates(self.source, own[0].call, self.stages(own[0].call), own[0].key):
                self._tell(own)

    def _is_kept(self, log: Log) -> bool:
        """Return whether the value becomes one of the epoch, that of rank 0 alone."""
        reduces = log.option("reduce_fx")
        is_mean = reduces is None or "mean" in (string(reduces), last(reduces))
        return is_mean and not (log.syncs or log.of_step_only or log.of_rank_zero)

    def _tell(self, listed: list[Log]) -> None:
        if any(map(_is_averageable, listed)):
            remedy = "average over ranks by sync_dist=True"
        else:
            remedy = "update a metric object and log the object"
        said = f"this value covers rank 0's share of the data alone: {remedy}"
        self.report(listed[0].call, said, *self._synced(listed))

    def _synced(self, listed: list[Log]) -> list[Change]:
        """Return the change that adds ``sync_dist=True`` to losses that every batch logs."""
        source, call = self.source, listed[0].call
        method = source.method(call)
        is_step = method is not None and stage_of(method.name.value) in ("validation", "test")
        block = source.parent(source.statement(call))
        is_straight = block is not None and source.parent(block) is method
        if not is_step or not is_straight or any(each.value.kind != "loss" for each in listed):
            return []
        if method is None or returns_before(source, method, call):
            return []  # a rank that has returned would be missed
        given = keyword(call, "sync_dist")
        if given is not None:
            return [Change(given, "True")]
        end = call.args[-1].value
        return [Change(end, f"{source.module.code_for_node(end)}, sync_dist=True")]


def _is_averageable(log: Log) -> bool:
    """Return whether a mean over ranks is right, as far as origin and name tell."""
    if log.value.kind != "share":
        return log.value.kind == "loss"
    words = re.split(r"[^a-z0-9]+", f"{log.key} {last(log.node)}".lower())
    entries = [named(word) for word in words if word]
    return not any(entry is not None and entry.kind == "not averageable" for entry in entries)

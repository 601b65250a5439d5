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
    """A value of one rank's share of the data is logged in validation or test as that of all data.

    What goes wrong: every rank evaluates its own part. The logger, the checkpoint and early
    stopping are given the number of rank 0:

        rank 0   half of the validation set    loss 0.31   <- logged
        rank 1   the other half                loss 0.87
        all data                               loss 0.59

    Why: ``self.log`` averages over the batches of one rank and leaves the other ranks out, unless
    ``sync_dist=True`` is given. Ranks that monitor such a value may also disagree when to stop.

    How to fix: ``sync_dist=True`` for a loss, an accuracy, or another mean over samples. For F1,
    AUC, precision and all that is no mean over samples, update a metric object of torchmetrics and
    log the object. ``--fix`` adds ``sync_dist=True`` to losses.

    When it is silent: nothing tells of several devices, or the trainer is told to leave samplers
    alone; metric objects, ``compute()`` and calls of metric objects (DL204); gathered and reduced
    values; ``on_epoch=False``; a ``sync_dist`` that is not written out; logs under a test of the
    rank (DL102) or with ``rank_zero_only=True`` (DL203).
    """

    name = "eval-log-not-synced"
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
            said = "only rank 0's share of the data makes this value: average it by sync_dist=True"
        else:
            said = "only rank 0's data make this value: update a metric object and log the object"
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

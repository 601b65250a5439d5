"""A value of one rank's data, logged by validation or test as if it were that of all."""

from __future__ import annotations

import re

import libcst as cst

from distlint_new.edits import Change
from distlint_new.guards import guards
from distlint_new.logs import Log, logs
from distlint_new.rules.base import Rule, stage_of
from distlint_new.source import has_spread, keyword
from distlint_new.values import is_about_world

_TRAINING = re.compile(r"(?<![a-z])(?:is_)?train(?:ing)?(?![a-z])")
_ALONE = re.compile(r"\b(?:use_distributed_sampler|replace_sampler_ddp)\s*=\s*False")
_EVALUATING = re.compile(r"(?<![a-z])(?:is_)?(?:val|valid|validation|eval|test)(?![a-z])")


class DL202(Rule):
    """A value of one rank's share of the data is logged in validation or test as that of all data.

    What goes wrong: every rank evaluates its own part. The logger, the checkpoint and early stopping
    are given the number of rank 0:

        rank 0   half of the validation set    loss 0.31   <- logged
        rank 1   the other half                loss 0.87
        all data                               loss 0.59

    Why: ``self.log`` averages over the batches of one rank and leaves the other ranks out, unless
    ``sync_dist=True`` is given. Ranks that monitor such a value may also disagree when to stop.

    How to fix: ``sync_dist=True`` for a loss, an accuracy, or another mean over examples. For F1, AUC,
    precision and all that is no mean over examples, update a metric object of torchmetrics and log
    the object. ``--fix`` adds ``sync_dist=True`` to losses.

    When it is silent: nothing tells of several devices, or the trainer is told to leave samplers
    alone; metric objects, ``compute()`` and calls of metric objects (DL204); gathered and reduced
    values; ``on_epoch=False``; a ``sync_dist`` that is not written out; logs under a test of the
    rank (DL102) or with ``rank_zero_only=True`` (DL203).
    """

    name = "eval-log-not-synced"
    tokens = ((b".log",), (b"validation_", b"test_"))
    several_devices = True

    def check(self) -> None:
        """Report each evaluation log of this rank's own data."""
        if self._evaluates_all():
            return
        told: set[cst.Call] = set()
        for log in logs(self.source, self.values):
            if log.call not in told and self._is_own(log) and self._is_evaluation(log):
                told.add(log.call)
                self._tell(log)

    def _evaluates_all(self) -> bool:
        """Return whether the file tells its trainer to leave samplers alone, and makes none."""
        text = self.source.text.text
        return _ALONE.search(text) is not None and "Sampler(" not in text

    def _is_own(self, log: Log) -> bool:
        """Return whether the value is of this rank alone and becomes one of the epoch."""
        if log.syncs or log.of_step_only or log.of_rank_zero or has_spread(log.call):
            return False
        return log.value.kind in ("share", "loss", "not averageable")

    def _is_evaluation(self, log: Log) -> bool:
        source, method = self.source, self.source.method(log.call)
        stages = self.stages(log.call)
        if method is None or not stages & {"validation", "test"}:
            return False
        if next(guards(source, log.call), None) is not None:
            return False
        is_helper = "training" in stages
        below: cst.CSTNode = log.call
        for each in source.ancestors(log.call):
            if each is method:
                break
            if isinstance(each, cst.If) and below is not each.test:
                if is_about_world(source, each.test):
                    return False
                if is_helper and self._is_training(each.test) == (below is each.body):
                    return False
            below = each
        return not (is_helper and _TRAINING.search(log.key))

    def _is_training(self, test: cst.BaseExpression) -> bool | None:
        """Return whether a test is true in training, or None where it does not ask for the stage."""
        text = self.source.code(test)
        is_turned = "not " in text or "!=" in text
        if _TRAINING.search(text):
            return not is_turned
        return is_turned if _EVALUATING.search(text) else None

    def _tell(self, log: Log) -> None:
        if log.value.kind == "not averageable":
            said = "only rank 0's data make this value: update a metric object and log the object, which counts all"
        else:
            said = "only rank 0's share of the data makes this value: pass sync_dist=True to average over all ranks"
        self.report(log.call, said, *self._synced(log))

    def _synced(self, log: Log) -> list[Change]:
        """Return the change that adds ``sync_dist=True`` to a loss that every batch logs."""
        source, call = self.source, log.call
        method = source.method(call)
        is_step = method is not None and stage_of(method.name.value) in ("validation", "test")
        statement = source.parent(source.statement(call))
        is_straight = statement is not None and source.parent(statement) is method
        if log.value.kind != "loss" or not is_step or not is_straight:
            return []
        given = keyword(call, "sync_dist")
        if given is not None:
            return [Change(given, "True")]
        last = call.args[-1]
        return [Change(last, f"{source.module.code_for_node(last)}, sync_dist=True")]

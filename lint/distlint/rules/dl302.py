"""A log of Lightning that all ranks wait for in every training step."""

from __future__ import annotations

import libcst as cst

from distlint.branches import asks_training, tests_around
from distlint.collectives import is_about_world
from distlint.guards import guards
from distlint.logs import Log, logs, on_step
from distlint.rules.base import Rule
from distlint.source import is_true, self_attribute


class DL302(Rule):
    """All ranks wait for each other in every training step, for a number that is only logged.

    What goes wrong: each value that is logged makes the step slower, and more so on more devices:

        10 values logged with sync_dist, 0.2 ms each over the network: 2 ms of a step of 20 ms

    Why: ``self.log`` in ``training_step`` logs per step by default. ``sync_dist=True`` then reduces
    each value over all ranks in each step, even if the logger does not write it.

    How to fix: ``on_step=False, on_epoch=True`` reduces once, at the end of the epoch. Or leave
    ``sync_dist`` out of ``training_step``: the value of rank 0 shows the trend as well.

    Of several logs in a step, the first is reported.

    When it is silent:

    - nothing in the project names several devices
    - with ``on_step=False``, and with flags that are variables
    - on metric objects, which ``sync_dist`` does not change
    - under a condition, such as ``if batch_idx % 100 == 0``
    - in validation and test
    """

    name = "sync-dist-every-step"
    shown = (
        "bad_loss_of_each_step",
        "good_of_the_epoch",
        "bad_several_values",
        "good_now_and_then",
    )
    severity = "warning"
    tokens = ((b"sync_dist",), (b"training_step",), (b".log",))
    in_lightning = True
    several_devices = True

    def check(self) -> None:
        """Report the first log of each step that all ranks wait for."""
        told: set[cst.FunctionDef] = set()
        for log in logs(self.source):
            method = self.source.method(log.call)
            if method is None or method in told or not self._syncs(log):
                continue
            if self._is_each_step(log, method):
                told.add(method)
                self.report(
                    log.call,
                    "every rank waits here in each training step: log with on_step=False, "
                    "on_epoch=True, or without sync_dist",
                )

    def _syncs(self, log: Log) -> bool:
        if not is_true(log.option("sync_dist")) or log.of_rank_zero:
            return False
        unseen = log.value.kind == "unknown" and self_attribute(log.node) != ""  # may be a metric
        return log.value.kind != "metric" and not unseen and on_step(log, "training")

    def _is_each_step(self, log: Log, method: cst.FunctionDef) -> bool:
        source = self.source
        if not self._is_of_step(method) or any(guards(source, log.call)):
            return False
        return all(
            asks_training(source, test) == holds
            or "optimizer_idx" in source.code(test)
            or is_about_world(source, test)
            for test, holds in tests_around(source, log.call, method)
        )

    def _is_of_step(self, method: cst.FunctionDef) -> bool:
        """Return whether a method is ``training_step``, or called by it."""
        if method.name.value == "training_step":
            return True
        owner = self.source.class_of(method)
        step = owner.methods.get("training_step") if owner is not None else None
        return step is not None and any(self.source.calls(step, f"self.{method.name.value}"))

"""A metric that is updated on a replica of the module."""

from __future__ import annotations

import libcst as cst

from distlint.apis import STEPS
from distlint.facts import Facts
from distlint.rules.base import Rule
from distlint.source import dotted, last, object_of, positional
from distlint.values import values_of


class DL211(Rule):
    """Under data parallel (``dp``) a step updates a metric on a replica, and the counts are lost.

    What goes wrong: ``dp`` copies the module to every device for each batch, runs the step on the
    replicas, and drops them. The metric of the module itself has seen nothing:

        UserWarning: The ``compute`` method of metric Accuracy was called before the ``update``
        method

    Why: a metric object keeps its counts on itself. Only what a step *returns* comes back from the
    replicas.

    How to fix: train with ``strategy="ddp"``, where each process has a module of its own and
    metrics add up the counts of all processes. To stay with ``dp`` (Lightning before 2.0), return
    predictions and labels from the step and update the metric in ``validation_step_end``
    (``training_step_end``, ``test_step_end``), which runs on the module itself.

    When it is silent:

    - nothing in the project asks for ``dp``
    - on updates in ``*_step_end`` and in hooks
    - on functions of ``torchmetrics.functional``
    - on metrics that are made in another file
    """

    name = "metric-updated-on-replica"
    shown = (
        "bad_updated_in_validation_step",
        "good_updated_in_step_end",
        "bad_called_in_training_step",
        "good_ddp",
    )
    tokens = ((b"_step",),)

    @classmethod
    def can_matter(cls, source: bytes, facts: Facts) -> bool:
        """Only in projects that replicate modules."""
        return facts.dp and super().can_matter(source, facts)

    def check(self) -> None:
        """Report each metric that a step of a LightningModule updates or calls."""
        if not self.facts.dp:
            return
        for method in self.methods_of("lightning_module"):
            name = method.name.value
            if name not in STEPS and not self._is_called_by_step(method):
                continue
            for call in self.source.below(method, cst.Call):
                if self._is_update(call):
                    self.report(
                        call,
                        "under dp this updates a replica, which is thrown away: "
                        "use ddp, or update in the *_step_end hook",
                    )

    def _is_update(self, call: cst.Call) -> bool:
        owner, values = object_of(call), values_of(self.source)
        if owner is not None and last(call.func) == "update":
            return values.of(owner).kind == "metric"
        is_dropped = isinstance(self.source.parent(call), cst.Expr)
        is_metric = values.of(call.func).kind == "metric"
        return is_metric and (is_dropped or self._is_read(call.func))

    def _is_read(self, metric: cst.BaseExpression) -> bool:
        """Return whether a class logs a metric, or computes it: its state counts, no result."""
        owner, name = self.source.class_of(metric), dotted(metric)
        if owner is None or not name:
            return False
        return any(
            dotted(call.func) == f"{name}.compute"
            or (last(call.func) in ("log", "log_dict") and name in map(dotted, positional(call)))
            for call in self.source.below(owner.node, cst.Call)
        )

    def _is_called_by_step(self, method: cst.FunctionDef) -> bool:
        """Return whether steps call a method, and nothing else of its class does."""
        callers = self.source.callers(method)
        return bool(callers) and STEPS.issuperset(callers)

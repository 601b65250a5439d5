"""The value of calling a metric object, logged in place of the object."""

from __future__ import annotations

import libcst as cst

from distlint.branches import evaluates
from distlint.definitions import reaching, unsubscripted
from distlint.edits import Change
from distlint.logs import Log, logs
from distlint.rules.base import Rule
from distlint.source import is_false, is_true, keyword, object_of, self_attribute
from distlint.values import values_of


class DL204(Rule):
    """The value of calling a metric object is logged in validation or test, not the object itself.

    What goes wrong: ``self.f1(x, y)`` is the F1 of one batch on one rank. The mean over the batches
    of rank 0 is logged, not the F1 of all data:

        rank 0   batches   1.00  0.50       logged      0.75
        rank 1   batches   0.00  0.20
        all data, from the counts           F1          0.38

    Why: F1 is not a mean over batches, and ``self.log`` cannot know that a tensor came from a
    metric. A logged object is computed over all ranks at the end of the epoch, and reset.

    How to fix: ``self.f1.update(x, y)``, then ``self.log("f1", self.f1)``. ``--fix`` writes this
    where only this step uses the metric.

    When it is silent:

    - nothing in the project names several devices
    - on the object itself and its ``compute()``
    - in training steps
    - with ``dist_sync_on_step=True``, ``on_epoch=False`` or ``rank_zero_only=True``
    - with any ``sync_dist``, which DL201 judges
    - on metrics that are made in another file
    """

    name = "metric-forward-logged"
    shown = (
        "bad_f1_in_validation",
        "good_object_is_logged",
        "bad_value_in_a_variable",
        "good_computed_at_the_end",
    )
    tokens = ((b".log",), (b"validation_", b"test_"))
    in_lightning = True
    several_devices = True

    def check(self) -> None:
        """Report each evaluation log of a metric's forward, one a call."""
        told: set[cst.Call] = set()
        for log in logs(self.source):
            if log.call in told or log.syncs or log.of_step_only or log.of_rank_zero:
                continue
            forward = self._forward(log.node)
            if forward is None or self._syncs_itself(forward):
                continue
            if evaluates(self.source, log.call, self.stages(log.call), log.key):
                told.add(log.call)
                self.report(
                    log.call,
                    "this logs the metric of one batch on one rank: update the metric object and "
                    "log the object itself",
                    *self._mended(log, forward),
                )

    def _forward(self, node: cst.BaseExpression) -> cst.Call | None:
        """Return the call of a metric object that an expression is the value of, or None."""
        if isinstance(node, cst.Call):
            if values_of(self.source).of(node.func).kind == "metric":
                return node
            owner = object_of(node)
            return self._forward(owner) if isinstance(owner, cst.Call | cst.Name) else None
        if isinstance(node, cst.Dict):
            values = [e.value for e in node.elements if isinstance(e, cst.DictElement)]
            return next((f for each in values if (f := self._forward(each)) is not None), None)
        if not isinstance(node, cst.Name):
            return None
        found = reaching(self.source, node)
        given = found.single.value if found.single and found.is_complete else None
        return self._forward(given) if given is not None else None

    def _syncs_itself(self, forward: cst.Call) -> bool:
        made = self.source.kept(unsubscripted(forward.func))
        calls = (each for each in made if isinstance(each, cst.Call))
        return any(is_true(keyword(each, "dist_sync_on_step")) for each in calls)

    def _mended(self, log: Log, forward: cst.Call) -> list[Change]:
        """Return the changes that log the object, where logging resets it for nobody else."""
        source, owner = self.source, self.source.class_of(forward)
        name, method = self_attribute(forward.func), source.method(log.call)
        if owner is None or not name or method is None or isinstance(log.node, cst.Dict):
            return []
        uses = [
            each
            for each in source.below(owner.node, cst.Attribute)
            if self_attribute(each) == name
            and not isinstance(source.parent(each), cst.AssignTarget | cst.AnnAssign)
        ]
        if method.name.value not in ("validation_step", "test_step") or uses != [forward.func]:
            return []
        metric = f"self.{name}"
        if isinstance(log.node, cst.Name):
            return [Change(log.node, metric)]
        if log.node is not forward:
            return []
        shown = log.option("on_step")
        way = metric if shown is not None and not is_false(shown) else f"{metric}.update"
        given = source.module.code_for_node(forward).partition("(")[2]
        return [Change(log.call, f"{way}({given}", "before"), Change(forward, metric)]

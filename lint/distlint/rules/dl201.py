"""A metric that is averaged over ranks though it must not be."""

from __future__ import annotations

import re

import libcst as cst

from distlint.averages import averaged
from distlint.collectives import collective, is_about_world
from distlint.logs import Log, logs
from distlint.rules.base import COLLECTIVE_TOKENS, Rule
from distlint.source import last, string
from distlint.value import Value
from distlint.values import values_of

_METRICS = re.compile(
    r"auc|auroc|auprc|aupr|ap|f1|fbeta|precision|recall|miou|jaccard|pearson|spearman|kendall|pcc"
    r"|srcc|plcc|r2|kappa|qwk|mcc|median|perplexity|ppl"
)
# Words of names that tell of a mean over queries or samples, or of something else.
_OTHERS = re.compile(r"loss|losses|k|at|top\d?|time|lr|rouge|sample|instance|@")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d?|\d+|@")
_LONGEST = 28  # of a name in a message
_EVALUATES = re.compile(
    r"(?:^|_)(?:val|valid|validation|validate|eval|evaluate|evaluation|test)(?:_|$)"
)


class DL201(Rule):
    """A metric that is not a mean over samples is averaged over ranks: the number is wrong.

    What goes wrong: ``sync_dist=True`` logs the mean of the ranks' values. If ranks have equally
    many samples, that is right for a loss or an accuracy. It is wrong for F1, precision, recall,
    AUC, a correlation, a median, RMSE or perplexity:

        rank 0   9 of 10 positives found, 1 false alarm    F1 0.90
        rank 1   0 of 1 positives found, 9 false alarms    F1 0.00
        logged   0.45                                      F1 of all data 0.60

    Early stopping and checkpoints then follow a number that depends on how the data were split.

    Why: such a metric is a ratio, a root or a ranking over all samples. Its denominator differs
    between ranks, or it compares samples of different ranks. ``all_reduce`` with ``ReduceOp.AVG``,
    ``accelerator.reduce(x, "mean")`` and ``gather(x).mean()`` average, too.

    How to fix: keep a metric object on ``self`` (such as ``torchmetrics.F1Score``), update it in
    the step and log the object, which adds up the counts of all ranks. For perplexity, average the
    loss, then take ``exp``. For RMSE, average the squared error, then take the root. Without metric
    objects, gather predictions and labels on every rank and compute once.

    When it is silent:

    - on metric objects and their ``compute()``
    - on values made from gathered or reduced ones
    - on means over scores of single samples
    - on ``average="micro"`` over classes, which is the accuracy
    - on PSNR and SSIM
    - on other reductions (``reduce_fx="max"``), and in training steps
    - on values that neither their origin nor their name shows to be such a metric
    """

    name = "sync-dist-non-averageable"
    shown = (
        "bad_sklearn_f1",
        "good_metric_object",
        "bad_perplexity_of_a_language_model",
        "good_gathered_first",
    )
    tokens = ((b"sync_dist", b"reduce", b"gather"), COLLECTIVE_TOKENS)

    def check(self) -> None:
        """Report each mean over ranks of such a metric, one a call."""
        told: set[cst.Call] = set()
        for log in logs(self.source):
            if log.call not in told and self._is_averaged(log):
                name = self._against(log.value, log.key, log.node)
                if name:
                    told.add(log.call)
                    self._tell(log.call, name, log.value)
        for call in self.source.nodes(cst.Call):
            given = averaged(self.source, call)
            if given is not None and self.stages(call) != {"training"}:
                value = values_of(self.source).of(given)
                is_gather = last(call.func) == "mean"
                name = value.name if is_gather else self._against(value, "", given)
                if name and (value.kind == "not averageable" or not is_gather):
                    self._tell(call, name, value)

    def _against(self, value: Value, key: str, node: cst.BaseExpression) -> str:
        """Return what a value is called of which a mean over ranks is wrong, or ``""``."""
        if value.kind == "not averageable":
            return value.name
        if not value.is_call or value.kind not in ("share", "unknown"):
            return ""
        called = value.name if isinstance(node, cst.Call) else ""
        own = "" if values_of(self.source).of(node).items else last(node)
        shown = [key.rpartition("/")[2], own, called]
        words = [[word.lower() for word in _WORD.findall(name)] for name in shown]
        if any(_OTHERS.fullmatch(word) for each in words for word in each):
            return ""
        return next((word for each in words for word in each if _METRICS.fullmatch(word)), "")

    # Logs

    def _is_averaged(self, log: Log) -> bool:
        """Return whether evaluation logs the mean over ranks of a value."""
        given = log.option("reduce_fx") or log.option("sync_dist_op")
        is_mean = given is None or "mean" in (string(given), last(given))
        if not log.syncs or log.option("sync_dist") is None or not is_mean:
            return False
        if log.of_step_only or log.of_rank_zero:
            return False
        return self._evaluates(log.call) and not self._is_of_one_process(log.call)

    def _evaluates(self, call: cst.Call) -> bool:
        stages, method = self.stages(call), self.source.method(call)
        if stages or method is None:
            return bool(stages & {"validation", "test"})
        return _EVALUATES.search(method.name.value) is not None

    def _is_of_one_process(self, call: cst.Call) -> bool:
        """Return whether a test around a call chooses between it and what several ranks do."""
        source = self.source
        below: cst.CSTNode = call
        for each in source.ancestors(call):
            if isinstance(each, cst.If) and below is not each.test:
                other = each.orelse if below is each.body else each.body
                calls = source.below(other, cst.Call) if other is not None else ()
                if any(collective(source, inner) for inner in calls):
                    return True
                if is_about_world(source, each.test) and below is not each.body:
                    return True
            below = each
        return False

    def _tell(self, call: cst.Call, name: str, value: Value) -> None:
        if name in ("perplexity", "ppl"):
            remedy = "average the loss, then take exp"
        elif name == "a root of a mean":
            remedy = "average the squared error, then take the root"
        elif "quantile" in value.reason:
            remedy = "gather all values, compute once"
        elif last(call.func) in ("log", "log_dict"):
            remedy = "log a torchmetrics object instead"
        else:
            remedy = "gather predictions and labels first"
        if value.reason and value.reason in self.facts.non_averageable.values():
            remedy += f" ({value.reason})"  # as the user has written it down
        shown = name if len(name) <= _LONGEST else "this metric"
        said = f"the mean over ranks of {shown} is not its value on all data: {remedy}"
        about = [(call, "reason", value.reason)] if value.reason else []
        self.report(call, said, about=about)

"""DL201."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.logs import Log, logs
from distlint.analysis.value import Measure
from distlint.averageable import named
from distlint.model import Condition, Example, Report, Rule

_MEANS = frozenset({"avg", "mean"})


class SyncDistNonAverageable(Rule):
    """``sync_dist=True`` on a metric that is no mean over examples: the logged number is wrong, silently.

    ``sync_dist=True`` logs the mean of the ranks' values. That is the value of all data for a loss or an
    accuracy; it is not for F1, precision, recall, AUC, correlation, RMSE or perplexity:

        rank 0   9 of 10 positives found, 1 false alarm    F1 0.90
        rank 1   0 of 1 positives found, 9 false alarms    F1 0.00
        logged   0.45                                      F1 of all data 0.60

    Early stopping and checkpoints then follow a number that depends on how the data were split.

    How to fix: keep a metric object that syncs its counts (``torchmetrics.F1Score`` on ``self``, updated in
    the step) and log the object; for perplexity log the loss and take ``exp`` of the mean; for RMSE log the
    mean squared error; or gather the predictions with ``self.all_gather`` and compute once.

    The rule goes by what the value *is*, never by the key it is logged under: functions of scikit-learn,
    torchmetrics, torcheval and SciPy, metric objects called on the batch, ``exp(loss)``, ``sqrt(mse)``,
    functions of the project that are called like such a metric (``compute_auc``), followed through variables, dicts,
    step outputs and functions of the same file. Where that cannot be known, it is silent.

    Silent: metric objects and their ``compute()`` (they sync themselves, the flag is only redundant), values made
    from gathered tensors, means over per-example scores, ``average="micro"`` (over classes, that is the
    accuracy), other reductions (``reduce_fx``), what a callback computes from loaders of its own, which no trainer
    gives a distributed sampler.

    When to ignore: every rank is sure to see the same distribution, and a rough number is enough.
    """

    code, name, group = "DL201", "sync-dist-non-averageable", "wrong value"
    tokens = ((b"sync_dist",),)
    bad = (
        Example(
            """\
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        f1 = f1_score(y.cpu(), self(x).argmax(-1).cpu())
        self.log("val_metric", f1, sync_dist=True)
""",
            {8: "f1_score"},
        ),
        Example(
            """\
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["x"]), batch["y"])
        self.log_dict({"loss": loss, "ppl": torch.exp(loss)}, sync_dist=True)
        rmse = F.mse_loss(self(batch["x"]), batch["y"]) ** 0.5
        self.log("rmse", rmse, sync_dist=True)
        error = self(batch["x"]) - batch["y"]
        self.log("error", torch.sqrt((error**2).mean()), sync_dist=True)
""",
            {8: "perplexity", 10: "root", 12: "root"},
        ),
        Example(
            """\
import torchmetrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="binary")
        metrics = torchmetrics.MetricCollection({"auc": torchmetrics.AUROC(task="binary")})
        self.metrics = metrics.clone(prefix="val_")

    def validation_step(self, batch, batch_idx):
        self.log("f1", self.f1(self(batch["x"]), batch["y"]), sync_dist=True)
        self.log_dict(self.metrics(self(batch["x"]), batch["y"]), sync_dist=True)
""",
            {12: "F1Score", 13: "AUROC"},
        ),
        Example(
            """\
import numpy as np
import torch
from sklearn import metrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def score(self, y, p):
        return (y == p).mean(), metrics.f1_score(y, p)

    def validation_step(self, batch, batch_idx):
        accuracy, f1 = self.score(batch["y"], self(batch["x"]))
        return {"accuracy": accuracy, "f1": torch.tensor(f1)}

    def validation_epoch_end(self, outputs):
        f1 = torch.stack([x["f1"] for x in outputs]).mean()
        accuracy = torch.stack([x["accuracy"] for x in outputs]).mean()
        values = {"accuracy": accuracy}
        values["f1"] = f1
        for name, value in values.items():
            self.log(name, value, sync_dist=True)
        y, p = self.labels(outputs)
        auc = np.array([metrics.roc_auc_score(y[:, i], p[:, i]) for i in range(3)])
        self.log("auc", torch.as_tensor(auc.mean()), sync_dist=True)
""",
            {20: "f1_score", 23: "roc_auc_score"},
        ),
        Example(
            """\
import torch
from lightning.pytorch import LightningModule
from .metrics import compute_auc

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        auc = compute_auc(self(batch), batch["y"])
        self.log("auc", auc, sync_dist=True)
        loss = self.loss(batch)
        self.log("perplexity", torch.exp(loss.clamp(max=100)), sync_dist=True)
        self.log("rmse", torch.sqrt(loss), sync_dist=True)
""",
            {8: "compute_auc", 10: "perplexity", 11: "root"},
        ),
        Example(
            """\
from collections import OrderedDict
from lightning.pytorch import LightningModule
from sklearn.metrics import average_precision_score
from .scores import pitch_scores

class Model(LightningModule):
    def ratios(self, hits, batch):
        precision = hits.sum() / batch["predicted"].sum()
        recall = hits.sum() / batch["wanted"].sum()
        return {"recall": recall, "harmonic": 2 * precision * recall / (precision + recall + 1e-8)}

    def validation_step(self, batch, batch_idx):
        hits = self(batch["x"])
        for name, value in self.ratios(hits, batch).items():
            self.log(name, value, sync_dist=True)
        error, f1_score = pitch_scores(hits, batch["x"])
        self.log("error", error, sync_dist=True)
        return OrderedDict({self.prefix + "ap": average_precision_score(batch["y"], hits), "f1": f1_score})

    def validation_epoch_end(self, outputs):
        scores = [x[self.prefix + "ap"] for x in outputs]
        self.log_dict({self.prefix + "ap": sum(scores) / len(scores)}, sync_dist=True)
        self.log("f1", sum(x["f1"] for x in outputs) / len(outputs), sync_dist=True)
""",
            {15: "harmonic", 22: "average_precision", 23: "f1_score"},
        ),
    )
    good = (
        """\
import torch
import torchmetrics
from lightning.pytorch import LightningModule
from sklearn.metrics import accuracy_score, f1_score

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.f1 = torchmetrics.F1Score(task="binary")
        self.scale = torch.nn.Parameter(torch.zeros(()))

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.f1.update(self(x), y)
        self.log("f1", self.f1, sync_dist=True)
        self.log("val_f1_acc", accuracy_score(y, self(x)), sync_dist=True)
        self.log("scale", torch.exp(self.scale), sync_dist=True)
        self.log("local_f1", f1_score(y, self(x)))
        self.log("worst_f1", f1_score(y, self(x)), sync_dist=True, reduce_fx="min")

    def on_validation_epoch_end(self):
        self.log("f1_epoch", self.f1.compute(), sync_dist=True)
        y, p = self.all_gather(self.y), self.all_gather(self.p)
        self.log("f1_all", f1_score(y.cpu(), p.cpu()), sync_dist=True)
""",
        """\
import numpy as np
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score
from torchmetrics.functional import f1_score as multiclass_f1

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        scores = [f1_score(y, p) for y, p in zip(batch["y"], self(batch["x"]))]
        self.log("f1", np.mean(scores), sync_dist=True)
        self.log("micro", f1_score(batch["y"], self(batch["x"]), average="micro"), sync_dist=True)
        classes = multiclass_f1(batch["y"], self(batch["x"]), task="multiclass", num_classes=3)
        self.log("classes", classes, sync_dist=True)
        each = ((self(batch["x"]) - batch["y"]) ** 2).mean(dim=1)
        self.log("distance", each.sqrt().mean(), sync_dist=True)
        self.log("theirs", self.helper.f1(batch), sync_dist=True)
""",
        """\
import torch
from lightning.pytorch import LightningModule
from .metrics import compute_f1, dice

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        each = [compute_f1(p, y) for p, y in zip(self(batch), batch["y"])]
        self.log("f1", torch.tensor(each).mean(), sync_dist=True)
        self.log("dice", dice(self(batch), batch["y"]), sync_dist=True)
        self.log("all", compute_f1(self.all_gather(self(batch)), self.all_gather(batch["y"])), sync_dist=True)

    def on_validation_epoch_end(self):
        mse = self.val_mse.compute()
        self.log("rmse", torch.sqrt(mse), sync_dist=True)
        loss = self.trainer.callback_metrics["val_loss"]
        self.log("perplexity", torch.exp(loss), sync_dist=True)
""",
        """\
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score

class Model(LightningModule):
    def on_validation_epoch_end(self):
        f1 = f1_score(self.y, self.p)
        if self.trainer.world_size > 1:
            self.log("f1", self.all_f1, sync_dist=True)
        else:
            self.log("f1", f1, sync_dist=True)
""",
        """\
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        scores = {"val_loss": self.loss(batch), "val_accuracy": (self(batch) == batch["y"]).float().mean()}
        scores["val_f1"] = f1_score(batch["y"], self(batch))
        self.log("val", scores["val_" + self.watched], sync_dist=True)
        self.log("loss", scores["val_loss"], sync_dist=True)
        self.seen = scores
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge the values of every call that logs with ``sync_dist=True``."""
        for log in logs(analysis):
            if not log.flag("sync_dist") or _has_own_reduction(log) or not log.event.is_reached:
                continue
            if any(_are_alternatives(log.event, each) for each in analysis.events("collective")):
                continue
            own = {value.measure for function, _, value in analysis.losses() if function is log.event.function}
            entries = ((key, value.measure) for key, value in log.entries() if value.measure not in own)
            found = next(((key, measure) for key, measure in entries if measure is not None), None)
            if found is not None:
                key, measure = found
                trace = ((analysis.index.path, measure.line, "value", measure.text),)
                condition = Condition("data", f"if {measure.what} is what its name says") if measure.is_guess else None
                yield Report(log.event.node, _message(key, measure), trace, condition)


def _message(key: str, measure: Measure) -> str:
    where = f" under {key!r}" if key else ""
    entry = named(measure.what)
    way_out = ""
    if entry is not None and entry.metric:
        way_out = f"; log a metric object, such as torchmetrics' {entry.metric}, which syncs its counts"
    return (
        f"sync_dist=True logs{where} the mean over ranks of {measure.what}, which is not that of all data: "
        f"{measure.reason}{way_out}"
    )


def _are_alternatives(log: Event, gather: Event) -> bool:
    """Whether one test chooses between a gather and a log, which then is that of a job without other ranks."""
    taken = {id(guard.node): guard.taken for guard in gather.guards if guard.kind == "branch"}
    return any(taken.get(id(guard.node), guard.taken) != guard.taken for guard in log.guards)


def _has_own_reduction(log: Log) -> bool:
    """Anything but a mean is another matter."""
    for name in ("reduce_fx", "sync_dist_op"):
        given = log.event.options.get(name)
        if given is not None and given.constant not in _MEANS and not given.name.endswith(".mean"):
            return True
    return False

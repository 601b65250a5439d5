"""DL303."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.arguments import operation_of, subject_of
from distlint.analysis.containers import behind, name_of
from distlint.model import Example, Report, Rule, Severity
from distlint.syntax import dotted

_LIBRARIES = ("sklearn.metrics.", "torchmetrics.functional.")
# Metrics that a few sums, or a matrix, tell; those of orders and curves need all examples.
_OF_SUMS = re.compile(
    "accuracy|classification_report|cohen|confusion|explained_variance|f1|fbeta|hamming|jaccard|log_loss|matthews"
    "|mean_(abs|sq)|pearson|precision|r2|recall|specificity|stat_scores|zero_one"
)
_OF_ALL = re.compile("average_|curve|fixed|ranking|retrieval")


class GatherWholeDataset(Rule):
    """Every rank is sent all predictions, for a metric that a few sums would do for.

    Predictions collected over the whole evaluation are gathered, and every rank then computes the same number
    from all of them. Memory and traffic grow with the data times the ranks:

        1 M examples x 1000 classes x 4 bytes = 4 GB sent to each of 64 ranks, for a confusion matrix of 4 MB

    How to fix: keep what the metric needs (counts, sums, a confusion matrix) on every rank and reduce that once.
    A metric object, of torchmetrics or distmetrics, does so by itself.

    Silent: metrics that need all examples at once (exact AUROC, average precision, Spearman, retrieval);
    gathers in the loop, of one batch; gathered values that go elsewhere, as into a file.

    When to ignore: the data set is small.
    """

    code, name, group = "DL303", "gather-whole-dataset", "cost"
    severity = Severity.WARNING
    tokens = ((b"gather",), (b"append", b"extend", b"+="))
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.predictions, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        self.predictions.append(self(batch))
        self.labels.append(batch[1])

    def on_validation_epoch_end(self):
        predictions = self.all_gather(torch.cat(self.predictions))
        labels = self.all_gather(torch.cat(self.labels)).flatten()
        self.log("f1", f1_score(labels.cpu(), predictions.cpu()))

def evaluate(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.extend(y)
    scores = torch.cat(scores)
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, scores)
    truth = accelerator.gather(torch.stack(labels))
    return (torch.cat(everything).argmax(1) == truth).float().mean()
""",
            {16: "f1_score", 17: "f1_score", 27: "comparison", 28: "comparison"},
        ),
    )
    good = (
        """\
import torch
from sklearn.metrics import f1_score, roc_auc_score

def evaluate(model, loader, accelerator):
    scores, labels, sizes = [], [], []
    for x, y in loader:
        score, label = accelerator.gather_for_metrics((model(x), y))
        scores.append(score)
        labels.append(label)
        sizes.append(len(x))
    f1 = f1_score(torch.cat(labels), torch.cat(scores))
    return f1, accelerator.gather(torch.tensor(sum(sizes)))

def rank(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.append(y)
    scores, labels = accelerator.gather(torch.cat(scores)), accelerator.gather(torch.cat(labels))
    torch.save(scores, "scores.pt")
    return roc_auc_score(labels, scores)

def local(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.append(y)
    f1 = f1_score(torch.cat(labels), torch.cat(scores))
    return accelerator.gather(torch.tensor(f1))
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Go back from every metric with a small state to what its arguments were gathered from."""
        reported: set[ast.expr] = set()
        for event in analysis.events("opaque", "reduced"):
            what = _metric(analysis, event)
            sources = {number for value in (*event.args, *event.options.values()) for number in value.sources}
            for gather in analysis.reports[event.function].events if what else ():
                is_behind = gather.kind == "collective" and gather.number in sources
                if not is_behind or operation_of(gather) != "gathered" or gather.node in reported:
                    continue
                if _is_of_all_batches(analysis, gather):
                    reported.add(gather.node)
                    message = f"sends all predictions to every rank for {what}: reduce its counts or sums instead"
                    place = analysis.index.path, event.node.lineno, "computed by", analysis.index.text_of(event.node)
                    yield Report(gather.node, message, (place,))


def _metric(analysis: Analysis, event: Event) -> str:
    """The metric of a few sums that a call computes, or ""."""
    if event.kind == "reduced":
        is_comparison = event.args[0].family in ("mask", "flag")
        parts = behind(event.function, event.node) if is_comparison else []
        return "" if not parts or any(map(_joins_examples, parts)) else "the mean of a comparison"
    name = analysis.index.qualify(event.node.func, event.function) if isinstance(event.node, ast.Call) else ""
    is_small = name.startswith(_LIBRARIES) and _OF_SUMS.search(event.label) and not _OF_ALL.search(name)
    return event.label if is_small else ""


def _joins_examples(node: ast.AST) -> bool:
    """Whether one example is held against others, as a retrieval does."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.slice, ast.Slice)
    is_order = isinstance(node, ast.Attribute) and node.attr in ("argsort", "matmul", "sort", "topk")
    return is_order or isinstance(node, ast.MatMult)


def _is_of_all_batches(analysis: Analysis, gather: Event) -> bool:
    """Whether what is gathered was collected over a loop, or over the steps of an epoch."""
    given = gather.argument_node(1 if gather.effect.changes else 0, "input_data")
    if given is None or subject_of(gather).scale:
        return False
    names = {dotted(node) for node in behind(gather.function, given) if isinstance(node, ast.Name | ast.Attribute)}
    for event in analysis.events("grow"):
        name, is_here = name_of(event.node), event.function is gather.function
        is_repeated = any(guard.kind in ("for", "while") for guard in event.guards)
        is_of_steps = name.startswith("self.") and not is_here and event.function.owner is gather.function.owner
        if name in names and (is_of_steps or (is_here and is_repeated)):
            return True
    return False

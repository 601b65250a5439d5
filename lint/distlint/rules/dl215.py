"""DL215."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.metric_objects import is_metric_class, origin, receiver
from distlint.facts.tree import argument, is_name, keyword, positional, tail, walk
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_MAKERS = {  # methods that put padding around a loader, and the argument that leaves it out
    ("accelerate.", "prepare"): "even_batches",
    ("accelerate.", "prepare_data_loader"): "even_batches",
    ("lightning.fabric.", "setup_dataloaders"): "use_distributed_sampler",
    ("lightning_fabric.", "setup_dataloaders"): "use_distributed_sampler",
}
_SYNCS = frozenset({"sync_and_compute", "synced"})
_CUTS = frozenset({"gather_for_metrics", "fresh"})


class MetricFromPaddedLoader(Rule):
    """A metric is updated from a loader that repeats samples to fill up, and then synced: it counts some twice.

    Accelerate's ``prepare`` and Fabric's ``setup_dataloaders`` give every rank equally many batches. Where the data
    set does not divide, samples from its beginning fill up the last ones, and the state of a metric can't take them
    out again:

        597 samples, 2 ranks, batches of 64         640 are counted, F1 is 0.8286 for 0.8234

    How to fix: read ``distmetrics.integrations.accelerate.prepare(accelerator, loader)``, or
    ``distmetrics.integrations.fabric.setup_dataloaders(fabric, loader)``, which repeat nothing; or update with
    ``distmetrics.data.fresh(rows)``, which cuts the repeats.

    The rule wants to see it in one function: how the loader was prepared, the loop over it that updates the metric, and
    where the metric is synced: ``sync_and_compute``, ``synced``, or ``compute()`` of a metric of ``torchmetrics``.

    Silent: loops that train (``backward``), loaders made with ``shuffle=True``, ``drop_last=True`` or a sampler,
    ``even_batches=False``, ``use_distributed_sampler=False``, and functions that use ``gather_for_metrics`` or
    ``fresh``.

    When to ignore: the number of samples divides by that of ranks times the batch size.
    """

    code, name, group = "DL215", "metric-from-padded-loader", "wrong value"
    tokens = ((b"prepare", b"setup_dataloaders"), (b"sync_and_compute", b"synced", b"torchmetrics"))
    bad = (
        Example(
            """\
from accelerate import Accelerator
from distmetrics import sync_and_compute
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryF1Score
from tqdm import tqdm

def main(model, data):
    accelerator = Accelerator()
    loader = DataLoader(data, batch_size=64)
    model, loader = accelerator.prepare(model, loader)
    f1 = BinaryF1Score()
    for x, y in tqdm(loader):
        f1.update(model(x), y)
    print(sync_and_compute(f1))
""",
            {13: "repeats samples"},
        ),
        Example(
            """\
from lightning.fabric import Fabric
from torchmetrics.classification import BinaryF1Score

def main(model, loader):
    fabric = Fabric(devices=2)
    f1 = BinaryF1Score().to(fabric.device)
    val_loader = fabric.setup_dataloaders(loader)
    for i, (x, y) in enumerate(val_loader):
        f1(model(x), y)
    print(f1.compute())
""",
            {9: "repeats samples"},
        ),
    )
    good = (
        """\
import distmetrics.integrations.accelerate
from accelerate import Accelerator
from distmetrics import sync_and_compute
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

def gathers(model, data):
    accelerator = Accelerator()
    loader, f1 = accelerator.prepare(DataLoader(data)), MeanMetric()
    for x in loader:
        f1.update(accelerator.gather_for_metrics(model(x)))
    print(f1.compute())

def trains(model, data):
    accelerator = Accelerator()
    loader, other = accelerator.prepare(DataLoader(data), DataLoader(data, shuffle=True))
    loss, epoch = MeanMetric(), MeanMetric()
    for x in loader:
        accelerator.backward(model(x))
        loss.update(model(x))
    for x in other:
        epoch.update(model(x))
    print(sync_and_compute([loss, epoch]))

def uneven(model, data):
    accelerator = Accelerator(even_batches=False)
    loader, f1 = accelerator.prepare(DataLoader(data)), MeanMetric()
    for x in loader:
        f1.update(model(x))
    print(sync_and_compute(f1))

def exact(model, data):
    accelerator, f1 = Accelerator(), MeanMetric()
    for x in distmetrics.integrations.accelerate.prepare(accelerator, DataLoader(data)):
        f1.update(model(x))
    print(sync_and_compute(f1))
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge every update of a metric in a loop over a loader that a framework has prepared."""
        for call in facts.nodes(cst.Call):
            metric = _updated(call)
            loop = next((above for above in facts.ancestors(call) if isinstance(above, cst.For)), None)
            if metric is None or loop is None or not _is_padded(facts, loop.iter):
                continue
            around = facts.function_of(loop) or facts.module
            if _calls(loop, "backward") or _calls(around, *_CUTS) or not _is_synced(facts, around, metric):
                continue
            message = (
                f"this loader repeats samples to fill up, and {metric.value} counts them: read "
                "distmetrics.data.exact(loader) instead, or update with distmetrics.data.fresh(rows)"
            )
            yield Hit(call, message)


def _calls(root: cst.CSTNode, *names: str) -> bool:
    return any(isinstance(node, cst.Call) and tail(node.func) in names for node in walk(root))


def _is_padded(facts: ModuleFacts, loader: cst.BaseExpression) -> bool:
    """Whether a loop reads what Accelerate or Fabric has put around a loader that may not divide."""
    if isinstance(loader, cst.Call) and positional(loader):  # tqdm(loader), enumerate(loader)
        loader = positional(loader)[0]
    definitions = reaching(facts, loader) if isinstance(loader, cst.Name) else []
    made = definitions[0].value if len(definitions) == 1 else None
    if not isinstance(made, cst.Call):
        return False
    framework = origin(facts, receiver(made))
    full = "" if framework is None else facts.resolve(framework.func) or ""
    exact = [arg for (start, method), arg in _MAKERS.items() if full.startswith(start) and tail(made.func) == method]
    if not exact or _calls_with(facts, exact[0]):
        return False
    steps = definitions[0].steps
    index = steps[0] if steps and isinstance(steps[0], int) else 0
    given = positional(made)
    whole = given[index] if index < len(given) else None
    return not _is_for_training(origin(facts, whole) or whole)


def _calls_with(facts: ModuleFacts, name: str) -> bool:
    """Whether the file passes an argument that leaves the padding out."""
    return any(is_name(keyword(call, name), "False") for call in facts.nodes(cst.Call))


def _is_for_training(loader: cst.BaseExpression | None) -> bool:
    """Whether a loader is made so that it shuffles, drops what does not fit, or has an order of its own."""
    if not isinstance(loader, cst.Call):
        return False
    ways = (keyword(loader, "sampler"), keyword(loader, "batch_sampler"), keyword(loader, "drop_last"))
    given = [argument(loader, 2, "shuffle"), *ways]
    return any(each is not None and not is_name(each, "False") for each in given)


def _updated(call: cst.CSTNode) -> cst.Name | None:
    """The variable of which a call updates the metric: ``f1.update(x, y)`` or ``f1(x, y)``."""
    if not isinstance(call, cst.Call) or not call.args:
        return None
    target = call.func
    if isinstance(target, cst.Attribute) and target.attr.value == "update":
        target = target.value
    return target if isinstance(target, cst.Name) else None


def _is_synced(facts: ModuleFacts, around: cst.CSTNode, metric: cst.Name) -> bool:
    """Whether the function syncs a metric: by a call of ours, or as torchmetrics' own ``compute()`` does."""
    made = origin(facts, metric)
    while made is not None and tail(made.func) == "to":
        below = receiver(made)
        made = below if isinstance(below, cst.Call) else None
    if made is None or not is_metric_class(facts, made):
        return False
    for call in walk(around):
        if not isinstance(call, cst.Call):
            continue
        if tail(call.func) in _SYNCS and any(is_name(each, metric.value) for arg in call.args for each in walk(arg)):
            return True
        if tail(call.func) == "compute" and is_name(receiver(call), metric.value):
            return True
    return False

"""DL215."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Value
from distlint.analysis.containers import mentions
from distlint.analysis.loops import called, trains
from distlint.model import Example, Report, Rule
from distlint.nodes import within
from distlint.syntax import dotted

_SYNCS = frozenset({"compute", "sync_and_compute", "synced"})
_CUTS = frozenset({"gather_for_metrics", "fresh"})
_SWITCHES = frozenset({"even_batches", "use_distributed_sampler"})
_OWN_ORDER = frozenset({"batch_sampler", "drop_last", "sampler", "shuffle"})


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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every update of a metric in a loop over a loader that a framework has prepared."""
        if any(_is_off(each, _SWITCHES) for each in within(analysis.index.tree, ast.keyword)):
            return
        padded = [event.node for event in analysis.events("iterate") if _may_repeat(event.args[0])]
        for event in analysis.events("update", "forward") if padded else ():
            loop = [guard.node for guard in event.guards if guard.kind == "for"][-1:]
            if event.receiver.family != "metric" or not event.args or not any(each in padded for each in loop):
                continue
            name = dotted(getattr(event.node, "func", event.node)).removesuffix(".update")
            is_cut = not _CUTS.isdisjoint(called(event.function.node))
            if not is_cut and not trains(event) and _is_synced(analysis, event, name):
                message = (
                    f"this loader repeats samples to fill up, and {name} counts them: read "
                    "distmetrics.data.exact(loader) instead, or update with distmetrics.data.fresh(rows)"
                )
                yield Report(event.node, message)


def _is_off(keyword: ast.keyword, names: frozenset[str]) -> bool:
    return keyword.arg in names and isinstance(keyword.value, ast.Constant) and keyword.value.value is False


def _may_repeat(loader: Value) -> bool:
    """Whether a framework has prepared a loader that is not made so that it shuffles, or drops what does not fit."""
    made = loader.call
    own = made is not None and any(each.arg in _OWN_ORDER and not _is_off(each, _OWN_ORDER) for each in made.keywords)
    return loader.wrapped == "prepared" and not own and (made is None or len(made.args) < 3)


def _is_synced(analysis: Analysis, update: Event, name: str) -> bool:
    """Whether the function syncs a metric: by a call of ours, or as torchmetrics' own ``compute()`` does."""
    own = analysis.reports[update.function].events
    syncs = (event.node for event in own if event.kind == "collective" and event.label in _SYNCS)
    return any(mentions(node, name) for node in syncs)

"""DL105."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import libcst as cst

from distlint.analysis import Analysis, Guard
from distlint.api.tokens import COLLECTIVE_TOKENS, may_reduce
from distlint.concrete import ConcreteTree, positional, tail
from distlint.model import Change, Condition, Example, Repair, Report, Rule
from distlint.partings import WITHOUT_DATA, Made, all_made
from distlint.tracing import of_guard


class _Order(NamedTuple):
    why: str
    is_sortable: bool
    is_same_content: bool = True


_ORDERS = {
    "set": _Order("a set", False),
    "texts": _Order("a set", True),
    "files": _Order("a list of files, in the file system's order", True),
    "entries": _Order("a list of files, in the file system's order", False),
    "keys": _Order("a dict whose keys come from this rank's batches", False, False),
}


_OTHER_KEYS = Condition("data", "if batches of some ranks have other keys")
_ELSEWHERE = Condition("data", "if ranks' machines list the files in another order")


class CollectiveInUnorderedLoop(Rule):
    """Collectives while iterating a set or the like: each process has its own order, and values get mixed up.

    Python's hash of a string differs from process to process, so sets of the same names come in different orders,
    and collectives are matched by their order alone:

        rank 0   for name in {"loss", "accuracy"}:   all_reduce(loss)       all_reduce(accuracy)
        rank 1                                       all_reduce(accuracy)   all_reduce(loss)

    Both sums are of a loss and an accuracy, and nothing fails; tensors of different shapes fail or hang.

    How to fix: ``for name in sorted(names)``. A dict keeps the order in which its keys came: if they came from
    this rank's batches, agree on the keys first (``all_gather_object``), then take the sorted union.

    The rule knows sets, set operations on ``keys()``, ``os.listdir``, ``glob`` and ``Path.iterdir`` (the file
    system's order), dicts with keys from the batch, and ``sorted(..., key=...)`` of these by a key of few values, such
    as a test, which leaves the rest in the order in which it came.

    For review: lists of files, which processes on one machine see in the same order.

    Silent: ``sorted(...)``, dicts with keys that the program gives, sets of numbers written out, barriers.

    When to ignore: ``PYTHONHASHSEED`` is set to one value for all processes.
    """

    code, name, group = "DL105", "collective-in-unordered-loop", "divergence"
    tokens = ((*COLLECTIVE_TOKENS, b"sync_dist"), (b"for",))
    evidence = staticmethod(may_reduce)
    bad = (
        Example(
            """\
import torch.distributed as dist

def reduce_all(metrics, other):
    for name in {"loss", "accuracy"}:
        dist.all_reduce(metrics[name])
    for name in set(metrics):
        dist.all_reduce(metrics[name])
    names = metrics.keys() & other.keys()
    for index, name in enumerate(names):
        dist.all_reduce(metrics[name])
""",
            {5: "a set", 7: "a set", 10: "a set"},
        ),
        Example(
            """\
import os
from collections import defaultdict
from pathlib import Path
from lightning.pytorch import LightningModule
import torch.distributed as dist

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.names = {f"head_{n}" for n in range(3)}
        self.scores = defaultdict(list)

    def validation_step(self, batch, batch_idx):
        for name, score in zip(batch["names"], self(batch)):
            self.scores[name].append(score)

    def on_validation_epoch_end(self):
        for name in self.names:
            self.log(name, self.score(name), sync_dist=True)
        for name, scores in self.scores.items():
            self.log(name, sum(scores), sync_dist=True)

def share(folder):
    for file in os.listdir(folder):
        dist.broadcast(load(file), 0)
    return [dist.broadcast(load(file), 0) for file in Path(folder).iterdir()]
""",
            {19: "a set", 21: "keys come from this rank's batches", 25: "list of files", 26: "list of files"},
        ),
        Example(
            """\
import torch.distributed as dist

def merge(scores):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(scores))
    names = set()
    for part in gathered:
        names.update(part)
    for name in sorted(names, key=lambda name: 0 if "norm" in name else 1):
        dist.all_reduce(scores[name])
    return scores
""",
            {10: "a set"},
        ),
    )
    good = (
        """\
import os
import torch.distributed as dist

def reduce_all(metrics, other, folder):
    for name in sorted({"loss", "accuracy"}):
        dist.all_reduce(metrics[name])
    for name in sorted(set(metrics)):
        dist.all_reduce(metrics[name])
    for name, value in metrics.items():
        dist.all_reduce(value)
    for number in {1, 2}:
        dist.all_reduce(metrics[number])
    for name in set(metrics):
        dist.barrier()
    for name in set(metrics):
        print(name)
    for file in sorted(os.listdir(folder)):
        dist.broadcast(load(file), 0)
    layers = set()
    for metric in metrics:
        layers.add(int(metric))
    for layer in layers:
        dist.all_reduce(metrics[layer])
    for name in sorted(set(metrics), key=lambda name: (name.startswith("loss"), name)):
        dist.all_reduce(metrics[name])
    both = metrics - other
    for value in both:
        dist.all_reduce(value)
""",
        """\
import os
from lightning.pytorch import Trainer

def test_all(model, data, folder, device):
    trainer = Trainer(devices=[device])
    for file in os.listdir(folder):
        trainer.test(model, data, ckpt_path=file)
""",
        """\
from collections import defaultdict
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.scores = defaultdict(list)

    def validation_step(self, batch, batch_idx):
        for name, value in batch.items():
            self.scores[name].append(value)
        for name in self.heads:
            self.scores[name].append(self.loss(name, batch))

    def on_validation_epoch_end(self):
        for name, scores in self.scores.items():
            self.log(name, sum(scores), sync_dist=True)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every loop around a collective what it runs over; one finding for each loop."""
        told: set[int] = set()
        for made in all_made(analysis):
            loop = next((each for each in made.event.guards if each.kind == "for" and each.test.order), None)
            if loop is None or id(loop.node) in told or made.step.label in WITHOUT_DATA:
                continue
            told.add(id(loop.node))
            yield _report(analysis, made, loop)


def _report(analysis: Analysis, made: Made, loop: Guard) -> Report:
    order = _ORDERS[loop.test.order]
    shown = analysis.index.text_of(loop.node)
    message = f"this {made.what} is made for each element of {order.why} ({shown}): each process has its own order"
    if not order.is_same_content:
        message += " and its own elements"
        return Report(made.event.node, message, (of_guard(analysis, loop), *made.trace), _OTHER_KEYS)
    repair = partial(_sorted, shown, order.is_sortable)
    condition = _ELSEWHERE if loop.test.order in ("files", "entries") else None
    return Report(made.event.node, message, (of_guard(analysis, loop), *made.trace), condition, repair)


def _sorted(shown: str, is_safe: bool, tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """``sorted(...)`` around what the loop runs over."""
    loops = (above for above in tree.ancestors(call) if isinstance(above, cst.For | cst.CompFor))
    over = next((loop.iter for loop in loops if tree.code(loop.iter) == shown), None)
    while isinstance(over, cst.Call) and tail(over.func) in ("enumerate", "tqdm", "track") and positional(over):
        over = positional(over)[0]
    return Repair(is_safe, (Change(over, f"sorted({tree.source_at(over)})"),)) if over is not None else None

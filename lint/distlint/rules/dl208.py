"""DL208."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Guard
from distlint.analysis.samplers import names_evaluation
from distlint.model import Example, Report, Rule
from distlint.nodes import within
from distlint.syntax import FunctionNode, dotted

_DEEPEST = 4
_MESSAGE = (
    "no set_epoch is called for this shuffling DistributedSampler: every epoch has the same order; "
    "call sampler.set_epoch(epoch) at the start of each epoch"
)


class SamplerWithoutSetEpoch(Rule):
    """A shuffling ``DistributedSampler`` whose ``set_epoch`` is never called: every epoch has the same order.

    The sampler draws its order from its seed and its epoch, and only ``set_epoch`` changes the epoch:

        epoch 0   rank 0 sees 3 7 1, rank 1 sees 0 5 2
        epoch 1   rank 0 sees 3 7 1, rank 1 sees 0 5 2      never another order, never other batches

    How to fix: ``sampler.set_epoch(epoch)`` at the start of every epoch. Trainers (Lightning, Accelerate,
    ``distmetrics``) do that themselves.

    The rule wants to see it all in one file: the sampler, its loader, and the loop over epochs that uses the loader.

    Silent: ``shuffle=False``, evaluation, files that call ``set_epoch`` anywhere, loaders that are handed to
    somebody else (so is the sampler), loops of a single epoch.

    When to ignore: the data set shuffles by itself.
    """

    code, name, group = "DL208", "sampler-without-set-epoch", "wrong value"
    tokens = ((b"DistributedSampler",), (b"epoch",))
    bad = (
        Example(
            """\
from torch.utils.data import DataLoader, DistributedSampler

def make_loader(dataset):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, sampler=sampler, batch_size=32)

def train(model, dataset, epochs):
    loader = make_loader(dataset)
    for epoch in range(epochs):
        for batch in loader:
            model(batch)
""",
            {4: "set_epoch"},
        ),
        Example(
            """\
import torch

class Trainer:
    def __init__(self, dataset):
        self.loader = torch.utils.data.DataLoader(
            dataset, sampler=torch.utils.data.distributed.DistributedSampler(dataset)
        )

    def train(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch)

    def run_epoch(self, epoch):
        for batch in self.loader:
            self.model(batch)
""",
            {6: "set_epoch"},
        ),
    )
    good = (
        """\
from torch.utils.data import DataLoader, DistributedSampler

def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            model(batch)
""",
        """\
from torch.utils.data import DataLoader, DistributedSampler

def make_loader(dataset):
    return DataLoader(dataset, sampler=DistributedSampler(dataset))

def train(model, trainer, dataset, val_set, epochs):
    trainer.fit(model, make_loader(dataset))
    val_loader = DataLoader(val_set, sampler=DistributedSampler(val_set, shuffle=False))
    for epoch in range(epochs):
        for batch in val_loader:
            model(batch)
""",
        """\
from accelerate import Accelerator
from torch.utils.data import DataLoader, DistributedSampler

def train(model, dataset, epochs):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    loader = Accelerator().prepare(loader)
    for epoch in range(epochs):
        for batch in loader:
            model(batch)
""",
    )

    def can_matter(self, source: bytes) -> bool:
        """Nothing to say where the method is named."""
        return b"set_epoch" not in source

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every sampler that shuffles, if a loop that could call ``set_epoch`` runs over its loader."""
        if "set_epoch" in analysis.index.source:
            return
        repeated = [event for event in analysis.events("iterate") if _is_repeated(analysis, event)]
        for made in analysis.events("sampler"):
            runs = [event for event in repeated if event.args[0].sampler is made.node]
            shuffle = made.argument(3, "shuffle")
            if not runs or (shuffle is not None and shuffle.constant is not True) or "**" in made.options:
                continue
            texts = [analysis.index.text_of(node) for node in (made.argument_node(0, "dataset"), runs[0].node) if node]
            is_ruled_out = any(map(names_evaluation, texts)) or _is_handed_on(analysis, made) or _is_renewed(made)
            if not is_ruled_out:
                over = runs[0].node
                loop = analysis.index.path, over.lineno, "loop", f"for … in {analysis.index.text_of(over)}"
                yield Report(made.node, _MESSAGE, (loop,))


def _is_repeated(analysis: Analysis, event: Event) -> bool:
    """Whether a loader is run over in a loop over numbers, here or where this function is called."""
    seen: set[FunctionNode] = set()
    pending = [event]
    while pending and len(seen) < _DEEPEST:
        here = pending.pop()
        if any(_counts(guard) for guard in here.guards):
            return True
        if here.function not in seen:
            seen.add(here.function)
            pending += [call for call in analysis.events("call") if call.target is here.function]
    return False


def _counts(guard: Guard) -> bool:
    """True if a loop counts, and not to one."""
    if guard.kind == "while":
        return True
    calls = list(within(guard.node, ast.Call)) if guard.kind == "for" else []
    ranges = [node for node in calls if dotted(node.func).rpartition(".")[2] in ("range", "trange", "count")]
    return any(
        not all(isinstance(part, ast.Constant) and part.value in (0, 1) for part in node.args) for node in ranges
    )


def _is_renewed(made: Event) -> bool:
    """Whether each turn makes the sampler for a data set of its own."""
    data = made.argument_node(0, "dataset")
    loops = [node for node in ast.walk(made.function.node) if isinstance(node, ast.For) and made.node in ast.walk(node)]
    names = {node.id for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name) and _is_set(node)}
    return bool(loops) and (isinstance(data, ast.Call) or (isinstance(data, ast.Name) and data.id in names))


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_handed_on(analysis: Analysis, made: Event) -> bool:
    """Whether somebody that cannot be seen is given the sampler, and may call ``set_epoch``."""
    return any(
        value.family == "sampler" and value.sampler is made.node
        for event in analysis.events("opaque")
        for value in (*event.args, *event.options.values())
    )

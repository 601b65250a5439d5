"""DL208."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Guard
from distlint.analysis.samplers import names_evaluation, shuffles
from distlint.analysis.value import Elsewhere
from distlint.model import Example, Report, Rule
from distlint.nodes import within
from distlint.syntax import FunctionNode, dotted

_DEEPEST = 4
_MESSAGE = (
    "no set_epoch is called for the shuffling DistributedSampler of this loop's batches: every epoch has the same "
    "order; call sampler.set_epoch(epoch) at the start of each epoch"
)


class SamplerWithoutSetEpoch(Rule):
    """A shuffling ``DistributedSampler`` whose ``set_epoch`` is never called: every epoch has the same order.

    The sampler draws its order from its seed and its epoch, and only ``set_epoch`` changes the epoch:

        epoch 0   rank 0 sees 3 7 1, rank 1 sees 0 5 2
        epoch 1   rank 0 sees 3 7 1, rank 1 sees 0 5 2      never another order, never other batches

    How to fix: ``sampler.set_epoch(epoch)`` at the start of every epoch. Trainers (Lightning, Accelerate,
    ``distmetrics``) do that themselves.

    The rule wants to see the loop over epochs that uses the loader, and what makes the loader with its sampler: in the
    same file, or a function of another one. It reports the loop.

    Silent: ``shuffle=False``, evaluation, files that name ``set_epoch``, loaders that are handed to
    somebody else (so is the sampler), loops of a single epoch.

    When to ignore: the data set shuffles by itself.
    """

    code, name, group = "DL208", "sampler-without-set-epoch", "wrong value"
    tokens = ((b"DistributedSampler",), (b"epoch",))
    evidence = staticmethod(lambda source: b"set_epoch" not in source)
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
            {9: "set_epoch"},
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
            {10: "set_epoch"},
        ),
        Example(
            """\
from torch.utils.data import DataLoader, DistributedSampler

def train(model, dataset, epochs):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for epoch in range(epochs):
        batches = iter(loader)
        for _ in range(len(loader)):
            model(next(batches))
""",
            {5: "set_epoch"},
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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every sampler that shuffles, if a loop that could call ``set_epoch`` runs over its loader."""
        if "set_epoch" in analysis.index.source:
            return
        told: set[tuple[int, int]] = set()
        made = {id(event.node): event for event in analysis.events("sampler")}
        for event in analysis.events("iterate"):
            loop, sampler = _repeating(analysis, event), made.get(id(event.args[0].sampler))
            place = _place(analysis, event, sampler)
            if loop is not None and place is not None and (key := (id(loop.node), place[1])) not in told:
                told.add(key)
                yield Report(loop.node, _MESSAGE, ((place[0], place[1], "sampler", place[2]),))


def _place(analysis: Analysis, over: Event, made: Event | None) -> Elsewhere | None:
    """Where the sampler of a loop is made that nobody tells the epoch, if it shuffles."""
    index = analysis.index
    if names_evaluation(index.text_of(over.node)):
        return None
    if made is None:
        return over.args[0].shuffled
    if not shuffles(index, made) or _is_handed_on(analysis, made) or _is_renewed(made):
        return None
    return Elsewhere(index.path, made.node.lineno, index.text_of(made.node))


def _repeating(analysis: Analysis, event: Event) -> Guard | None:
    """The loop over numbers in which a loader is run over, here or where this function is called."""
    seen: set[FunctionNode] = set()
    pending = [event]
    while pending and len(seen) < _DEEPEST:
        here = pending.pop()
        loop = next(filter(_counts, here.guards), None)
        if loop is not None:
            return loop
        if here.function not in seen:
            seen.add(here.function)
            pending += [call for call in analysis.events("call") if call.target is here.function]
    return None


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

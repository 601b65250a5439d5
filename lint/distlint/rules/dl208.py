"""DL208."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.samplers import Purposes, samplers, shuffles
from distlint.facts.stages import arguments
from distlint.facts.tree import argument, keyword, names_in, tail, walk
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts


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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge every sampler that shuffles, if some loop over epochs is here to call ``set_epoch``."""
        if any(tail(call.func) == "set_epoch" for call in facts.nodes(cst.Call)):
            return
        found = [call for call in samplers(facts) if shuffles(call)]
        loops = _epoch_names(facts) if found else set()
        purposes = Purposes(facts) if loops else None
        for call in found if purposes is not None else ():
            loaders = _loader_names(facts, call)
            if purposes is None or purposes.is_for_evaluation(call) or not loaders & loops:
                continue
            if _is_renewed(facts, call):
                continue
            if not _is_handed_on(facts, call) and not _is_prepared(facts, loaders):
                message = (
                    "no set_epoch is called for this shuffling DistributedSampler: every epoch has the same order; "
                    "call sampler.set_epoch(epoch) at the start of each epoch"
                )
                yield Hit(call, message)


_DEEPEST = 4
_PREPARES = frozenset({"prepare", "prepare_data_loader", "setup_dataloaders", "_setup_dataloaders", "fit"})


def _epoch_names(facts: ModuleFacts) -> set[str]:
    """Every name that something in a loop over epochs iterates over, also in the functions of this file it calls."""
    loops = (node for node in walk(facts.module) if isinstance(node, cst.For) and _runs_over_epochs(node))
    found: set[str] = set()
    for loop in loops:
        found |= _iterated(facts, loop.body, frozenset())
    return found


def _iterated(facts: ModuleFacts, body: cst.CSTNode, seen: frozenset[cst.CSTNode]) -> set[str]:
    found: set[str] = set()
    for node in walk(body):
        if isinstance(node, cst.For):
            found |= names_in(node.iter)
        function = facts.local_function(node) if isinstance(node, cst.Call) else None
        if function is None or function in seen or len(seen) > _DEEPEST or not isinstance(node, cst.Call):
            continue
        inner = _iterated(facts, function.body, seen | {function})
        given = [(name, value) for name, value in arguments(facts, function, node) if name in inner]
        found |= inner - {name for name, _ in given}
        for _, value in given:
            found |= names_in(value)
    return found


def _runs_over_epochs(loop: cst.For) -> bool:
    names = map(str.lower, names_in(loop.target))
    return any("epoch" in name or name == "ep" for name in names)


def _is_renewed(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether each epoch makes the sampler for a data set of its own."""
    data = argument(call, 0, "dataset")
    loop = next(
        (above for above in facts.ancestors(call) if isinstance(above, cst.For) and _runs_over_epochs(above)), None
    )
    if loop is None or data is None:
        return False
    made = [each.node for each in reaching(facts, data)] if isinstance(data, cst.Name) else [data]
    return bool(made) and all(loop in facts.ancestors(node) for node in made)


def _loader_names(facts: ModuleFacts, call: cst.Call) -> set[str]:
    """What the loader of a sampler is called, here and where a function of this file returned it."""
    samplers_called = _assigned_names(facts.statement(call)) if not _in_loader(facts, call) else set()
    loaders: set[str] = set()
    makers: set[cst.FunctionDef] = set()
    while True:
        before = len(loaders) + len(makers)
        for node in facts.nodes(cst.Call):
            made = _is_loader(node) and _gives_sampler(facts, node, call, samplers_called)
            if not made and facts.local_function(node) not in makers:
                continue
            loaders |= _assigned_names(facts.statement(node))
            makers |= _returning(facts, node)
        for function in {facts.function_of(node) for node in facts.nodes(cst.Call)} - {None}:
            if function is not None and any(_mentions(value, loaders) for value in facts.returns(function)):
                makers.add(function)
        if len(loaders) + len(makers) == before:
            return loaders


def _is_handed_on(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether somebody else is given the sampler, who may call ``set_epoch``."""
    names = _assigned_names(facts.statement(call)) if not _in_loader(facts, call) else set()
    for other in facts.nodes(cst.Call):
        is_loader = _is_loader(other) or (tail(other.func) or "").endswith("BatchSampler")
        if not is_loader and any(tail(arg.value) in names for arg in other.args if not isinstance(arg.value, cst.Call)):
            return True
    return False


def _is_prepared(facts: ModuleFacts, loaders: set[str]) -> bool:
    """Whether a framework is given the loader: it sets the epoch itself."""
    return any(
        tail(arg.value) in loaders
        for call in facts.nodes(cst.Call)
        if tail(call.func) in _PREPARES
        for arg in call.args
        if not isinstance(arg.value, cst.Call)
    )


def _is_loader(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and (tail(node.func) or "").endswith("DataLoader")


def _in_loader(facts: ModuleFacts, call: cst.Call) -> bool:
    return any(_is_loader(above) for above in facts.ancestors(call))


def _gives_sampler(facts: ModuleFacts, loader: cst.Call, call: cst.Call, names: set[str]) -> bool:
    given = keyword(loader, "sampler") or keyword(loader, "batch_sampler")
    if given is None:
        return False
    return tail(given) in names or any(node is call for node in walk(given))


def _assigned_names(statement: cst.CSTNode) -> set[str]:
    found: set[str] = set()
    for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        for target in part.targets if isinstance(part, cst.Assign) else ():
            elements = target.target.elements if isinstance(target.target, cst.Tuple) else ()
            found |= {tail(each) or "" for each in (target.target, *(element.value for element in elements))}
    return found - {""}


def _returning(facts: ModuleFacts, node: cst.Call) -> set[cst.FunctionDef]:
    """The function that returns what a call made at once."""
    function = facts.function_of(node)
    statement = facts.statement(node)
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    return {function} if function is not None and any(isinstance(part, cst.Return) for part in parts) else set()


def _mentions(value: cst.BaseExpression, names: set[str]) -> bool:
    elements = [element.value for element in value.elements] if isinstance(value, cst.Tuple) else [value]
    return any(tail(each) in names for each in elements if isinstance(each, cst.Name | cst.Attribute))

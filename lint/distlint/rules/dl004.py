"""DL004."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts
from distlint.facts.flow import reaching
from distlint.facts.programs import SAMPLER_SWITCHES
from distlint.facts.samplers import feeds_other_loader
from distlint.facts.tree import argument, is_name, keyword, tail, text_of, walk
from distlint.model import Change, Example, Hit, Repair, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_SAMPLERS = frozenset(
    {
        "torch.utils.data.DistributedSampler",
        "torch.utils.data.distributed.DistributedSampler",
        "DistributedSampler",
    }
)
_WORLD = frozenset({"get_world_size", "world_size", "num_replicas", "WORLD_SIZE"})
_RANK = frozenset({"get_rank", "global_rank", "rank", "RANK"})
_FRAMEWORKS = ("torch.distributed", "lightning", "pytorch_lightning")


class ManualDistributedSampler(Rule):
    """A ``DistributedSampler`` made by hand where the trainer would put one in.

    A trainer gives the loaders of modules and data modules the sampler that their use needs: shuffling for
    training, in order for evaluation, as many replicas as there are ranks. One made by hand is kept as it is.
    Then the same data module fails on one device,

        ValueError: Default process group has not been initialized, please make sure to call init_process_group.

    and what the sampler was forgotten to be told stays wrong: ``shuffle=True`` is the default, in validation
    too. Built before the process group is there, as in a branch on ``is_initialized()``, every rank reads the
    same data.

    How to fix: leave the sampler out and give the loader ``shuffle``. Where it must be made by hand, say so:
    ``Trainer(use_distributed_sampler=False)``.

    Silent: projects in which a trainer is told not to (``use_distributed_sampler=False``,
    ``replace_sampler_ddp=False``); samplers behind a switch of the class (``if self.distributed``), for a part
    of the ranks, or of one's own making; loaders that are none of torch's (``webdataset.WebLoader``), whose maker
    the function is given, or for a loop of one's own; scripts and classes that no trainer drives.

    When to ignore: the loaders are used in a loop of one's own.
    """

    code, name, group = "DL004", "manual-distributed-sampler", "portability"
    severity = Severity.WARNING
    tokens = ((b"DistributedSampler",), (b"class",))
    bad = (
        Example(
            """\
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils import data
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, sampler=DistributedSampler(self.train))

    def val_dataloader(self):
        if dist.is_initialized():
            sampler = data.distributed.DistributedSampler(
                self.val, num_replicas=dist.get_world_size(), rank=dist.get_rank()
            )
        else:
            sampler = None
        return DataLoader(self.val, sampler=sampler)

class Model(LightningModule):
    def test_dataloader(self):
        return self.loader()

    def loader(self):
        world, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = DistributedSampler(self.test, world, rank=rank, shuffle=False)
        return DataLoader(self.test, sampler=sampler)
""",
            {8: "trainer", 12: "trainer", 25: "trainer"},
        ),
    )
    good = (
        """\
from torch.utils.data import DataLoader, DistributedSampler

class Loaders:
    def train_dataloader(self):
        return DataLoader(self.data, sampler=DistributedSampler(self.data))

def main(data):
    return DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
""",
        """\
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, sampler=DistributedSampler(self.train))

trainer = Trainer(devices=2, use_distributed_sampler=False)
""",
        """\
import webdataset as wds
from lightning.pytorch import LightningDataModule
from torch.utils.data import DistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        return wds.WebLoader(self.train, sampler=DistributedSampler(self.train))
""",
        """\
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, DistributedSampler

class Model(LightningModule):
    def on_validation_epoch_end(self):
        sampler = DistributedSampler(self.extra, shuffle=False)
        for batch in DataLoader(self.extra, sampler=sampler):
            self.show(batch)
""",
        """\
from lightning.pytorch import LightningDataModule
from megatron.core import parallel_state
from torch.utils.data import DataLoader, DistributedSampler

from .samplers import BucketDistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        sampler = DistributedSampler(
            self.train,
            num_replicas=parallel_state.get_data_parallel_world_size(),
            rank=parallel_state.get_data_parallel_rank(),
        )
        return DataLoader(self.train, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(self.val, batch_sampler=BucketDistributedSampler(self.val))

    def test_dataloader(self):
        sampler = DistributedSampler(self.test, shuffle=False) if self.distributed else None
        return DataLoader(self.test, sampler=sampler)
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at every sampler made where a trainer is at work."""
        if facts.project.opt_outs.intersection(SAMPLER_SWITCHES):
            return
        found = [call for call in facts.nodes(cst.Call) if tail(call.func) == "DistributedSampler"]
        if not found or _opts_out(facts):
            return
        for call in found:
            if not _is_driven(facts, call) or _by_own_switch(facts, call):
                continue
            if feeds_other_loader(facts, call):
                continue
            if _is_torch(facts, call) and _is_of_all_ranks(facts, call):
                yield Hit(
                    call,
                    "a DistributedSampler where the trainer puts in its own: leave it out,"
                    " or tell the trainer use_distributed_sampler=False",
                    repair=_repair(call, facts.parents.get(call), facts),
                )


def _opts_out(facts: ModuleFacts) -> bool:
    """``use_distributed_sampler=False`` anywhere in the file, as an argument, a key or an attribute."""
    for node in walk(facts.module):
        if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value in SAMPLER_SWITCHES:
            return True
        if isinstance(node, cst.DictElement) and text_of(node.key) in SAMPLER_SWITCHES:
            return True
        if isinstance(node, cst.Attribute) and node.attr.value in SAMPLER_SWITCHES:
            return True
    return False


def _is_driven(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a trainer gets the loader: from a data module, or from a module's hook or what that calls."""
    owner, method = facts.owner(call), facts.method_of(call)
    if owner is None or method is None:
        return False
    if owner.kinds & {"datamodule", "lite"}:
        return True
    name = method.name.value
    return "lightning" in owner.kinds and (_gives_loaders(name) or _is_called_for_loaders(facts, owner, name))


def _gives_loaders(name: str) -> bool:
    return name == "setup" or name.endswith(("_dataloader", "_dataloaders"))


def _is_called_for_loaders(facts: ModuleFacts, owner: ClassFacts, name: str) -> bool:
    hooks = (method for hook, method in owner.methods.items() if _gives_loaders(hook))
    calls = (node for method in hooks for node in walk(method) if isinstance(node, cst.Call))
    return any(facts.self_attribute(call.func) == name for call in calls)


def _by_own_switch(facts: ModuleFacts, call: cst.Call) -> bool:
    """Under ``if self.distributed``: whoever sets the switch also decides what the trainer does."""
    for above in facts.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return False
        test = above.test if isinstance(above, cst.If | cst.IfExp) else None
        for node in walk(test) if test is not None else ():
            attribute = facts.self_attribute(node) if isinstance(node, cst.Attribute) else None
            if attribute is not None and attribute != "trainer":
                return True
    return False


def _is_torch(facts: ModuleFacts, call: cst.Call) -> bool:
    full = facts.resolve(call.func)
    return full is None or full in _SAMPLERS


def _is_of_all_ranks(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether the sampler shares the data among all ranks, as the trainer's own would."""
    replicas, rank = argument(call, 1, "num_replicas"), argument(call, 2, "rank")
    return _is_world(facts, replicas, _WORLD) and _is_world(facts, rank, _RANK)


def _is_world(facts: ModuleFacts, node: cst.BaseExpression | None, words: frozenset[str], depth: int = 0) -> bool:
    if node is None or is_name(node, "None"):
        return True
    if isinstance(node, cst.Call):
        full = facts.resolve(node.func) or ""
        return tail(node.func) in words and (not full or full.startswith((*_FRAMEWORKS, "<here>.")))
    if tail(node) in words and not isinstance(node, cst.Name):
        return True
    if isinstance(node, cst.Name) and depth < 3:
        definitions = reaching(facts, node)
        steps = [each for each in definitions if each.value is not None]
        if not steps:
            return node.value in words
        return all(_taken(facts, each.value, each.steps, words, depth) for each in steps)
    return False


def _taken(
    facts: ModuleFacts,
    value: cst.BaseExpression | None,
    steps: tuple[int | str, ...],
    words: frozenset[str],
    depth: int,
) -> bool:
    """A value, or one part of a tuple that is written out."""
    if steps and isinstance(value, cst.Tuple) and isinstance(steps[0], int) and steps[0] < len(value.elements):
        return _taken(facts, value.elements[steps[0]].value, steps[1:], words, depth)
    return not steps and _is_world(facts, value, words, depth + 1)


def _repair(call: cst.Call, parent: cst.CSTNode | None, facts: ModuleFacts) -> Repair | None:
    """``sampler=DistributedSampler(data, shuffle=False)`` becomes ``shuffle=False``."""
    loader = facts.parents.get(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(parent, cst.Arg) or not isinstance(loader, cst.Call) or tail(loader.func) != "DataLoader":
        return None
    if parent.keyword is None or parent.keyword.value != "sampler" or keyword(loader, "shuffle") is not None:
        return None
    shuffle = argument(call, 3, "shuffle")
    return Repair(False, (Change(parent, f"shuffle={facts.code(shuffle) if shuffle is not None else 'True'}"),))

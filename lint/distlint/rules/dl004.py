"""DL004."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from distlint.analysis import Analysis, Event
from distlint.analysis.samplers import makers
from distlint.concrete import ConcreteTree, argument, keyword, tail
from distlint.model import Change, Condition, Example, Repair, Report, Rule, Severity
from distlint.nodes import within

_SWITCHES = frozenset({"use_distributed_sampler", "replace_sampler_ddp"})
_DRIVEN = frozenset({"data_module", "lightning_module"})
_TELLS = (("num_replicas", "world"), ("rank", "rank"))
_MESSAGE = (
    "a DistributedSampler where the trainer puts in its own: leave it out,"
    " or tell the trainer use_distributed_sampler=False"
)
_DRIVES = Condition("data", "if a trainer drives this class")


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
    of the ranks, or of one's own making; loaders that are none of torch's (``webdataset.WebLoader``), or for a loop
    of one's own; scripts and classes that no trainer drives. For review where no trainer is seen to be handed the
    data module: some are written for a loop of one's own.

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
from torch.utils.data import DataLoader, DistributedSampler

from .samplers import BucketDistributedSampler

class Data(LightningDataModule):
    def train_dataloader(self):
        sampler = DistributedSampler(self.train, num_replicas=self.readers, rank=self.reader)
        return DataLoader(self.train, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(self.val, batch_sampler=BucketDistributedSampler(self.val))

    def test_dataloader(self):
        sampler = DistributedSampler(self.test, shuffle=False) if self.distributed else None
        return DataLoader(self.test, sampler=sampler)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look at every sampler that a loader of a trainer's hook deals out by."""
        if analysis.project.opt_outs & _SWITCHES or any(name in analysis.index.source for name in _SWITCHES):
            return
        for made in analysis.events("sampler"):
            owner = made.function.owner
            family = analysis.family(owner) if owner is not None else ""
            if owner is None or family not in _DRIVEN or not _is_of_all_ranks(made) or _is_by_switch(analysis, made):
                continue
            loaders = [each for each in analysis.events("loader") if each.result.sampler is made.node]
            is_hooked = any(name.endswith(("_dataloader", "_dataloaders")) for name in makers(analysis, made))
            if loaders and (is_hooked or family == "data_module"):
                is_sure = is_hooked and (family == "lightning_module" or analysis.is_placed(owner))
                yield Report(made.node, _MESSAGE, condition=None if is_sure else _DRIVES, repair=_repair)


def _is_of_all_ranks(made: Event) -> bool:
    """True if the sampler shares the data among all ranks, as the trainer's own would."""
    given = [made.argument(place, name) for place, (name, _) in enumerate(_TELLS, 1)]
    told = [family for _, family in _TELLS]
    return all(value is None or value.family in ("none", family) for value, family in zip(given, told, strict=True))


def _is_by_switch(analysis: Analysis, made: Event) -> bool:
    """Under ``if self.distributed``: whoever sets the switch also decides what the trainer does."""
    tests = (guard.node for guard in made.guards if guard.kind == "branch" and isinstance(guard.node, ast.expr))
    parts = (node for test in tests for node in within(test, ast.Attribute))
    return any(
        isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr != "trainer" for node in parts
    )


def _repair(tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """``sampler=DistributedSampler(data, shuffle=False)`` becomes ``shuffle=False``."""
    parent = tree.parents.get(call)
    loader = tree.parents.get(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(parent, cst.Arg) or not isinstance(loader, cst.Call) or tail(loader.func) != "DataLoader":
        return None
    if tail(parent.keyword) != "sampler" or keyword(loader, "shuffle") is not None or not isinstance(call, cst.Call):
        return None
    shuffle = argument(call, 3, "shuffle")
    return Repair(False, (Change(parent, f"shuffle={tree.code(shuffle) if shuffle is not None else 'True'}"),))

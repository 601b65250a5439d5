"""DL205."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis
from distlint.analysis.arguments import operation_of
from distlint.analysis.samplers import is_for_evaluation, is_used_here
from distlint.model import Condition, Example, Report, Rule

_MESSAGE = (
    "this DistributedSampler draws the examples of an evaluation at random and repeats some to fill up the last rank: "
    "pass shuffle=False, and drop the repeats before the metric"
)
_JOINED = Condition("data", "unless they drop out already, where gathered results are joined by example")


class EvaluationSamplerRepeats(Rule):
    """A shuffling ``DistributedSampler`` feeds an evaluation: some examples count twice, others each time.

    ``DistributedSampler`` gives every rank the same number of examples. Where the data set does not divide, it
    repeats some to fill up, and ``shuffle=True``, its default, draws anew which ones they are:

        5 examples, 2 ranks, 1 miss          accuracy 4/5 = 0.80
        6 drawn, a hit twice                 accuracy 5/6 = 0.83
        6 drawn, the miss twice              accuracy 4/6 = 0.67

    The order of the predictions is another one than that of the data set, too: whoever joins them by position
    joins the wrong ones.

    How to fix: ``shuffle=False`` at least, so that the same few examples at the start are repeated; and drop the
    repeats where the number must be exact: gather, then cut to ``len(dataset)`` (``gather_for_metrics`` in
    Accelerate), or give each rank its own slice without padding (``range(rank, len(dataset), world_size)``).

    Silent: ``shuffle=False`` (what repeats remain, many evaluations remove when they join results by example),
    ``shuffle=True`` where it is written out (somebody wanted that), samplers for training, a purpose that neither
    names nor hooks nor loops tell. For review where results may be joined by example, as in ``{each["id"]: each for
    each in gathered}``: loaders that only other files use, and files that gather.

    When to ignore: the number of examples divides by that of ranks, and their order does not matter.
    """

    code, name, group = "DL205", "evaluation-sampler-repeats", "wrong value"
    tokens = ((b"DistributedSampler",),)
    bad = (
        Example(
            """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def loaders(train_set, val_set, rank, world_size):
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, num_replicas=world_size, rank=rank)
    return DataLoader(train_set, sampler=train_sampler), DataLoader(val_set, sampler=val_sampler)

def evaluate(dataset, model):
    test_loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    return [model(batch) for batch in test_loader]
""",
            {6: "shuffle=False", 10: "shuffle=False"},
        ),
        Example(
            """\
from lightning.pytorch import LightningDataModule
from torch.utils import data

class Data(LightningDataModule):
    def _loader(self, train):
        dataset = self.dataset(train)
        sampler = data.distributed.DistributedSampler(dataset)
        return data.DataLoader(dataset, sampler=sampler)

    def train_dataloader(self):
        return self._loader(True)

    def val_dataloader(self):
        return self._loader(False)
""",
            {7: "shuffle=False"},
        ),
        Example(
            """\
from torch.utils.data import DataLoader, DistributedSampler

class Trainer:
    def __init__(self, train_set, test_set):
        self.train_loader = self._loader(train_set)
        self.test_loader = self._loader(test_set)

    def _loader(self, dataset):
        return DataLoader(dataset, sampler=DistributedSampler(dataset))
""",
            {9: "shuffle=False"},
        ),
        Example(
            """\
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def evaluate(model, test_set):
    loader = DataLoader(test_set, sampler=DistributedSampler(test_set))
    results = {name: model(x) for x, name in loader}
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, results)
    return {name: result for part in parts for name, result in part.items()}
""",
            {5: "unless they drop out"},
        ),
    )
    good = (
        """\
import pytest
from torch.utils.data import DistributedSampler

def test_loader_sets_the_epoch(dataset):
    return DistributedSampler(dataset)

def loader(dataset, distributed):
    return DistributedSampler(dataset, shuffle=False)

def loaders(train_set, val_set):
    return loader(train_set, True), loader(val_set, True)
""",
        """\
from torch.utils.data import DistributedSampler

def loaders(train_set, val_set, test_set, contest_set, args):
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    dev_sampler = DistributedSampler(val_set, shuffle=True)  # no bias of one rank
    test_sampler = DistributedSampler(test_set, shuffle=args.shuffle)
    other_sampler = DistributedSampler(contest_set)
    return train_sampler, val_sampler, test_sampler, other_sampler
""",
        """\
from lightning.pytorch import LightningDataModule
from torch.utils.data import DistributedSampler

class Data(LightningDataModule):
    def _sampler(self, dataset, split):
        if split == "train":
            return DistributedSampler(dataset)
        return DistributedSampler(dataset, shuffle=False)

    def train_dataloader(self):
        return self.loader(self._sampler(self.train, "train"))

    def val_dataloader(self):
        return self.loader(self._sampler(self.val, "val"))
""",
        """\
from torch.utils.data import DistributedSampler

def sampler(dataset, is_train, test_mode):
    if is_train or not test_mode:
        test_sampler = DistributedSampler(dataset)
    else:
        test_sampler = None
    return test_sampler
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every sampler that shuffles since nobody said otherwise."""
        for made in analysis.events("sampler"):
            if "**" in made.options or made.argument(3, "shuffle") is not None or not is_for_evaluation(analysis, made):
                continue
            may_join = any(operation_of(event) == "gathered" for event in analysis.events("collective"))
            is_sure = is_used_here(analysis, made) and not may_join
            yield Report(made.node, _MESSAGE, condition=None if is_sure else _JOINED)

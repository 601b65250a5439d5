"""DL205 and DL208: the way from a sampler to the loop that runs over its loader."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

HANDED = """\
from torch.utils.data import DataLoader, DistributedSampler

class Trainer:
    def __init__(self, data_loader, model):
        self.data_loader = data_loader
        self.model = model

    def run(self):
        while True:
            self.epoch()

    def epoch(self):
        for number, batch in enumerate(self.data_loader["train"], 1):
            self.model(batch)

def main(dataset, model, distributed):
    sampler = None
    if distributed:
        sampler = DistributedSampler(dataset{options})
    loader = DataLoader(dataset, sampler=sampler)
    {between}
    Trainer(data_loader={{"train": loader}}, model=model).run()
"""


@pytest.mark.parametrize(
    ("options", "between", "expected"),
    [
        ("", "pass", [9]),
        (", shuffle=True", "pass", [9]),
        (", shuffle=False", "pass", []),
        (", **options", "pass", []),
        ("", "schedule(sampler)", []),
        ("", "loader = Accelerator().prepare(loader)", []),
        ("", "sampler.set_epoch(0)", []),
    ],
)
def test_loaders_that_are_handed_on(options: str, between: str, expected: list[int]) -> None:
    assert lines(HANDED.format(options=options, between=between), "DL208") == expected


def test_batches_that_a_distributed_sampler_deals_out() -> None:
    source = """\
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

    def train(model, data, epochs):
        batches = BatchSampler(DistributedSampler(data), 4, drop_last=True)
        loader = DataLoader(data, batch_sampler=batches)
        for epoch in range(epochs):
            for batch in loader:
                model(batch)
    """
    assert lines(source, "DL208") == [6]


SPAWNED = """\
from torch.utils.data import DataLoader, DistributedSampler

class Job:
    @staticmethod
    def work(rank, self, {data}):
        loader = DataLoader({data}, sampler=DistributedSampler({data}))
        {loop}
            self.epoch(loader)

    def epoch(self, loader):
        for batch in loader:
            self.model(batch)
"""


@pytest.mark.parametrize(
    ("data", "loop", "expected"),
    [
        ("dataset", "for epoch in range(self.epochs):", [7]),
        ("dataset", "for epoch in range(1):", []),
        ("dataset", "for model in self.epochs:", []),
        ("val_set", "for epoch in range(self.epochs):", []),
    ],
)
def test_processes_that_are_spawned_with_the_object(data: str, loop: str, expected: list[int]) -> None:
    assert lines(SPAWNED.format(data=data, loop=loop), "DL208") == expected


LOADER = """\
import webdataset as wds
from lightning.pytorch import LightningDataModule
from torch.distributed import all_gather_object
from torch.utils.data import DataLoader, DistributedSampler

def make(val_set):
    return DataLoader(val_set, sampler=DistributedSampler(val_set))

def run(model, val_set, mine, parts):
    loader = make(val_set)
    {body}
"""
LOOP = "for x in loader: model(x)"


@pytest.mark.parametrize(
    ("body", "is_sure"),
    [
        (LOOP, True),
        ("found = [model(x) for x in loader]", False),  # not followed through a comprehension
        (f"all_gather_object(parts, mine)\n    {LOOP}", False),
        ("engine.evaluate(model, loader)", False),
        ("return loader", False),
    ],
)
def test_repeats_that_may_drop_out_where_results_are_joined(body: str, is_sure: bool) -> None:
    (found,) = check(LOADER.format(body=body), "DL205")
    assert (found.line, found.condition is None) == (7, is_sure)
    assert is_sure or found.message.endswith("where gathered results are joined by example")


HOOK = LOADER.partition("def")[0] + "class Data(LightningDataModule):\n    def {hook}(self):\n        {made}\n"


@pytest.mark.parametrize(
    ("hook", "made", "confidence"),
    [
        ("val_dataloader", "return DataLoader(self.x, sampler=DistributedSampler(self.x))", "sure"),
        ("test_dataloader", "s = DistributedSampler(self.x); return [DataLoader(self.x, sampler=s)]", "sure"),
        ("val_dataloader", "return wds.WebLoader(self.x, sampler=DistributedSampler(self.x))", "review"),
        ("make_val_loader", "return DataLoader(self.x, sampler=DistributedSampler(self.x))", "review"),
        ("train_dataloader", "return DataLoader(self.x, sampler=DistributedSampler(self.x))", ""),
        ("test_sampler", "return DistributedSampler(self.x)", ""),
        ("loader", "if self.is_train: return DistributedSampler(self.val)", ""),
    ],
)
def test_what_a_hook_returns(hook: str, made: str, confidence: str) -> None:
    found = check(HOOK.format(hook=hook, made=made), "DL205")
    assert [each.confidence for each in found] == [confidence] * bool(confidence)

"""DL208: the way from a sampler to the loop that runs over its loader."""

from __future__ import annotations

import pytest

from tests.lint.helpers import lines

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
        ("", "pass", [19]),
        (", shuffle=True", "pass", [19]),
        (", shuffle=False", "pass", []),
        (", **options", "pass", []),
        ("", "schedule(sampler)", []),
        ("", "loader = Accelerator().prepare(loader)", []),
        ("", "sampler.set_epoch(0)", []),
    ],
)
def test_loaders_that_are_handed_on(options: str, between: str, expected: list[int]) -> None:
    assert lines(HANDED.format(options=options, between=between), "DL208") == expected


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
        ("dataset", "for epoch in range(self.epochs):", [6]),
        ("dataset", "for epoch in range(1):", []),
        ("dataset", "for model in self.epochs:", []),
        ("val_set", "for epoch in range(self.epochs):", []),
    ],
)
def test_processes_that_are_spawned_with_the_object(data: str, loop: str, expected: list[int]) -> None:
    assert lines(SPAWNED.format(data=data, loop=loop), "DL208") == expected

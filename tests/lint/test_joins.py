"""DL205 where repeats drop out, since the evaluation joins results by example."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check

LOADER = """\
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torch.distributed import all_gather_object
import numpy as np

def make(val_set):
    return DataLoader(val_set, sampler=DistributedSampler(val_set))

"""
EVALUATE = LOADER + "def evaluate(model, val_set, mine, parts):\n    loader = make(val_set)\n    {body}\n"

JOINED = [
    "all_gather_object(parts, mine); return {k: v for part in parts for k, v in part.items()}",
    "all_gather_object(parts, mine); flat = [x for p in parts for x in p]; return {x['id']: x for x in flat}.values()",
    "parts = comm.gather(mine, dst=0); ids = np.concatenate(parts); return np.unique(ids, return_index=True)",
    """parts = comm.gather(mine, dst=0)
    found = {}
    for _ in range(len(parts)):
        part = parts.pop()
        found.update(part)""",
    """all_gather_object(parts, mine)
    found = dict()
    for part in parts:
        for each in part:
            found[each['id']] = each""",
    """all_gather_object(parts, mine)
    found = {}
    for ids, scores in parts:
        for name, score in zip(ids, scores):
            found[name] = score""",
    "all_gather_object(parts, mine); return frame(parts).drop_duplicates('id')",
    "evaluator = CocoEvaluator(val_set)",
]
COUNTED = [
    "all_gather_object(parts, mine); return {k: sum(p[k] for p in parts) / len(parts) for k in parts[0]}",
    "parts = accelerator.gather(mine); return {k: v.mean() for k, v in parts.items()}",
    "parts = accelerator.gather(mine); return {k: v for k, v in parts.items()}",
    "found = {}; loss = comm.all_gather(mine); found.update(loss)",
    "return np.unique(mine, return_index=True)",
    "x = torch.gather(mine, 1, parts); return np.unique(x, return_index=True)",
    "parts = comm.all_gather(mine); return np.unique(parts)",
    """all_gather_object(parts, mine)
    found = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found[name] + value""",
    """all_gather_object(parts, mine)
    meter = Meter()
    for part in parts:
        meter.update(part)""",
    """all_gather_object(parts, mine)
    found = {}
    for number, part in enumerate(parts):
        found[number] = part""",
]


@pytest.mark.parametrize("body", JOINED)
def test_results_that_are_joined_by_example(body: str) -> None:
    assert check(EVALUATE.format(body=body), "DL205") == []


@pytest.mark.parametrize("body", COUNTED)
def test_results_that_are_counted(body: str) -> None:
    assert [found.line for found in check(EVALUATE.format(body=body), "DL205")] == [7]


METHODS = """
class Base:
    def test_loader(self):
        return DataLoader(self.x, sampler=DistributedSampler(self.x))

class Tester({base}):
    def test(self, parts):
        all_gather_object(parts, self.mine)
        return {{k: v for part in parts for k, v in part.items()}}
"""


@pytest.mark.parametrize(("base", "number"), [("Base", 0), ("object", 1)])
def test_a_class_below_joins(base: str, number: int) -> None:
    assert len(check(LOADER.partition("def make")[0] + METHODS.format(base=base), "DL205")) == number

"""DL205 where repeats drop out, since the evaluation joins results by example."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
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


SAMPLER = """\
from torch.utils.data import DataLoader, DistributedSampler
import tools.engine as engine
from tools import {imported}

def main(model, val_set):
    loader = DataLoader(val_set, sampler=DistributedSampler(val_set))
    {call}(model, loader)
"""
ENGINE = """\
from .merging import Evaluator

def evaluate(model, loader):
    results = Evaluator()
    for batch in loader:
        results.update(model(batch))
    return results.collect()

def score(model, loader):
    return sum(model(batch) for batch in loader)
"""
MERGING = """\
import numpy as np

def merge(mine):
    ids = np.concatenate(all_gather(mine))
    return np.unique(ids, return_index=True)

class Evaluator:
    def collect(self):
        return merge(self.mine)
"""


@pytest.mark.parametrize(
    ("imported", "call", "is_silent"),
    [
        ("evaluate", "engine.evaluate", True),
        ("evaluate", "evaluate", True),
        ("evaluate as run", "run", True),
        ("Evaluator", "Evaluator", True),
        ("evaluate", "engine.score", False),
        ("score", "score", False),
    ],
)
def test_another_file_joins(
    tmp_path: Path, imported: str, call: str, is_silent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "pyproject.toml": "",
        "train.py": SAMPLER.format(imported=imported, call=call),
        "tools/__init__.py": "from .engine import *\nfrom .merging import Evaluator\n",
        "tools/engine.py": ENGINE,
        "tools/merging.py": MERGING,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for cache in (["--no-cache"], [f"--cache-dir={tmp_path / 'cache'}"], [f"--cache-dir={tmp_path / 'cache'}"]):
        assert main(["check", str(tmp_path), "--select", "DL205", *cache]) == (0 if is_silent else 1)

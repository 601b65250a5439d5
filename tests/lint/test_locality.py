"""What counts as a matter of one rank's data, and what must not."""

from __future__ import annotations

import textwrap

import pytest

from distlint.analysis.logs import may_log
from distlint.api.tokens import may_have_collective
from tests.lint.helpers import lines

STEP = """\
import math, time
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        started = time.time()
        loss = self.loss(self(x), y)
        mask = y > 0
        {before}
        if {test}:
            self.all_gather(x)
"""
LOCAL = (
    "loss > 3",
    "not loss.isfinite()",
    "torch.isnan(loss).any()",
    "math.isnan(loss.item())",
    "np.isnan(loss.cpu().numpy())",
    "mask.any()",
    "mask.sum() == 0",
    "self.training and mask.any()",
    "len(x[mask]) > 0",
    "x[mask].numel() > 0",
    "x[mask].shape[0] > 1",
    "len(mask.nonzero()) > 0",
    "len(torch.unique(y)) > 1",
    "time.time() - started > 5",
    "loss.item() < self.best",
    "time.time() > 5",
    "any(self.loss(x))",
    "all([loss])",
)
SAME = (
    "self.training",
    "batch_idx % 10 == 0",
    "batch_idx == 0 and self.current_epoch > 3",
    "x is None",
    "'extra' in batch",
    "x.shape[0] > 1",
    "x.dim() == 2",
    "len(x) > 1",
    "isinstance(x, tuple)",
    "self.best > 3",
    "self.all_gather(loss).mean() > 3",
    "reduce_mean(loss) > 3",
    "average_over_ranks(loss) > 3",
    "x.dtype == torch.float16",
    "x.requires_grad",
    "self.mode == 'train'",
    "self.trainer.sanity_checking",
    "torch.cuda.is_available()",
)


@pytest.mark.parametrize("test", LOCAL)
def test_a_test_of_the_batch_is_local(test: str) -> None:
    assert lines(STEP.format(test=test, before="pass"), "DL103") == [15]


THROUGH = """\
import torch.distributed as dist

def step(model, batch, info):
    return info

def train(model, train_loader, settings):
    info = copy(settings)
    for batch in train_loader:
        {before}
        if {test}:
            dist.barrier()
"""


@pytest.mark.parametrize(
    ("before", "test", "expected"),
    [
        ("info = forward(model, batch)", "info['loss'] > 1", True),
        ("info = forward(model, batch, settings)", "info['loss'] > 1", True),
        ("batch = move(batch, 'cuda')", "batch['loss'] > 1", True),
        ("batch = move(batch, 'cuda')\n        batch = move(batch, 'cuda')", "batch['loss'] > 1", True),
        ("info = step(model, batch, info)", "info['loss'] > 1", False),
        ("loss = model(batch)\n        loss = scale(loss)", "loss[0] > 1", True),
        ("info = forward(model, batch, info)", "info['every'] == 1", False),
        ("info = forward(model, batch, info)\n        info = backward(model, info)", "info['every'] == 1", False),
    ],
)
def test_a_dict_that_goes_through_an_unseen_call(before: str, test: str, expected: bool) -> None:
    assert bool(lines(THROUGH.format(before=before, test=test), "DL103")) is expected


@pytest.mark.parametrize("test", SAME)
def test_what_ranks_share_is_not(test: str) -> None:
    assert lines(STEP.format(test=test, before="pass"), "DL103") == []


@pytest.mark.parametrize(
    "before", ["loss = self.all_gather(loss)", "dist.all_reduce(loss)", "loss = sync(loss)", "loss = self.total"]
)
def test_a_value_that_was_brought_together_is_not(before: str) -> None:
    assert lines(STEP.format(test="loss > 3", before=before), "DL103") == []


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("flag", [15]),
        ("not flag", [15]),
        ("flag and self.training", [15]),
        ("flag is None", []),
        ("other", []),
    ],
)
def test_it_is_followed_through_variables(test: str, expected: list[int]) -> None:
    assert lines(STEP.format(test=test, before="flag = mask.any(); other = self.on"), "DL103") == expected


BATCHES = """\
import torch.distributed as dist

def train(model, train_loader, args, settings):
    batches = iter(train_loader)
    {head}
        loss = model(batch)
        if loss > 3:
            dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("for batch in train_loader:", [8]),
        ("for n, batch in enumerate(tqdm(train_loader)):", [8]),
        ("for batch, n in enumerate(train_loader):", []),
        ("for batch in metric_logger.log_every(args.data_loader, 10):", [8]),
        ("for one, batch in zip(train_loader, args.loader):", [8]),
        ("while batch := next(batches):", [8]),
        ("for batch in settings:", []),
        ("if batch := settings:", []),
        ("for n in range(3):\n        batch = next(batches)", [9]),
        ("for n in range(3):\n        batch = next(iter(args.val_dl))", [9]),
        ("for n in range(3):\n        batch = next(settings)", []),
    ],
)
def test_where_batches_come_from(head: str, expected: list[int]) -> None:
    assert lines(BATCHES.format(head=head), "DL103") == expected


def test_what_ends_the_job_is_no_way_to_compare() -> None:
    source = STEP.format(test="self.training", before="assert x.any()") + "\n        if loss > 3: raise ValueError\n"
    assert lines(source + "        self.all_gather(x)\n", "DL103") == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"self.log('a', 1)", True),
        (b"(self.  # why\n    log('a', 1))", True),
        (b"self . \\\n log_dict(x)", True),
        (b"self.logger.info(1)", False),
        (b"log(1)\nlogits.mean()", False),
    ],
)
def test_methods_called_log_are_told_by_bytes(source: bytes, expected: bool) -> None:
    assert may_log(source) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"# software distributed under the Apache License is distributed on an AS IS basis\nimport torch\n", False),
        (b"# distributed under the MIT license\nfrom torch import distributed\ndistributed.barrier()\n", True),
        (b"d = torch.distributed\nd.all_reduce(x)\n", True),
        (b"import torch.distributed as d\nd.broadcast(x, 0)\n", True),
        (b"import torch.distributed as d\nprint(d.get_rank())\n", False),
        (b"accelerator.gather(x)\n", True),
    ],
)
def test_licences_are_no_collectives(source: bytes, expected: bool) -> None:
    assert may_have_collective(source) is expected


LOOP = """\
import os
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        {before}
        for one in {over}:
            dist.all_reduce(one)
"""


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("y.unique()", [10]),
        ("set(y.tolist())", []),
        ("x[y > 0]", [10]),
        ("range(len(x[y > 0]))", [10]),
        ("enumerate(self.files[self.global_rank::8])", [10]),
        ("range(dist.get_rank(), 10, 2)", [10]),
        ("np.array_split(self.files, 8)[dist.get_rank()]", [10]),
        ("range(int(y.max()))", [10]),
        ("x", []),
        ("range(len(x))", []),
        ("range(batch['n'])", []),
        ("self.files[self.global_rank]", []),
        ("range(self.n)", []),
        ("range(int(self.all_gather(y).max()))", []),
    ],
)
def test_lengths_of_loops(over: str, expected: list[int]) -> None:
    assert lines(textwrap.dedent(LOOP).format(over=over, before="pass"), "DL104") == expected

"""Models that callers may have wrapped, and loops that end with this rank's own batches."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check, lines

EVALUATE = """\
from loaders import is_main_process

def plain(model):
    return {evidence}

def evaluate(model, loader):
    if not is_main_process():
        return
    {first}
    for batch in loader:
        model(batch)
"""


@pytest.mark.parametrize(
    ("evidence", "first", "expected"),
    [
        ('model.module if hasattr(model, "module") else model', "model.eval()", [11]),
        ("isinstance(model, DDP)", "model.eval()", [11]),
        ("model", "model.eval()", []),
        ("model.module.encode", "model = model.module", []),
        ("model.module.encode", "model = unwrap(model)", []),
    ],
)
def test_a_model_that_the_file_knows_to_be_wrapped_at_times(evidence: str, first: str, expected: list[int]) -> None:
    source = EVALUATE.format(evidence=evidence, first=first)
    assert lines(source, "DL111") == expected
    assert all(each.confidence == "review" for each in check(source, "DL111"))


TURNS = """\
from torch.nn.parallel import DistributedDataParallel

def train(model, loader, optimizer):
    model, batches = DistributedDataParallel(model), iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            {handler}
        {agreed}
        model(batch).backward()
"""


@pytest.mark.parametrize(
    ("handler", "agreed", "expected"),
    [
        ("break", "pass", [11]),
        ("optimizer.step(); break", "pass", [11]),
        ("return", "pass", [11]),
        ("raise", "pass", []),
        ("batches = iter(loader); batch = next(batches)", "pass", []),
    ],
)
def test_a_rank_whose_batches_end_leaves_the_others(handler: str, agreed: str, expected: list[int]) -> None:
    source = TURNS.format(handler=handler, agreed=agreed)
    assert lines(source, "DL103") == expected
    assert all(each.confidence == "review" for each in check(source, "DL103"))


def test_ranks_that_agree_to_end() -> None:
    source = TURNS.format(handler="batch = None", agreed="if common(batch is None): break")
    agreed = "import torch.distributed as dist\n\ndef common(flag):\n    dist.all_reduce(flag)\n    return flag\n\n"
    assert lines(agreed + source, "DL103") == []

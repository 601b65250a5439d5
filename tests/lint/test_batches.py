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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("images is not None", [4]), ("names is not None", []), ("self.many", [])],
)
def test_objects_that_are_gathered_where_there_are_any(asked: str, expected: list[int]) -> None:
    source = "from accelerate.utils import gather_object\n\ndef generate(self, images, names):\n"
    source += f"    return gather_object(images) if {asked} else None\n"
    assert lines(source, "DL103") == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [("", [9]), ("    else:\n            sums['hits'] = torch.zeros(1)\n    ", [])],
)
def test_a_dict_whose_keys_follow_from_the_batch(other: str, expected: list[int]) -> None:
    source = (
        "import torch\nimport torch.distributed as dist\n\ndef train(loader):\n    for batch in loader:\n"
        "        sums = {'loss': batch['loss'].sum()}\n"
        "        if batch['mask'].any():\n            sums['hits'] = batch['mask'].sum()\n"
        f"    {other}    for name in sorted(sums): dist.all_reduce(sums[name])\n"
    )
    assert lines(source, "DL104") == expected


@pytest.mark.parametrize(
    ("wrapper", "imported", "expected"),
    [
        ("FSDP(model)", "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", [6]),
        ("fully_shard(model)", "from torch.distributed.fsdp import fully_shard", []),
        ("DDP(model)", "from torch.nn.parallel import DistributedDataParallel as DDP", []),
    ],
)
def test_the_state_of_a_sharded_model(wrapper: str, imported: str, expected: list[int]) -> None:
    source = f"{imported}\n\ndef save(model, rank):\n    model = {wrapper}\n"
    source += "    if rank == 0:\n        return model.state_dict()\n"
    assert lines(source, "DL101") == expected


def test_means_that_are_joined_in_one_tensor() -> None:
    source = """\
    import torch
    import torch.distributed as dist

    def validate(model, loader, device):
        right, seen = 0, 0
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(x)
        both = torch.tensor([right / seen, right / seen], device=device)
        dist.all_reduce(both)
        print(both[0].item())
    """
    assert lines(source, "DL213") == [10]

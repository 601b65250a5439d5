"""Fabric: every sample once, from raw loaders and from its own."""

from __future__ import annotations

import os
from typing import Any

import pytest
from torch.utils.data import DataLoader

from distmetrics import all_gather_object
from distmetrics.errors import InputError
from distmetrics.testing import run
from tests.integrations.modules import elastic

pytest.importorskip("lightning.fabric")
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]


def every_loader(comm: Any) -> list[int]:
    from lightning.fabric import Fabric

    from distmetrics.integrations.fabric import setup_dataloaders

    os.environ |= elastic(comm)
    fabric = Fabric(strategy="ddp", devices=comm.world_size, accelerator="cpu")
    fabric.launch()
    with pytest.raises(InputError, match="needs a loader"):
        setup_dataloaders(fabric)
    for count in (0, 1, 2, 8, 9):
        for shuffle in (False, True) if count else (False,):
            plain = DataLoader(range(count), batch_size=2, shuffle=shuffle)
            theirs = fabric.setup_dataloaders(plain)
            loaders = [setup_dataloaders(fabric, plain), *setup_dataloaders(fabric, plain, theirs)]
            for loader in loaders:
                seen = [row for batch in loader for row in batch.tolist()]
                assert sorted(row for rank in all_gather_object(seen) for row in rank) == list(range(count))
    return [loader.own_sampler.rank for loader in loaders]


def test_every_sample_once() -> None:
    assert run(2, every_loader, backend="gloo") == [[0] * 3, [1] * 3]


def test_fabric_must_be_launched() -> None:
    from lightning.fabric import Fabric

    from distmetrics.integrations.fabric import setup_dataloaders

    with pytest.raises(InputError, match="launch"):
        setup_dataloaders(Fabric(accelerator="cpu", devices=2), DataLoader(range(3)))

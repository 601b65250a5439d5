"""FID of a reconstruction."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics.image.fid import FrechetInceptionDistance

from distmetrics import sync_and_compute
from distmetrics.data import exact

THREAD, DATE = "bytedance/1d-tokenizer#83", "2025-02-03"
SYMPTOM = "Each GPU computes FID of its own, and the first one's is reported."
RANKS, BACKEND = 2, "threads"
MADE = torch.Generator().manual_seed(0)
REAL = torch.rand(23, 3, 4, 4, generator=MADE)
FAKE = (REAL + 0.3 * torch.rand(23, 3, 4, 4, generator=MADE)).clamp(0, 1)


class Features(nn.Module):
    """Four features of an image, in place of the Inception network."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the means of the rows."""
        return images.float().mean((1, 3))


def _fid(loader: Any) -> FrechetInceptionDistance:
    fid = FrechetInceptionDistance(Features(), normalize=False, input_img_size=(3, 4, 4))
    for real, fake in loader:
        fid.update(real, real=True)
        fid.update(fake, real=False)
    return fid


def naive(comm: Any) -> float:
    """Compute what a rank has seen."""
    data = TensorDataset(REAL, FAKE)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    fid = _fid(DataLoader(data, batch_size=4, sampler=sampler))
    fid.sync_on_compute = False
    return float(fid.compute())


def ours(comm: Any) -> float:
    """Deal images out once, and sync the metric."""
    loader = exact(DataLoader(TensorDataset(REAL, FAKE), batch_size=4))
    return float(sync_and_compute(_fid(loader)))


def right() -> float:
    """Compute over all images."""
    return float(_fid([(REAL, FAKE)]).compute())

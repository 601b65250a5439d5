"""Image metrics of a network's features, with a small seeded network.

So no weights are downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.image.mifid import MemorizationInformedFrechetInceptionDistance
from torchmetrics.image.perceptual_path_length import PerceptualPathLength

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import normal, of, seeded, uniform

__all__ = ["Features", "cases"]

_FEATURES = 4


class Features(nn.Module):
    """Four numbers of an image: a fixed projection."""

    num_features = _FEATURES
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "weights", normal(torch.Generator().manual_seed(0), 3 * 8 * 8, _FEATURES)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 4)."""
        return images.float().flatten(1) @ self.weights / 8


class Distance(nn.Module):
    """A perceptual distance: that of the mean colours."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return (n,)."""
        return (first - second).mean((2, 3)).square().sum(1).sqrt()


class Painter(nn.Module):
    """A generator of images that are the latent's colours."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def sample(self, count: int) -> Tensor:
        """Return latents."""
        return torch.randn(count, 3)

    def forward(self, latents: Tensor) -> Tensor:
        """Return images."""
        return (self.scale * latents).sigmoid()[:, :, None, None].expand(-1, 3, 4, 4) * 255


def _images(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n, 3, 8, 8),))


def _real_and_fake(generator: Generator, n: int) -> list[Batch]:
    return [
        Batch((uniform(generator, n, 3, 8, 8) ** (2 - real),), {"real": bool(real)})
        for real in (1, 0)
    ]


def _painter(generator: Generator, n: int) -> Batch:
    return Batch((Painter(float(uniform(generator, 1))),))


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    network = Features()
    yield of(FrechetInceptionDistance, _real_and_fake, "image", feature=network)
    yield of(MemorizationInformedFrechetInceptionDistance, _real_and_fake, "image", feature=network)
    kernel = seeded(KernelInceptionDistance)
    yield of(kernel, _real_and_fake, "image", "seeded", feature=network, subsets=3, subset_size=3)
    yield of(seeded(InceptionScore), _images, "image", "seeded", feature=network, splits=2)
    yield of(
        seeded(PerceptualPathLength),
        _painter,
        "image",
        "seeded",
        num_samples=16,
        resize=None,
        sim_net=Distance(),
    )

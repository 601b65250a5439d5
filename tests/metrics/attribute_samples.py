"""Metrics whose ``update`` sets attributes that are no states, and a user's own ones of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torchmetrics as tm
from torch import Tensor, nn
from torchmetrics import wrappers
from torchmetrics.image import RootMeanSquaredErrorUsingSlidingWindow
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.image.mifid import MemorizationInformedFrechetInceptionDistance
from torchmetrics.segmentation import MeanIoU
from torchmetrics.text.bert import BERTScore

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dogs", "ran")


class Features(nn.Module):
    """Four numbers of an image."""

    num_features = 4
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        weights = torch.randn(3 * 4 * 4, 4, generator=torch.Generator().manual_seed(0))
        self.register_buffer("weights", weights)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weights / 8


class Own(tm.Metric):
    """The shape of an input, seen in a method that ``update`` calls; a state beside it."""

    width: int
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def _see(self, x: Tensor) -> None:
        self.width = x.shape[1]

    def update(self, x: Tensor) -> None:
        self._see(x)
        self.total += x.sum()

    def compute(self) -> Tensor:
        return self.total / self.width


class Large(Own):
    """A tensor as an attribute, in a subclass whose update calls the base's."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        if not hasattr(self, "scale"):
            self.scale = torch.arange(400.0) + x.shape[1]

    def compute(self) -> Tensor:
        return super().compute() * self.scale.sum()


class Named(Own):
    """An attribute that is of the rank's own in a class of torchmetrics, and not here."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.batch_size = len(x)

    def compute(self) -> Tensor:
        return super().compute() / self.batch_size


class Adds(Own):
    """Counts in an attribute: what one process has is the sum, but nobody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.samples += len(x)

    def compute(self) -> Tensor:
        return self.total / self.samples


class Derives(Own):
    """Makes an attribute of what it was, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.most = max(self.most, len(x))

    def compute(self) -> Tensor:
        return self.total / self.most


class KeepsModule(Own):
    def update(self, x: Tensor) -> None:
        super().update(x)
        self.net = nn.Identity()

    def compute(self) -> Tensor:
        return torch.as_tensor(self.net(self.total))


class KeepsFunction(Own):
    def update(self, x: Tensor) -> None:
        super().update(x)
        self.function = lambda y: y + 1  # distlint: ignore[DL005] it must not be sendable

    def compute(self) -> Tensor:
        return torch.as_tensor(self.function(self.total))


class Notes(Own):
    """Sets what computing never reads, and what each rank has of its own; nobody needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.note: Any = print

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.note = lambda: x  # distlint: ignore[DL005] it must not be sendable
        self.calls = getattr(self, "calls", 0) + 1


class Raises(Own):
    def compute(self) -> Tensor:
        raise ZeroDivisionError(self.width)


def _images(generator: torch.Generator) -> Tensor:
    return torch.rand(6, 3, 4, 4, generator=generator)


def real_and_fake(metric: Any, generator: torch.Generator) -> None:
    metric.update(_images(generator), real=True)
    metric.update(_images(generator) ** 2, real=False)


def windows(metric: Any, generator: torch.Generator) -> None:
    metric.update(*torch.rand(2, 3, 3, 16, 16, generator=generator))


def masks(metric: Any, generator: torch.Generator) -> None:
    metric.update(*torch.randint(0, 2, (2, 3, 3, 8, 8), generator=generator))


def numbers(metric: Any, generator: torch.Generator) -> None:
    metric.update(torch.randint(0, 64, (5, 4), generator=generator) / 64)


def sentences(metric: Any, generator: torch.Generator) -> None:
    def sentence() -> str:
        return " ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (5,), generator=generator).tolist())

    metric.update([sentence() for _ in range(3)], [[sentence(), sentence()] for _ in range(3)])


def _numbered(texts: list[str], max_length: int) -> dict[str, Tensor]:
    rows = torch.zeros(len(texts), max_length, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = torch.tensor([2 + WORDS.index(word) for word in text.split()])
        row[: len(ids)] = ids
    return {"input_ids": rows, "attention_mask": (rows > 0).long()}


def _embedded(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    embedded: Tensor = model(batch["input_ids"])
    return embedded


def bert() -> BERTScore:
    weights = torch.randn(len(WORDS) + 2, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Embedding(len(weights), 8, _weight=weights).eval()  # as computing makes it
    return BERTScore(model=model, user_tokenizer=_numbered, user_forward_fn=_embedded, max_length=8)


def shared() -> Any:
    kinds: tuple[Any, ...] = (FrechetInceptionDistance, MemorizationInformedFrechetInceptionDistance)
    return wrappers.FeatureShare([kind(feature=network) for network in [Features()] for kind in kinds])


def kid() -> Any:
    """Its subsets are all there is, so that no order matters."""
    return KernelInceptionDistance(feature=Features(), subsets=1, subset_size=6)


class Sample(NamedTuple):
    make: Callable[[], Any]
    feed: Callable[[Any, torch.Generator], None]
    rounds: int = 2  # where some ranks have no data


SAMPLES: dict[str, Sample] = {
    "FID": Sample(lambda: FrechetInceptionDistance(feature=Features()), real_and_fake),
    "MIFID": Sample(lambda: MemorizationInformedFrechetInceptionDistance(feature=Features()), real_and_fake),
    "FeatureShare": Sample(shared, real_and_fake),
    "RMSE-SW": Sample(RootMeanSquaredErrorUsingSlidingWindow, windows, 1),
    "BERTScore": Sample(bert, sentences),
    "MeanIoU": Sample(MeanIoU, masks),
    "MeanIoU of each class": Sample(lambda: MeanIoU(per_class=True), masks),
    "own": Sample(Own, numbers),
    "own, large": Sample(Large, numbers),
    "own, by name": Sample(Named, numbers),
    "own, not needed": Sample(Notes, numbers),
    "collection": Sample(
        lambda: tm.MetricCollection({"a": Own(), "b": Large()}, compute_groups=False),
        numbers,
    ),
}

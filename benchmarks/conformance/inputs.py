"""The kinds of input that metrics take, and small seeded networks in place of downloaded ones."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from benchmarks.conformance.case import Batch, Source

CLASSES, LABELS, FEATURES, RATE, SIDE = 4, 3, 4, 8000, 32
_TEXT = "the cat sat on a mat and dogs ran far from here while nobody saw"
WORDS = _TEXT.split()
_drawing = threading.Lock()  # ranks that are threads share torch's generator


def normal(generator: Generator, *shape: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=generator)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Return numbers in (0, 1), in steps of 1/64.

    Every float type holds them exactly, and some of them are equal.
    """
    return (torch.randint(1, 64, shape, generator=generator)) / 64


def integers(generator: Generator, high: int, *shape: int) -> Tensor:
    """Integers from 0 to ``high`` − 1."""
    return torch.randint(high, shape, generator=generator)


def source(*makes: Callable[[Generator, int], Any]) -> Source:
    """Return a source of batches with an argument of each kind."""
    return lambda generator, n: Batch(tuple(make(generator, n) for make in makes))


def normals(*shape: int) -> Callable[[Generator, int], Tensor]:
    """Return what makes n samples of normally distributed numbers."""
    return lambda generator, n: normal(generator, n, *shape)


def uniforms(*shape: int) -> Callable[[Generator, int], Tensor]:
    """Return what makes n samples of uniform numbers."""
    return lambda generator, n: uniform(generator, n, *shape)


def labels(count: int, *shape: int) -> Callable[[Generator, int], Tensor]:
    """Return what makes n samples of integers below ``count``."""
    return lambda generator, n: integers(generator, count, n, *shape)


def _shares(generator: Generator, n: int) -> Tensor:
    return torch.randn(n, CLASSES, generator=generator).softmax(1)


def _random(generator: Generator, n: int) -> Tensor:
    return torch.rand(n, generator=generator)  # all different: the order of equal ones is arbitrary


def _above(generator: Generator, n: int) -> Tensor:
    return uniform(generator, n) + 0.1


values = source(normals())
scalars, vectors = source(normals(), normals()), source(normals(LABELS), normals(LABELS))
positive, distributions = source(_above, _above), source(_shares, _shares)
ensemble = source(normals(5), normals())
chances, sequences = source(uniforms(), uniforms()), source(uniforms(4), uniforms(4))
binary, multiclass = source(uniforms(), labels(2)), source(_shares, labels(CLASSES))
multilabel = source(uniforms(LABELS), labels(2, LABELS))
grouped = source(uniforms(), labels(2), labels(2))
classes = source(labels(CLASSES), labels(CLASSES))
clusters, points = source(labels(3), labels(3)), source(normals(2), labels(2))
rated = source(uniforms(3, 5))
masks, shapes = source(labels(3, 8, 8), labels(3, 8, 8)), source(normals(6, 3), normals(6, 3))
tokens = source(normals(6, 5), labels(5, 6))
small, gray, wide = (
    source(uniforms(*shape), uniforms(*shape)) for shape in ((3, 16, 16), (1, 16, 16), (1, 48, 48))
)
images = source(uniforms(3, 8, 8))
video = source(uniforms(3, 3, 32, 32), uniforms(3, 3, 32, 32))
spectra = source(normals(9, 5, 2), normals(9, 5, 2))


def number(generator: Generator, n: int) -> Batch:
    """One number, whatever n."""
    return Batch((float(normal(generator, 1)),))


def weighted(generator: Generator, n: int) -> Batch:
    """Numbers and their weights."""
    return Batch((normal(generator, n),), {"weight": uniform(generator, n)})


def positions(of: Source) -> Source:
    """Give every sample five positions, so that a sample has a value of its own."""

    def several(generator: Generator, n: int) -> Batch:
        each: Any = [of(generator, n) for _ in range(5)]
        parts = zip(*(batch.args for batch in each), strict=True)
        return Batch(tuple(torch.stack(part, -1) for part in parts))

    return several


def tasks(generator: Generator, n: int) -> Batch:
    """Scores and sizes, for two tasks."""
    first, second = uniform(generator, n), integers(generator, 2, n)
    sizes = normal(generator, n), normal(generator, n)
    return Batch(({"label": first, "size": sizes[0]}, {"label": second, "size": sizes[1]}))


def documents(generator: Generator, n: int) -> Batch:
    """Scored documents of five queries, spread over batches, and so over ranks."""
    batch = Batch((_random(generator, n), integers(generator, 2, n)))
    return Batch(batch.args, {"indexes": integers(generator, 5, n)})


def ratings(generator: Generator, n: int) -> Batch:
    """Five raters choose of two."""
    first = integers(generator, 6, n, 1)
    return Batch((first.new_tensor([[0, 5]]) + first.new_tensor([[1, -1]]) * first,))


# -- sound


def noisy(*shape: int, flipped: bool = False) -> Source:
    """Return a source of signals, and of the same with noise."""

    def made(generator: Generator, n: int) -> Batch:
        clean = normal(generator, n, *shape)
        heard = clean.flip(1) if flipped else clean
        return Batch((heard + normal(generator, n, *shape) / 2, clean))

    return made


def speech(generator: Generator, n: int) -> Batch:
    """Half a second of tones that swell and fade four times a second, as syllables do."""
    time = torch.arange(RATE // 2) / RATE
    pitch = 150 + 100 * uniform(generator, n, 1)
    parts = [torch.sin(2 * torch.pi * part * pitch * time) / part for part in range(1, 8)]
    tones: Tensor = sum(parts)  # type: ignore[assignment]
    clean = tones * torch.sin(2 * torch.pi * 4 * time).abs()
    return Batch((clean + normal(generator, *clean.shape) / 4, clean))


# -- boxes


def _boxes(generator: Generator, count: int) -> Tensor:
    corner = integers(generator, SIDE // 2, count, 2)
    size = 1 + integers(generator, SIDE // 2 - 1, count, 2)
    return torch.cat([corner, corner + size], 1).float()


def _masks(boxes: Tensor) -> Tensor:
    masks = torch.zeros(len(boxes), SIDE, SIDE, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.long().tolist(), strict=True):
        mask[top:bottom, left:right] = True
    return masks


def detections(generator: Generator, n: int) -> Batch:
    """Make n images with up to three objects, found nearly where they are; some have none."""
    preds, target = [], []
    for _ in range(n):
        count = int(integers(generator, 4, 1))
        truth = _boxes(generator, count)
        found = (truth + integers(generator, 3, count, 4) - 1).clamp(0, SIDE)
        kinds, scores = integers(generator, 2, count), _random(generator, count)
        preds.append({"boxes": found, "scores": scores, "labels": kinds, "masks": _masks(found)})
        target.append({"boxes": truth, "labels": kinds, "masks": _masks(truth)})
    return Batch((preds, target))


def _panoptic(generator: Generator, n: int) -> Tensor:
    return torch.stack([integers(generator, 3, n, 8, 8), integers(generator, 2, n, 8, 8)], -1)


panoptic = source(_panoptic, _panoptic)


# -- text


def sentences(generator: Generator, n: int) -> tuple[list[str], list[str]]:
    """Return n sentences with mistakes, and n without."""
    wrong, right = [], []
    for _ in range(n):
        length = 4 + int(integers(generator, 6, 1))
        words = [WORDS[index] for index in integers(generator, len(WORDS), length).tolist()]
        slips = (uniform(generator, length) < 0.25).tolist()
        slipped = ["oops" if slip else word for word, slip in zip(words, slips, strict=True)]
        right.append(" ".join(words))
        wrong.append(" ".join(slipped))
    return wrong, right


def one_reference(generator: Generator, n: int) -> Batch:
    """Sentences and what they should be."""
    return Batch(sentences(generator, n))


def references(generator: Generator, n: int) -> Batch:
    """Sentences, and two that each might be."""
    wrong, right = sentences(generator, n)
    others, _ = sentences(generator, n)
    return Batch((wrong, [list(pair) for pair in zip(right, others, strict=True)]))


def questions(generator: Generator, n: int) -> Batch:
    """Answers, as SQuAD has them."""
    said, right = sentences(generator, n)
    names = [str(number) for number in integers(generator, 10**6, n).tolist()]
    preds = [{"prediction_text": text, "id": name} for text, name in zip(said, names, strict=True)]
    answers = [{"answer_start": [0], "text": [text]} for text in right]
    pairs = zip(answers, names, strict=True)
    return Batch((preds, [{"answers": answer, "id": name} for answer, name in pairs]))


def captioned(generator: Generator, n: int) -> Batch:
    """Images and sentences."""
    return Batch((uniform(generator, n, 3, 8, 8), sentences(generator, n)[1]))


def tokenized(words: list[str], length: int) -> dict[str, Tensor]:
    """Tokenize: every word is its number, 0 is padding."""
    ids = torch.zeros(len(words), length, dtype=torch.long)
    for row, sentence in enumerate(words):
        known = [WORDS.index(word) if word in WORDS else len(WORDS) for word in sentence.split()]
        found = [1 + place for place in known][:length]
        ids[row, : len(found)] = torch.tensor(found)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def embedded(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return what a model makes of tokens."""
    made: Tensor = model(batch["input_ids"])
    return made


# -- images


def pansharpened(generator: Generator, n: int) -> Batch:
    """Images, and those of which they are made."""
    sizes = {"ms": 16, "pan": 32, "pan_lr": 16}
    target = {name: uniform(generator, n, 3, size, size) for name, size in sizes.items()}
    return Batch((uniform(generator, n, 3, 32, 32), target))


def real_and_fake(generator: Generator, n: int) -> list[Batch]:
    """Images of both kinds, in two updates."""
    made = [(uniform(generator, n, 3, 8, 8) ** (2 - real), bool(real)) for real in (1, 0)]
    return [Batch((pixels,), {"real": real}) for pixels, real in made]


def painters(generator: Generator, n: int) -> Batch:
    """A generator of images."""
    return Batch((Painter(float(uniform(generator, 1))),))


# -- small seeded networks: no weights are downloaded


class Features(nn.Module):
    """Four numbers of an image: a fixed projection."""

    num_features = FEATURES
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        weights = normal(torch.Generator().manual_seed(0), 3 * 8 * 8, FEATURES)
        self.register_buffer("weights", weights)

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


class Matcher(nn.Module):
    """Stands in for a CLIP model: features are fixed projections of pixels and of letters."""

    config = SimpleNamespace()
    seen: Tensor
    read: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("seen", normal(generator, 3 * 8 * 8, 4))
        self.register_buffer("read", normal(generator, 128, 4))

    def get_image_features(self, pixels: Tensor) -> Tensor:
        """Return (n, 4)."""
        return pixels.flatten(1) @ self.seen

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return (n, 4)."""
        return (self.read[ids] * mask[..., None]).sum(1)


def prepared(text: Any = None, images: Any = None, **_: Any) -> dict[str, Tensor]:
    """Stand in for a CLIP processor."""
    if images is not None:
        return {"pixel_values": torch.stack(images)}
    lines = [torch.tensor(list(line.encode())) for line in text or []]
    ids = nn.utils.rnn.pad_sequence(lines, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


@contextlib.contextmanager
def _seed(number: int) -> Iterator[None]:
    with _drawing, torch.random.fork_rng():
        torch.manual_seed(number)
        yield


def seeded(cls: Any, *, draws_in_compute: bool = True) -> Any:
    """Return a class like ``cls`` that draws from the same seed in each update and compute.

    A class whose compute syncs other metrics must not draw in it: one rank at a time draws. What a
    batch draws depends on the batch alone, not on who saw it, or when: the value is determined.
    """

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        numbers = [float(arg.double().sum()) for arg in args if isinstance(arg, Tensor)]
        with _seed(zlib.crc32(repr(numbers).encode())):  # a hash of NaN differs each time
            cls.update(self, *args, **kwargs)

    def compute(self: Any) -> Any:
        with _seed(0):
            return cls.compute(self)

    methods = {"update": update, "compute": compute} if draws_in_compute else {"update": update}
    return type(cls.__name__, (cls,), {**methods, "__doc__": cls.__doc__})

"""What ranks tell each other of their metrics, and whether they have the same ones. Pure."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.manifest import Manifest, agree_on_tree
from distmetrics.collectives.pack import to_bytes
from distmetrics.comm.base import brief

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
TOO_LARGE = "too large to be sent"
_SAMPLE = 1000  # elements of a larger tensor that are compared


class MetricRecord(NamedTuple):
    """What the other ranks must know of one rank's metric.

    Attributes:
        label: its path and class.
        states: name, kind, and shape before the first update, of each state.
        arguments: what it was made with: names and texts.
        attributes: a digest of its other attributes that are no states.
        is_updated: whether it was updated.
    """

    label: str
    states: Sequence[tuple[str, str, Sequence[int]]]
    arguments: Sequence[tuple[str, str]]
    attributes: str
    is_updated: bool

    def __str__(self) -> str:
        states = [f"{name} {kind}{list(shape) or ''}" for name, kind, shape in self.states]
        arguments = [f"{name}={text}" if name else text for name, text in sorted(self.arguments)]
        return f"{self.label}({', '.join([*states, *arguments])})"

    def may_become(self, other: MetricRecord) -> bool:
        """Return True if an update may have made ``other`` of this, which has seen none.

        An argument that was left out, and the shapes of states, may come from the first batch.
        """
        same_kinds = [state[:2] for state in self.states] == [state[:2] for state in other.states]
        return (
            self.label == other.label
            and same_kinds
            and dict(self.arguments).items() <= dict(other.arguments).items()
            and (self.differs(other) or str(self) == str(other))
        )

    def differs(self, other: MetricRecord) -> bool:
        """Return True if the two metrics have other attributes, arguments among them."""
        mine, theirs = (self.attributes, self.arguments), (other.attributes, other.arguments)
        return mine != theirs


def agree_on_metrics(
    manifests: Sequence[Manifest], rank: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Check that all ranks have the same metrics; return who has updated them, and who borrows.

    A metric that was never updated need not be as one that was: an update may have set attributes,
    and taken shapes from the data.
    """
    records = [[MetricRecord(*fields) for fields in m.details or ()] for m in manifests]
    updated = []
    borrowing = []
    for place, column in enumerate([*zip(*records, strict=False)]):
        ranks = tuple(r for r, record in enumerate(column) if record.is_updated)
        updated.append(ranks)
        if not 0 < len(ranks) < len(column):
            continue
        if any(map(column[0].differs, column)):
            borrowing.append(place)
        for r, record in enumerate(column):
            if not record.is_updated and record.may_become(column[ranks[0]]):
                records[r][place] = column[ranks[0]]
    trees = ["; ".join(map(str, each)) for each in records]
    compared = [replace(each, tree=tree) for each, tree in zip(manifests, trees, strict=True)]
    agree_on_tree(compared, rank)
    return tuple(updated), tuple(borrowing)


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    if not attributes:
        return ""
    texts = [(name, text_of(attributes[name])[0]) for name in sorted(attributes)]
    return _digest(tuple(texts))


@functools.lru_cache(maxsize=1024)
def _digest(texts: tuple[tuple[str, str], ...]) -> str:
    return _short_hash(repr(texts).encode())


def text_of(value: Any) -> tuple[str, bool]:
    """Return a text that is equal where values are, and whether the value can be sent.

    What is too large to be sent is told by its size and a sample of it.
    """
    kind = type(value)
    if kind in _PLAIN:
        return repr(value), True
    if kind in (list, tuple, dict, set, frozenset):
        return _text_of_items(value)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        step = _step(value.numel(), value.nbytes)
        data = to_bytes(flat[::step].contiguous().view(torch.uint8))
        return _text_of_elements(brief(value.dtype, value.shape), data, step)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        step = _step(value.size, value.nbytes)
        return _text_of_elements(
            f"{value.dtype}{list(value.shape)}", value.reshape(-1)[::step].tobytes(), step
        )
    name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
    return f"a {name}", False


def _text_of_items(value: Any) -> tuple[str, bool]:
    kind = type(value)
    if len(value) > _LONGEST:
        return f"a {kind.__name__} of {len(value)}, {TOO_LARGE}", False
    texts = [text_of(item) for item in (value.items() if kind is dict else value)]
    if not all(travels for _, travels in texts):
        return f"a {kind.__name__}", False
    items = [text for text, _ in texts]
    ordered = items if kind in (list, tuple) else sorted(items)
    return f"{kind.__name__}({', '.join(ordered)})", True


def _step(count: int, nbytes: int) -> int:
    """Return the distance of the elements that are compared; 1 for what travels."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def _text_of_elements(text: str, data: bytes, step: int) -> tuple[str, bool]:
    text = f"{text} {_short_hash(data)}"
    return (text, True) if step == 1 else (f"{text}, {TOO_LARGE}", False)


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()

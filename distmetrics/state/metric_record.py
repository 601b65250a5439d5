"""What ranks tell each other of their metrics, and whether they have the same ones. Pure."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.dtensors import Shared
from distmetrics.collectives.manifest import Manifest, agree_on_dtensors, agree_on_tree
from distmetrics.collectives.pack import to_bytes
from distmetrics.collectives.reading import not_ours, reading
from distmetrics.collectives.serialize import DEEPEST
from distmetrics.comm.base import brief
from distmetrics.state.compute_groups import UNDECIDED, Merged, merged

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
_SAMPLE = 1000  # elements of a larger tensor that are compared


class Text(NamedTuple):
    """What ranks compare of a value.

    Attributes:
        text: equal where values are.
        travels: True for plain values, small tensors, and lists, tuples, sets and dicts of such.
        is_partial: True where it tells of a part of the value alone: the whole is too large.
    """

    text: str
    travels: bool = True
    is_partial: bool = False


class MetricRecord(NamedTuple):
    """What the other ranks must know of one rank's metric.

    Attributes:
        label: its path and class.
        states: name, kind, and shape before the first update, of each state.
        arguments: what it was made with: names and texts.
        attributes: a digest of its other attributes that are no states.
        is_updated: whether it was updated.
        shared: its states that are DTensors.
        first: the place of the metric whose state it shows, or UNDECIDED.
    """

    label: str
    states: Sequence[tuple[str, str, Sequence[int]]]
    arguments: Sequence[tuple[str, str]]
    attributes: str
    is_updated: bool
    shared: Sequence[Shared] = ()
    first: int = UNDECIDED

    @classmethod
    def read(
        cls,
        label: Any,
        states: Any,
        arguments: Any,
        attributes: Any,
        is_updated: Any,
        shared: Any,
        first: Any,
    ) -> MetricRecord:
        """Return what a peer has told of a metric; raise anything for what is none."""
        own = [(str(name), str(kind), list(map(int, shape))) for name, kind, shape in states]
        texts = [(str(name), str(text)) for name, text in arguments]
        dtensors = [Shared.read(*fields) for fields in shared]
        known = str(attributes), bool(is_updated), dtensors, int(first)
        return cls(str(label), own, texts, *known)

    @property
    def path(self) -> str:
        """Where the metric is, "" for one that was passed itself."""
        return self.label.rpartition(": ")[0]

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
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[Merged, ...]]:
    """Check that all ranks have the same metrics.

    Return who has updated each, which of them borrow, and which are merged on some ranks while
    others have formed no groups.

    A metric that was never updated need not be as one that was: an update may have set attributes,
    and taken shapes from the data.
    """
    if len({each.op for each in manifests}) > 1:  # another call tells nothing of metrics
        agree_on_tree(manifests, rank)
    records = []
    for r, manifest in enumerate(manifests):
        with reading("its metrics", r):
            records.append([MetricRecord.read(*fields) for fields in manifest.details or ()])
    dtensors = [_dtensors_of(metrics) for metrics in records]
    firsts = [[record.first for record in metrics] for metrics in records]
    with_data = [[record.is_updated for record in metrics] for metrics in records]
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
    agree_on_tree(compared, rank, [[record.path for record in each] for each in records])
    agree_on_dtensors(dtensors, manifests, rank)
    if len({len(each) for each in records}) > 1:  # a label may hold what separates two
        raise not_ours("metrics that are not separate")
    paths = [record.path for record in records[0]]
    with reading("its compute groups"):
        pairs = merged(firsts, with_data, paths, manifests, rank)
    return tuple(updated), tuple(borrowing), pairs


def _dtensors_of(metrics: Sequence[MetricRecord]) -> list[Shared]:
    every = [(record.label, shared) for record in metrics for shared in record.shared]
    return [shared._replace(name=f"{shared.name} of {label}") for label, shared in every]


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    if _PLAIN.issuperset(map(type, attributes.values())):
        return _digest(repr(attributes))
    return _digest(repr([(name, text_of(value).text) for name, value in attributes.items()]))


@functools.lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    return _short_hash(text.encode())


def text_of(value: Any) -> Text:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    try:
        return _text_of(value)
    except RecursionError:
        return Text(
            f"a {type(value).__name__} nested too deeply, or holding itself",
            travels=False,
            is_partial=True,
        )


def _text_of(value: Any, depth: int = 0) -> Text:
    kind = type(value)
    if kind in _PLAIN:
        return Text(repr(value))
    if kind in (list, tuple, dict, set, frozenset):
        return _text_of_items(value, depth)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        step = _step(value.numel(), value.nbytes)
        data = to_bytes(flat[::step].clone(memory_format=torch.contiguous_format).view(torch.uint8))
        return _text_of_elements(brief(value.dtype, value.shape), data, step)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        step = _step(value.size, value.nbytes)
        return _text_of_elements(
            f"{value.dtype}{list(value.shape)}", value.reshape(-1)[::step].tobytes(), step
        )
    name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
    return Text(f"a {name}", travels=False)


def _text_of_items(value: Any, depth: int) -> Text:
    kind = type(value)
    if depth > DEEPEST:
        raise RecursionError
    if len(value) > _LONGEST:
        return _too_large(f"a {kind.__name__} of {len(value)}")
    items = value.items() if kind is dict else value
    parts = [_text_of(item, depth + 1) for item in items]
    if not all(part.travels for part in parts):
        is_partial = any(part.is_partial for part in parts)
        return Text(f"a {kind.__name__}", travels=False, is_partial=is_partial)
    texts = [part.text for part in parts]
    ordered = texts if kind in (list, tuple) else sorted(texts)
    return Text(f"{kind.__name__}({', '.join(ordered)})")


def _too_large(text: str) -> Text:
    return Text(f"{text}, too large to be sent", travels=False, is_partial=True)


def _step(count: int, nbytes: int) -> int:
    """Return the distance of the elements that are compared; 1 for what travels."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def _text_of_elements(text: str, data: bytes, step: int) -> Text:
    text = f"{text} {_short_hash(data)}"
    return Text(text) if step == 1 else _too_large(text)


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()

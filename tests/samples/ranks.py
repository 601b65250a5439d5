"""Samples of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

TEXTS = ("", "a", "ümlaut", "\ud800", "new\nline", "日本", "zero\0", "long " * 40)


def sample(index: int) -> dict[str, Any]:
    """One sample by itself."""
    return {
        "rows": torch.tensor([index, 2.5]),
        "scalar": torch.tensor(index, dtype=torch.int16),
        "half": torch.full((2, 1), index / 3, dtype=torch.bfloat16),
        "text": f"text {index} é",
        "odd text": TEXTS[index % len(TEXTS)],
        "ragged": torch.arange(float(index % 4)).reshape(-1, 1),
        "number": index * 0.1,
        "integer": index - 300,
        "large": 3 ** (5 * index),
        "flag": index % 3 == 0,
        "maybe": None if index % 2 else index,
        "mixed": [index, "x", (1.5, None)],
        "record": {"label": f"l{index}", "score": index / 7, "boxes": torch.ones(index % 3, 4)},
        "odd record": {"a": 1} if index % 2 else {"b": {2, 3}},
        "empty": {},
        "pair": (index, str(index)),
    }


KINDS = tuple(sample(0))
STACKED = ("rows", "scalar", "half")
PLAIN = tuple(kind for kind in KINDS if kind != "odd record")  # which JSON can hold


def batch(indices: Sequence[int], kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """The tree of some samples."""
    tree: dict[str, Any] = {}
    for kind in kinds:
        values = [sample(index)[kind] for index in indices]
        if kind in STACKED:
            empty = sample(0)[kind]
            tree[kind] = torch.stack(values) if values else empty.new_empty((0, *empty.shape))
        elif kind == "pair":
            tree[kind] = ([value[0] for value in values], [value[1] for value in values])
        else:
            tree[kind] = values
    return tree


def lines_of(ids: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """What a file of these samples has, read as JSON."""
    wanted = []
    for index, name in enumerate(ids):
        line = {"id": name, "sample": {kind: sample(index)[kind] for kind in kinds}}
        wanted.append(json.loads(json.dumps(line, default=lambda x: x.tolist())))
    return wanted


def same(one: Any, other: Any) -> bool:
    """Equal, tensors within too, and of the same types."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__getitem__") and not isinstance(one, str):
        is_alike = isinstance(one, tuple) == isinstance(other, tuple) and len(one) == len(other)
        return is_alike and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)

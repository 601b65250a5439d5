"""Lists of tensors survive the way as one tensor, whatever their items' shapes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.metrics.metric_set import cut, join

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)
alike = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=2)).map(
    lambda made: [(rows, *made[1]) for rows in made[0]]
)


@settings(max_examples=50)
@given(shapes | alike | st.integers(1, 9).map(lambda count: [()] * count))
def test_items_come_back(shapes: list[tuple[int, ...]]) -> None:
    """Numbers, rows of one width, anything; items without elements too; order and values kept."""
    items = [torch.arange(torch.Size(shape).numel()).reshape(shape) + 10 * i for i, shape in enumerate(shapes)]
    back = cut(*join(items))
    assert [item.shape for item in back] == [item.shape for item in items]
    assert all(torch.equal(new, old) for new, old in zip(back, items, strict=True))

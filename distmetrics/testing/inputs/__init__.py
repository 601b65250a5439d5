"""Ready hypothesis strategies of what metrics are updated with.

Each draws a list of batches, and a batch is the tuple of arguments of one ``update``. Numbers lie
on a grid of steps of 1/64 or wider, so every float dtype holds them, sums of them are exact, and
some of them are equal. What fails shrinks to few samples of zeros.

>>> from hypothesis import find
>>> find(binary(), lambda batches: len(batches) == 2)
[(tensor([0.]), tensor([0])), (tensor([0.]), tensor([0]))]
"""

from distmetrics.errors import MissingDependencyError

try:
    import hypothesis  # noqa: F401
except ImportError:
    raise MissingDependencyError.of("hypothesis", "distmetrics.testing.inputs") from None

from distmetrics.testing.inputs.numbers import (
    aggregation,
    binary,
    clustering,
    multiclass,
    multilabel,
    regression,
    retrieval,
)
from distmetrics.testing.inputs.structures import detection, image, segmentation, text

__all__ = [
    "aggregation",
    "binary",
    "clustering",
    "detection",
    "image",
    "multiclass",
    "multilabel",
    "regression",
    "retrieval",
    "segmentation",
    "text",
]

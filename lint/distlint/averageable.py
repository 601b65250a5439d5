"""For which metrics the mean over ranks is the metric of all data, and for which it is not, with the reason.

A metric is averageable when it is a mean over examples: with equal counts on every rank, the mean of the
parts is the whole. What is not listed is unknown, and rules are silent about it. Users list their own
(``averageable`` and ``non-averageable`` of ``[tool.distlint]``, see ``facts.declared``), and those come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distlint import averageable_table as table

EXP_REASON, ROOT_REASON, CLASSES_REASON = table.EXP, table.ROOT, table.CLASSES
LIBRARIES = (
    "sklearn.metrics",
    "torchmetrics",
    "pytorch_lightning.metrics",
    "torcheval.metrics",
    "scipy.stats",
    "segmentation_models_pytorch.metrics",
)
_LOSSES = ("torch.nn.functional.", "torch.nn.")
# Functions that return several metrics under these names.
DICT_FUNCTIONS = frozenset({"transformers.data.metrics.acc_and_f1", "sklearn.metrics.classification_report"})
_DROPPED = ("windowed", "binned", "binary", "multiclass", "multilabel")
_ENDINGS = ("score", "loss", "curve")


@dataclass(frozen=True)
class Entry:
    """What is known of a metric.

    Attributes:
        kind: whether its mean over ranks is right, wrong, or no question (curves, wrappers, tools).
        reason: why.
        metric: the class of torchmetrics that syncs its own state, or "".
    """

    kind: Literal["averageable", "not averageable", "other"]
    reason: str
    metric: str = ""


def stem(name: str) -> str:
    """``binary_f1_score`` and ``BinaryF1Score`` both become ``f1``."""
    text = name.replace("_", "").replace("-", "").lower()
    for word in _DROPPED * 2:  # BinaryBinnedAUROC
        text = text.removeprefix(word)
    for word in _ENDINGS * 2:  # brier_score_loss
        text = text.removesuffix(word)
    return text


def _entries() -> dict[str, Entry]:
    found = {stem(name): Entry("other", reason) for name, reason in table.OTHER.items()}
    found |= {stem(name): Entry("averageable", reason) for name, reason in table.AVERAGEABLE.items()}
    return found | {stem(name): Entry("not averageable", *value) for name, value in table.NOT_AVERAGEABLE.items()}


ENTRIES = _entries()


def find(full: str) -> Entry | None:
    """What the table says of a resolved name, such as ``torchmetrics.functional.f1_score``."""
    name = full.rpartition(".")[2]
    if full.startswith(LIBRARIES) or (full.startswith(_LOSSES) and stem(name) in ENTRIES):
        return ENTRIES.get(stem(name))
    return None


def named(key: str) -> Entry | None:
    """What the table says of a bare name, for libraries that return a dict of metrics."""
    return ENTRIES.get(stem(key))


def reason_against(full: str) -> str | None:
    """Why the mean over ranks of a library's metric is wrong; None for averageable and unknown ones."""
    entry = find(full)
    return entry.reason if entry is not None and entry.kind == "not averageable" else None

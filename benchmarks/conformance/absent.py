"""Which classes of torchmetrics are not run, and why.

The list is worked out, so that a new class is not forgotten.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import torchmetrics
from torchmetrics import Metric

from benchmarks.conformance.catalogue import cases

__all__ = ["absent", "public_classes"]

_ABSTRACT = "a base class: it computes nothing"
_WEIGHTS = "constructing it downloads weights"
_REASONS = {
    "Metric": _ABSTRACT,
    "BaseAggregator": _ABSTRACT,
    "RetrievalMetric": _ABSTRACT,
    "WrapperMetric": _ABSTRACT,
    **dict.fromkeys(
        (
            "ARNIQA",
            "CLIPImageQualityAssessment",
            "DeepImageStructureAndTextureSimilarity",
            "DeepNoiseSuppressionMeanOpinionScore",
            "InfoLM",
            "LearnedPerceptualImagePatchSimilarity",
            "NonIntrusiveSpeechQualityAssessment",
        ),
        _WEIGHTS,
    ),
}


def public_classes() -> set[str]:
    """Return the names of all metric classes that torchmetrics defines."""
    found = set()
    for module in pkgutil.walk_packages(torchmetrics.__path__, "torchmetrics."):
        for name, value in vars(importlib.import_module(module.name)).items():
            own = (
                inspect.isclass(value)
                and issubclass(value, Metric)
                and value.__module__ == module.name
            )
            if own and not name.startswith("_"):
                found.add(name)
    return found


def absent() -> dict[str, str]:
    """Return each class without a case, with the reason."""
    here = {case.kind for case in cases().values()}
    return {
        name: _REASONS.get(name, "no case is written for it yet")
        for name in public_classes() - here
    }

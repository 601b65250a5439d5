"""Metrics whose state has a size that does not depend on the number of examples: a few sums, or a matrix."""

from __future__ import annotations

_SKLEARN = frozenset(
    {
        "accuracy_score",
        "balanced_accuracy_score",
        "classification_report",
        "cohen_kappa_score",
        "confusion_matrix",
        "explained_variance_score",
        "f1_score",
        "fbeta_score",
        "hamming_loss",
        "jaccard_score",
        "log_loss",
        "matthews_corrcoef",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "multilabel_confusion_matrix",
        "precision_recall_fscore_support",
        "precision_score",
        "r2_score",
        "recall_score",
        "root_mean_squared_error",
        "top_k_accuracy_score",
        "zero_one_loss",
    }
)
_TORCHMETRICS = frozenset(
    {
        "accuracy",
        "cohen_kappa",
        "confusion_matrix",
        "explained_variance",
        "f1_score",
        "fbeta_score",
        "hamming_distance",
        "jaccard_index",
        "matthews_corrcoef",
        "mean_absolute_error",
        "mean_squared_error",
        "pearson_corrcoef",
        "precision",
        "r2_score",
        "recall",
        "specificity",
        "stat_scores",
    }
)
_LOSSES = frozenset({"cross_entropy", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss"})


def is_mergeable(full: str, name: str) -> bool:
    """Whether a function computes such a metric.

    Args:
        full: its resolved name.
        name: the last part of the name that it is called by.
    """
    if full.startswith("sklearn.metrics."):
        return name in _SKLEARN
    if full.startswith("torchmetrics.functional."):
        return name.removeprefix("binary_").removeprefix("multiclass_").removeprefix("multilabel_") in _TORCHMETRICS
    return full == f"torch.nn.functional.{name}" and name in _LOSSES

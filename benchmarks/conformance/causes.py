"""Why classes fail, as far as torchmetrics' code tells: shown beside a run's failures."""

from __future__ import annotations

import re

__all__ = ["cause_of", "is_possible"]

_ATTRIBUTE = (
    "compute() reads `{}`, which update() sets and which is no state: a rank without data does "
    "not have it"
)
_BY_ORDER = r"KernelInceptionDistance|InceptionScore"
_CAUSES = {
    r"(Memorization.*)?FrechetInceptionDistance|FeatureShare": _ATTRIBUTE.format("orig_dtype"),
    r"RootMeanSquaredErrorUsingSlidingWindow": _ATTRIBUTE.format("rmse_map"),
    r"BERTScore": _ATTRIBUTE.format("ref_group_boundaries")
    + "; and it is that of the last batch, so that the single process applies it to batches that "
    "are not its own",
    r"NormalizedRootMeanSquaredError": "the metric joins the ranks' moments in a loop that "
    "overwrites the totals it "
    "still needs: wrong or out of bounds from the third rank on",
    _BY_ORDER: "the random subsets depend on the order of the images; those of another "
    "order than the ranks' are as good, but not the single process's",
    r"(MultiScale)?StructuralSimilarityIndexMeasure|VisualInformationFidelity": "a value a sample, "
    "in another order than the ranks'",
    r"ExtendedEditDistance": "compute() counts the items of a list state that is declared to be "
    "concatenated: a list "
    "of one joined tensor counts as one sentence, and a joined tensor cannot be stacked",
}

# What no sync can mend. Key: as above.
_IMPOSSIBLE = {
    r"Running(Mean|Sum)?": "it is the value of the last updates, and each rank has last updates "
    "of its own: which of "
    "all the updates came last is known to no rank",
    r"PerceptualPathLength": "it measures the last generator that it was given and has no state: "
    "a rank without one "
    "has nothing to measure",
}


def cause_of(kind: str, verdict: str) -> str:
    """Return why a class gives a wrong value or an error, or "" where nothing is known of it."""
    if verdict in ("wrong", "error") and not (verdict == "error" and re.fullmatch(_BY_ORDER, kind)):
        for pattern, text in (_CAUSES | _IMPOSSIBLE).items():
            if re.fullmatch(pattern, kind):
                return text
    return ""


def is_possible(kind: str) -> bool:
    """Whether a sync could give the single process's value of this class at all."""
    return not any(re.fullmatch(pattern, kind) for pattern in _IMPOSSIBLE)

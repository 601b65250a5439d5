"""For which metrics the mean over ranks is the metric of all data, and for which it is not, with the reason.

A metric is averageable when it is a mean over examples: with equal counts on every rank, the mean of the
parts is the whole. What is not listed is unknown, and rules are silent about it.
"""

from __future__ import annotations

_RATIO = "its denominator counts predictions or classes, not examples, and differs between ranks"
_RANKING = "it compares every pair of examples, also those on different ranks"
_ROOT = "the root of a mean is not the mean of roots"
_EXP = "exp of a mean is not the mean of exps"
_LOG = "the logarithm of a mean is not the mean of logarithms"
_CORRELATION = "it is made of means, variances and a product that belong to all data"
_TABLE = "it is computed from the whole confusion matrix"
_CLASSES = "it averages over classes, and a class has another count on every rank"
_TOTAL = "its denominator is a sum over the data, which differs between ranks"
_BINS = "it bins all predictions before it compares"
_ORDER = "a quantile of all data is not a mean of quantiles"
_CLUSTERS = "it compares clusterings of all data"
_DISTRIBUTION = "it compares distributions of all data"

# Reasons why a metric is not averageable, by the stem of its name: lower case, without underscores, and
# without the words that only tell tasks and implementations apart.
NOT_AVERAGEABLE = {
    "f1": _RATIO,
    "accandf1": _RATIO,
    "fbeta": _RATIO,
    "precision": _RATIO,
    "recall": _RATIO,
    "precisionrecallfscoresupport": _RATIO,
    "precisionrecall": _RATIO,
    "specificity": _RATIO,
    "sensitivity": _RATIO,
    "negativepredictivevalue": _RATIO,
    "jaccard": _RATIO,
    "jaccardindex": _RATIO,
    "meaniou": _RATIO,
    "dice": _RATIO,
    "classlikelihoodratios": _RATIO,
    "balancedaccuracy": _CLASSES,
    "rocauc": _RANKING,
    "auroc": _RANKING,
    "auc": _RANKING,
    "auprc": _RANKING,
    "averageprecision": _RANKING,
    "recallatfixedprecision": _RANKING,
    "precisionatfixedrecall": _RANKING,
    "sensitivityatspecificity": _RANKING,
    "specificityatsensitivity": _RANKING,
    "eer": _RANKING,
    "concordanceindex": _RANKING,
    "meanaverageprecision": _RANKING,
    "pearsoncorrcoef": _CORRELATION,
    "spearmancorrcoef": _RANKING,
    "kendallrankcorrcoef": _RANKING,
    "concordancecorrcoef": _CORRELATION,
    "pearsonr": _CORRELATION,
    "spearmanr": _RANKING,
    "kendalltau": _RANKING,
    "corrcoef": _CORRELATION,
    "r2": _CORRELATION,
    "explainedvariance": _CORRELATION,
    "d2absoluteerror": _CORRELATION,
    "d2pinball": _CORRELATION,
    "d2tweedie": _CORRELATION,
    "matthewscorrcoef": _TABLE,
    "cohenkappa": _TABLE,
    "rootmeansquarederror": _ROOT,
    "rootmeansquaredlogerror": _ROOT,
    "normalizedrootmeansquarederror": _ROOT,
    "relativesquarederror": _TOTAL,
    "weightedmeanabsolutepercentageerror": _TOTAL,
    "medianabsoluteerror": _ORDER,
    "perplexity": _EXP,
    "peaksignalnoiseratio": _LOG,
    "bleu": _TOTAL,
    "sacrebleu": _TOTAL,
    "chrf": _TOTAL,
    "worderrorrate": _TOTAL,
    "charerrorrate": _TOTAL,
    "matcherrorrate": _TOTAL,
    "wordinfolost": _TOTAL,
    "wordinformationlost": _TOTAL,
    "wordinfopreserved": _TOTAL,
    "wordinformationpreserved": _TOTAL,
    "calibrationerror": _BINS,
    "normalizedentropy": _TOTAL,
    "mutualinfo": _CLUSTERS,
    "normalizedmutualinfo": _CLUSTERS,
    "adjustedmutualinfo": _CLUSTERS,
    "adjustedrand": _CLUSTERS,
    "rand": _CLUSTERS,
    "homogeneity": _CLUSTERS,
    "completeness": _CLUSTERS,
    "vmeasure": _CLUSTERS,
    "fowlkesmallows": _CLUSTERS,
    "silhouette": _CLUSTERS,
    "calinskiharabasz": _CLUSTERS,
    "daviesbouldin": _CLUSTERS,
    "frechetinceptiondistance": _DISTRIBUTION,
    "kernelinceptiondistance": _DISTRIBUTION,
    "inception": _DISTRIBUTION,
}
# Means over examples, and why they are named here: so that a reader sees that they were thought of.
AVERAGEABLE = {
    "accuracy": "a mean of hits over examples",
    "topkaccuracy": "a mean of hits over examples",
    "zeroone": "a mean of misses over examples",
    "hammingdistance": "a mean over labels and examples",
    "hamming": "a mean over labels and examples",
    "log": "log loss: a mean over examples",
    "hinge": "a mean over examples",
    "brier": "a mean over examples",
    "meanabsoluteerror": "a mean over values",
    "meansquarederror": "a mean over values, unless squared=False takes its root",
    "meansquaredlogerror": "a mean over values",
    "meanabsolutepercentageerror": "a mean over values",
    "symmetricmeanabsolutepercentageerror": "a mean over values",
    "cosinesimilarity": "a mean over examples",
    "structuralsimilarityindexmeasure": "a mean over images",
    "scaleinvariantsignaldistortionratio": "a mean over recordings",
    "signalnoiseratio": "a mean over recordings",
    "rouge": "a mean over texts",
    "ndcg": "a mean over queries",
    "kldivergence": "a mean over examples",
}
# Functions that return several metrics under these names.
DICT_FUNCTIONS = frozenset({"transformers.data.metrics.acc_and_f1", "sklearn.metrics.classification_report"})
LIBRARIES = (
    "sklearn.metrics",
    "torchmetrics",
    "torcheval.metrics",
    "scipy.stats",
    "segmentation_models_pytorch.metrics",
)
EXP_REASON, ROOT_REASON = _EXP, _ROOT
CLASSES_REASON = _CLASSES

_DROPPED = ("binary", "multiclass", "multilabel", "retrieval")
_ENDINGS = ("score", "loss", "curve")


def stem(name: str) -> str:
    """``binary_f1_score`` and ``BinaryF1Score`` both become ``f1``."""
    text = name.replace("_", "").replace("-", "").lower()
    for word in _DROPPED:
        text = text.removeprefix(word)
    for word in _ENDINGS * 2:  # brier_score_loss
        text = text.removesuffix(word)
    return text


def reason_against(full: str) -> str | None:
    """Why the mean over ranks of a library's metric is wrong; None for averageable and unknown ones."""
    name = full.rpartition(".")[2]
    if not full.startswith(LIBRARIES) or name.lower().startswith("retrieval"):
        return None
    return NOT_AVERAGEABLE.get(stem(name))

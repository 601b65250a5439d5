"""Every torchmetrics class that can be constructed without a download, with batches for it."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch
import torchmetrics
from torch import nn
from torchmetrics import Metric, MetricCollection, MetricTracker, wrappers
from torchmetrics import classification as c
from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.image.mifid import MemorizationInformedFrechetInceptionDistance
from torchmetrics.image.perceptual_path_length import PerceptualPathLength
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score
from torchmetrics.text.bert import BERTScore

from benchmarks.conformance import inputs as i
from benchmarks.conformance.case import Case, Source

__all__ = ["MODULES", "absent", "cases", "find", "public_classes"]

MODULES = (__name__,)  # what a process imports before it is asked


def of(
    group: str, names: str, source: Source, variant: str = "", module: str = "", **options: Any
) -> Iterator[Case]:
    """Yield the cases of classes of a module; ``variant`` tells several constructions apart."""
    found = importlib.import_module(f"torchmetrics.{module or group}")
    for name in names.split():
        made = functools.partial(getattr(found, name), **options)
        yield Case(f"{name}[{variant}]" if variant else name, group, made, source)


# -- classification: every task-specific class, curves exact and binned, and task wrappers

# What a class cannot be constructed without, beside the number of classes or labels.
_CHOSEN = dict.fromkeys(("min_recall", "min_precision", "min_specificity", "min_sensitivity"), 0.5)
_CHOSEN |= {"beta": 2.0}
_REQUIRED = {**_CHOSEN, "num_groups": 2, "num_classes": i.CLASSES, "num_labels": i.LABELS}
_SOURCES = {"Binary": i.binary, "Multiclass": i.multiclass, "Multilabel": i.multilabel}


def _options(function: Any, names: Any) -> tuple[Any, dict[str, Any]]:
    known = inspect.signature(function).parameters
    return known, {name: _REQUIRED[name] for name in names if name in known}


def _classification() -> Iterator[Case]:
    for name in sorted(c.__all__):
        prefix = next((prefix for prefix in _SOURCES if name.startswith(prefix)), None)
        yield from _chooser(name) if prefix is None else _of_task(name, _SOURCES[prefix])


def _of_task(name: str, source: Source) -> Iterator[Case]:
    """Yield the cases of a class that is made for one task."""
    known, required = _options(getattr(c, name).__init__, _REQUIRED)
    usual = i.grouped if "num_groups" in known else source
    if name == "MulticlassExactMatch":
        usual = i.positions(source)
    yield from of("classification", name, usual, **required)
    if "thresholds" in known:
        yield from of("classification", name, usual, "thresholds=8", thresholds=8, **required)
    if "average" in known:
        yield from of("classification", name, usual, "average=None", average=None, **required)
    if "multidim_average" in known:
        more = required | {"multidim_average": "samplewise"}
        yield from of("classification", name, i.positions(source), "samplewise", **more)


def _chooser(name: str) -> Iterator[Case]:
    """Yield the case of a class that constructs the one for a given task."""
    known, chosen = _options(getattr(c, name).__new__, _CHOSEN)
    options: dict[str, Any] = {"task": "multiclass", "num_classes": i.CLASSES, **chosen}
    if "average" in known:
        options["average"] = "weighted" if "multidim_average" in known else "macro"
    source = i.positions(i.multiclass) if name == "ExactMatch" else i.multiclass
    yield from of("classification", name, source, **options)


# -- numbers


def _regression() -> Iterator[Case]:
    several = "ConcordanceCorrCoef KendallRankCorrCoef LogCoshError MeanAbsoluteError "
    several += "PearsonCorrCoef RelativeSquaredError SpearmanCorrCoef"
    explained, divergences = "ExplainedVariance R2Score", "JensenShannonDivergence KLDivergence"
    shares = "MeanAbsolutePercentageError MeanSquaredLogError "
    shares += "SymmetricMeanAbsolutePercentageError WeightedMeanAbsolutePercentageError"
    rmse = "NormalizedRootMeanSquaredError"
    add = functools.partial(of, "regression")
    yield from add(f"{several} {explained} MeanSquaredError", i.scalars)
    yield from add(several, i.vectors, "outputs", num_outputs=i.LABELS)
    yield from add("MeanSquaredError", i.vectors, "outputs", num_outputs=i.LABELS, squared=False)
    yield from add(explained, i.vectors, "raw", multioutput="raw_values")
    yield from add("ContinuousRankedProbabilityScore", i.ensemble)
    yield from add("CosineSimilarity", i.vectors)
    yield from add("CosineSimilarity", i.vectors, "none", reduction="none")
    yield from add("CriticalSuccessIndex", i.chances, threshold=0.5)
    options: dict[str, Any] = {"threshold": 0.5, "keep_sequence_dim": 1}
    yield from add("CriticalSuccessIndex", i.sequences, "sequence", **options)
    yield from add(divergences, i.distributions)
    yield from add(divergences, i.distributions, "none", reduction="none")
    yield from add("KendallRankCorrCoef", i.scalars, "t_test", t_test=True)
    yield from add("MinkowskiDistance", i.scalars, p=3)
    yield from add("TweedieDevianceScore", i.positive, power=1.5)
    yield from add(f"{shares} {rmse}", i.positive)
    yield from add(rmse, i.positive, "range", normalization="range")
    yield from add(rmse, i.positive, "std", normalization="std")
    yield from add(rmse, i.vectors, "l2", normalization="l2", num_outputs=i.LABELS)


def _retrieval() -> Iterator[Case]:
    names = sorted(importlib.import_module("torchmetrics.retrieval").__all__)
    yield from of("retrieval", " ".join(names), i.documents)
    yield from of("retrieval", "RetrievalMAP", i.documents, "skip", empty_target_action="skip")
    options: dict[str, Any] = {"top_k": 2, "aggregation": "median"}
    yield from of("retrieval", "RetrievalPrecision", i.documents, "top_k, median", **options)


def _aggregation() -> Iterator[Case]:
    names = "CatMetric MaxMetric MeanMetric MinMetric SumMetric RunningMean RunningSum"
    yield from of("aggregation", names, i.values)
    yield from of("aggregation", "CatMetric MaxMetric SumMetric", i.number, "numbers")
    yield from of("aggregation", "MeanMetric", i.weighted, "weights")


def _clustering() -> Iterator[Case]:
    extrinsic = "AdjustedMutualInfoScore AdjustedRandScore CompletenessScore FowlkesMallowsIndex "
    extrinsic += (
        "HomogeneityScore MutualInfoScore NormalizedMutualInfoScore RandScore VMeasureScore"
    )
    intrinsic = "CalinskiHarabaszScore DaviesBouldinScore DunnIndex"
    nominal = "CramersV PearsonsContingencyCoefficient TheilsU TschuprowsT"
    accuracy = {"module": "clustering.cluster_accuracy", "num_classes": 3}
    yield from of("clustering", extrinsic, i.clusters)
    yield from of("clustering", intrinsic, i.points)
    yield from of("clustering", "ClusterAccuracy", i.clusters, **accuracy)  # type: ignore[arg-type]
    yield from of("nominal", nominal, i.clusters, num_classes=3)
    yield from of("nominal", "FleissKappa", i.ratings)
    yield from of("nominal", "FleissKappa", i.rated, "probs", mode="probs")


def _segmentation() -> Iterator[Case]:
    names = "DiceScore GeneralizedDiceScore HausdorffDistance MeanIoU"
    add = functools.partial(of, "segmentation", num_classes=3, input_format="index")
    yield from add(names, i.masks)
    yield from add("DiceScore", i.masks, "global", aggregation_level="global")
    yield from add("DiceScore", i.masks, "average=none", average="none")
    yield from add("GeneralizedDiceScore MeanIoU", i.masks, "per_class", per_class=True)
    yield from of("shape", "ProcrustesDisparity", i.shapes, reduction="mean")
    yield from of("shape", "ProcrustesDisparity", i.shapes, "sum", reduction="sum")


# -- text


def _text() -> Iterator[Case]:
    add = functools.partial(of, "text")
    whole: dict[str, Any] = {"return_sentence_level_score": True}
    names = "CharErrorRate EditDistance ExtendedEditDistance MatchErrorRate WordErrorRate "
    yield from add("BLEUScore CHRFScore SacreBLEUScore TranslationEditRate", i.references)
    yield from add(f"{names} WordInfoLost WordInfoPreserved", i.one_reference)
    yield from add("SacreBLEUScore", i.references, "intl", tokenize="intl")
    yield from add("EditDistance", i.one_reference, "none", reduction="none")
    yield from add("CHRFScore TranslationEditRate", i.references, "sentences", **whole)
    yield from add("ExtendedEditDistance", i.one_reference, "sentences", **whole)
    yield from add("Perplexity", i.tokens)
    # rougeLsum splits sentences with data that would be downloaded
    yield from add("ROUGEScore", i.one_reference, rouge_keys=("rouge1", "rouge2", "rougeL"))
    options: dict[str, Any] = {"rouge_keys": ("rouge1", "rougeL"), "accumulate": "avg"}
    yield from add("ROUGEScore", i.references, "avg", **options)
    yield from add("SQuAD", i.questions)
    yield Case("BERTScore", "text", _embedding_score, i.one_reference)
    yield Case("BERTScore[references]", "text", _embedding_score, i.references)


def _embedding_score() -> BERTScore:
    """Construct a BERTScore whose model is a small seeded embedding."""
    weights = torch.randn(len(i.WORDS) + 2, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Embedding(len(weights), 8, _weight=weights)
    functions: dict[str, Any] = {"user_tokenizer": i.tokenized, "user_forward_fn": i.embedded}
    return BERTScore(model=model, max_length=16, **functions)


# -- images, sound, video


def _image() -> Iterator[Case]:
    add = functools.partial(of, "image")
    plain = "ErrorRelativeGlobalDimensionlessSynthesis SpectralAngleMapper "
    plain += "UniversalImageQualityIndex"
    once = "RelativeAverageSpectralError RootMeanSquaredErrorUsingSlidingWindow "
    once += "SpatialCorrelationCoefficient SpectralDistortionIndex"
    noise, similarity = "PeakSignalNoiseRatio", "StructuralSimilarityIndexMeasure"
    sized: dict[str, Any] = {"data_range": 1.0}
    scales = {"kernel_size": 5, "sigma": 0.5, "betas": (0.5, 0.5), **sized}
    yield from add(f"{plain} {once}", i.small)
    yield from add(plain, i.small, "none", reduction="none")
    yield from add(f"MultiScale{similarity}", i.wide, **scales)
    yield from add(f"MultiScale{similarity}", i.wide, "none", reduction="none", **scales)
    yield from add(f"{noise} {similarity}", i.small, **sized)
    yield from add(noise, i.small, "dim", dim=(1, 2, 3), **sized)
    yield from add(noise, i.small, "none", dim=(1, 2, 3), reduction="none", **sized)
    yield from add(f"{noise}WithBlockedEffect", i.gray, **sized)
    yield from add(similarity, i.small, "range of each batch")
    yield from add(similarity, i.small, "none", reduction="none", **sized)
    yield from add(similarity, i.small, "full image", return_full_image=True, **sized)
    for name, source in (("TotalVariation", i.images), ("VisualInformationFidelity", i.wide)):
        yield from add(name, source)
        yield from add(name, source, "none", reduction="none")
    yield from add("SpatialDistortionIndex", i.pansharpened, module="image.d_s")
    yield from add("QualityWithNoReference", i.pansharpened, module="image.qnr")


def _features() -> Iterator[Case]:
    """Yield those of a network's features."""
    network = i.Features()

    def add(cls: Any, source: Source, variant: str = "seeded", **options: Any) -> Case:
        name = f"{cls.__name__}[{variant}]" if variant else cls.__name__
        return Case(name, "image", functools.partial(cls, **options), source)

    for cls in (FrechetInceptionDistance, MemorizationInformedFrechetInceptionDistance):
        yield add(cls, i.real_and_fake, "", feature=network)
    subsets: dict[str, Any] = {"feature": network, "subsets": 3, "subset_size": 3}
    yield add(i.seeded(KernelInceptionDistance), i.real_and_fake, **subsets)
    yield add(i.seeded(InceptionScore), i.images, feature=network, splits=2)
    distance: dict[str, Any] = {"num_samples": 16, "resize": None, "sim_net": i.Distance()}
    yield add(i.seeded(PerceptualPathLength), i.painters, **distance)


def _detection() -> Iterator[Case]:
    add = functools.partial(of, "detection", source=i.detections)
    yield from add("IntersectionOverUnion", module="detection.iou")
    for name in ("Generalized", "Distance", "Complete"):
        module = f"detection.{name[0].lower()}iou"
        yield from add(f"{name}IntersectionOverUnion", module=module)
    options: dict[str, Any] = {"variant": "class_metrics", "class_metrics": True}
    yield from add("IntersectionOverUnion", module="detection.iou", **options)
    precision = functools.partial(add, "MeanAveragePrecision", module="detection.mean_ap")
    yield from precision()
    yield from precision(variant="segm", iou_type="segm")
    yield from precision(**options)
    names = "PanopticQuality ModifiedPanopticQuality"
    parts: dict[str, Any] = {"things": {0, 1}, "stuffs": {2}}
    module = "detection.panoptic_qualities"
    yield from of("detection", names, i.panoptic, module=module, **parts)


def _sound() -> Iterator[Case]:
    add, one, two = functools.partial(of, "audio"), i.noisy(200), i.noisy(2, 100, flipped=True)
    invariant = "ScaleInvariantSignalNoiseRatio ScaleInvariantSignalDistortionRatio"
    yield from add(f"SignalNoiseRatio {invariant}", one)
    yield from add("ComplexScaleInvariantSignalNoiseRatio", i.spectra)
    yield from add("SignalDistortionRatio", one, filter_length=16)
    yield from add("SourceAggregatedSignalDistortionRatio", two)
    ratio = scale_invariant_signal_distortion_ratio
    yield from add("PermutationInvariantTraining", two, metric_func=ratio)
    quality: dict[str, Any] = {"module": "audio.pesq", "fs": i.RATE, "mode": "nb"}
    yield from add("PerceptualEvaluationSpeechQuality", i.speech, **quality)
    add = functools.partial(of, "audio", source=i.speech, fs=i.RATE)
    yield from add("ShortTimeObjectiveIntelligibility", module="audio.stoi")
    yield from add("SpeechReverberationModulationEnergyRatio", module="audio.srmr")


def _video() -> Iterator[Case]:
    options: dict[str, Any] = {"module": "multimodal.lve", "mouth_map": [0, 2, 3]}
    yield from of("multimodal", "LipVertexError", i.shapes, **options)
    clip: dict[str, Any] = {"module": "multimodal.clip_score", "model_name_or_path": _clip}
    yield from of("multimodal", "CLIPScore", i.captioned, **clip)
    fusion = functools.partial(of, "video", "VideoMultiMethodAssessmentFusion", i.video)
    yield from fusion(module="video.vmaf")
    yield from fusion("features", module="video.vmaf", features=True)


def _clip() -> tuple[i.Matcher, Any]:
    return i.Matcher(), i.prepared


# -- wrappers, collections, and metrics made of metrics by arithmetic


def _collection(*, groups: bool) -> MetricCollection:
    members = [c.BinaryPrecision(), c.BinaryRecall(), c.BinaryAUROC(), c.BinaryROC()]
    return MetricCollection(members, prefix="val/", compute_groups=groups)


def _tracker() -> MetricTracker:
    tracker = MetricTracker(MetricCollection([c.BinaryF1Score(), c.BinaryAveragePrecision()]))
    tracker.increment()
    return tracker


def _shared() -> Any:
    network = i.Features()
    of_features = (FrechetInceptionDistance, MemorizationInformedFrechetInceptionDistance)
    return wrappers.FeatureShare([cls(feature=network) for cls in of_features])


def _multitask() -> Any:
    tasks: Any = {"label": _collection(groups=True), "size": MeanSquaredError()}
    return wrappers.MultitaskWrapper(tasks)


def _bootstrapped(metric: Metric, **options: Any) -> Any:
    return i.seeded(wrappers.BootStrapper, draws_in_compute=False)(metric, **options)


def _wrappers() -> Iterator[Case]:
    accuracy = functools.partial(c.MulticlassAccuracy, num_classes=4, average=None)
    quantiles = {"num_bootstraps": 4, "quantile": 0.5, "raw": True}
    drawn: dict[str, Any] = {"num_bootstraps": 4, "sampling_strategy": "multinomial"}
    w, auroc = wrappers, c.BinaryAUROC
    made: dict[str, tuple[Any, Source]] = {
        "BootStrapper[seeded]": (lambda: _bootstrapped(MeanSquaredError(), **quantiles), i.scalars),
        "BootStrapper[seeded, lists]": (lambda: _bootstrapped(auroc(), **drawn), i.binary),
        "ClasswiseWrapper": (lambda: w.ClasswiseWrapper(accuracy()), i.classes),
        "MinMaxMetric": (lambda: w.MinMaxMetric(c.BinaryAccuracy()), i.binary),
        "MinMaxMetric[lists]": (lambda: w.MinMaxMetric(auroc()), i.binary),
        "MultioutputWrapper": (lambda: w.MultioutputWrapper(R2Score(), 3), i.vectors),
        "MultioutputWrapper[pearson]": (
            lambda: w.MultioutputWrapper(PearsonCorrCoef(), 3),
            i.vectors,
        ),
        "MultitaskWrapper": (_multitask, i.tasks),
        "BinaryTargetTransformer": (
            lambda: w.BinaryTargetTransformer(auroc(), threshold=0.5),
            i.chances,
        ),
        "LambdaInputTransformer": (
            lambda: w.LambdaInputTransformer(auroc(), transform_pred=lambda x: 1 - x),
            i.binary,
        ),
        "MetricInputTransformer": (lambda: w.MetricInputTransformer(auroc()), i.binary),
        "FeatureShare": (_shared, i.real_and_fake),
        "MetricTracker": (_tracker, i.binary),
        "MetricCollection[groups]": (lambda: _collection(groups=True), i.binary),
        "MetricCollection[no groups]": (lambda: _collection(groups=False), i.binary),
        "CompositionalMetric": (lambda: c.BinaryPrecision() + c.BinaryRecall() * 2, i.binary),
        "CompositionalMetric[lists]": (lambda: auroc() - c.BinaryAveragePrecision(), i.binary),
        "Running": (lambda: w.Running(MeanSquaredError(), window=3), i.scalars),
    }
    for name, (make, source) in made.items():
        yield Case(name, "wrappers", make, source)


_GROUPS = (
    *(_classification, _regression, _retrieval, _aggregation, _clustering, _segmentation, _text),
    *(_image, _features, _detection, _sound, _video, _wrappers),
)


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name."""
    found: dict[str, Case] = {}
    for group in _GROUPS:
        for case in group():
            if case.name in found:
                raise ValueError(f"two cases are called {case.name!r}")
            found[case.name] = case
    return found


def find(name: str) -> Case:
    """Return the case of that name."""
    return cases()[name]


_ABSTRACT, _WEIGHTS = "a base class: it computes nothing", "constructing it downloads weights"
_BASES = "Metric BaseAggregator RetrievalMetric WrapperMetric"
_NETWORKS = """
    ARNIQA CLIPImageQualityAssessment DeepImageStructureAndTextureSimilarity
    DeepNoiseSuppressionMeanOpinionScore InfoLM LearnedPerceptualImagePatchSimilarity
    NonIntrusiveSpeechQualityAssessment"""


def public_classes() -> set[str]:
    """Return the names of all metric classes that torchmetrics defines."""
    found = set()
    for module in pkgutil.walk_packages(torchmetrics.__path__, "torchmetrics."):
        for name, value in vars(importlib.import_module(module.name)).items():
            is_metric = inspect.isclass(value) and issubclass(value, Metric)
            if is_metric and value.__module__ == module.name and not name.startswith("_"):
                found.add(name)
    return found


def absent() -> dict[str, str]:
    """Return each class without a case, with the reason, so that a new class is not forgotten."""
    reasons = dict.fromkeys(_BASES.split(), _ABSTRACT)
    reasons |= dict.fromkeys(_NETWORKS.split(), _WEIGHTS)
    missing = public_classes() - {case.kind for case in cases().values()}
    return {name: reasons.get(name, "no case is written for it yet") for name in missing}
